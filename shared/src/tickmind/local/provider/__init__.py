"""An OpenAI-compatible embeddings server that fails on request and remembers every text it billed.

Import from the modules: `vectors` (numpy only), `limits` (standard library only), `faults`,
`triggers`, `options`, `running` (the server in this event loop), `remote` (one in another process).
"""
