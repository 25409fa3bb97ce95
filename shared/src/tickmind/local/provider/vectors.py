"""The vectors this provider gives: the hash embedder that load tests use without a server."""

from __future__ import annotations

from tickmind.hashed import hash_embed, hash_embed_many

__all__ = ["hash_embed", "hash_embed_many"]
