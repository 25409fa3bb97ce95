"""What is known of the providers people use: their addresses, widths, caps and limits. Pure.

A profile fills in what the settings leave out; any setting overrides it. Figures are the
providers' published ones for a paying account of the lowest tier (July 2026); raise
TICKMIND_EMBEDDING_LIMITS to what your account's page says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["ANY_SERVER", "PROFILES", "Profile"]

#: The profile of an endpoint of which nothing is known.
ANY_SERVER = "openai-compatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Defaults of one provider and model; the names are those of `EmbeddingSettings`, without
    their prefix.

    `max_text_tokens`, `max_tokens`, `max_bytes`: most tokens of one text, most tokens and bytes of
    one request, 0: not limited; `price`: US dollars per million tokens; `limits`: as
    `tickmind.limits` reads them.
    """

    base_url: str
    model: str
    dimensions: int
    send_dimensions: bool = False
    encoding_format: Literal["float", "base64", "omit"] = "float"
    document_prefix: str = ""
    query_prefix: str = ""
    max_inputs: int = 100
    max_tokens: int = 0
    max_bytes: int = 0
    max_chars: int = 4000
    max_text_tokens: int = 0
    limits: str = ""
    price: float = 0.0

    def settings(self) -> dict[str, Any]:
        """As fields of `EmbeddingSettings`."""
        return {f"embedding_{name}": getattr(self, name) for name in self.__slots__}


_GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai/"
_OPENAI = "https://api.openai.com/v1"

PROFILES: dict[str, Profile] = {
    # A longer text is cut in silence. 3,072 wide, cut here. A request's texts count one by one.
    "gemini-embedding-001": Profile(
        base_url=_GEMINI,
        model="gemini-embedding-001",
        dimensions=1536,
        send_dimensions=True,
        max_inputs=100,
        max_text_tokens=2048,
        limits="3000 texts/min, 1M tokens/min",
        price=0.15,
    ),
    "gemini-embedding-2": Profile(
        base_url=_GEMINI,
        model="gemini-embedding-2",
        dimensions=1536,
        send_dimensions=True,
        max_inputs=100,
        max_chars=8000,
        max_text_tokens=8192,
        limits="3000 texts/min, 1M tokens/min",
        price=0.20,
    ),
    "text-embedding-3-small": Profile(
        base_url=_OPENAI,
        model="text-embedding-3-small",
        dimensions=1536,
        encoding_format="base64",
        max_inputs=2048,
        max_tokens=300_000,
        max_chars=8000,
        max_text_tokens=8192,
        limits="3000 calls/min, 1M tokens/min",
        price=0.02,
    ),
    "text-embedding-3-large": Profile(
        base_url=_OPENAI,
        model="text-embedding-3-large",
        dimensions=1536,
        send_dimensions=True,
        encoding_format="base64",
        max_inputs=2048,
        max_tokens=300_000,
        max_chars=8000,
        max_text_tokens=8192,
        limits="3000 calls/min, 1M tokens/min",
        price=0.13,
    ),
    # Cuts in silence what is longer than its context.
    "ollama": Profile(
        base_url="http://localhost:11434/v1",
        model="nomic-embed-text",
        dimensions=768,
        document_prefix="search_document: ",
        query_prefix="search_query: ",
        max_inputs=32,
        max_text_tokens=2048,
    ),
    "vllm": Profile(
        base_url="http://localhost:8000/v1",
        model="BAAI/bge-m3",
        dimensions=1024,
        encoding_format="base64",
        max_inputs=256,
        max_text_tokens=8192,
    ),
    # text-embeddings-inference takes 32 texts at a time unless told otherwise.
    "tei": Profile(
        base_url="http://localhost:8080/v1",
        model="intfloat/multilingual-e5-small",
        dimensions=384,
        encoding_format="float",
        document_prefix="passage: ",
        query_prefix="query: ",
        max_inputs=32,
        max_chars=1200,
        max_text_tokens=512,
    ),
    ANY_SERVER: Profile(
        base_url="http://localhost:8000/v1",
        model="default",
        dimensions=1536,
        encoding_format="omit",
        max_inputs=32,
    ),
}
