"""Every SQL statement. Functions take a session and never commit: the caller's transaction does.

`recording` and `embedding` write the path of an event, `recall` reads it, `inspection` and
`removal` serve the person at the command line.
"""
