"""Vectors of the real model, each text's computed once and kept on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tickmind.identity import content_hash
from tickmind.local.embedding_server import MODEL, load_model

__all__ = ["CachedVectors"]

Vector = NDArray[np.float32]

#: Texts a call, of about one length: padding costs as much as text.
_TEXTS_A_CALL = 8
_TELL_TEXTS = 400


class CachedVectors:
    """Vectors by text, (384,) float32, unit length.

    Kept in TICKMIND_BENCH_CACHE (default ~/.cache/tickmind-bench), by the texts' hashes.
    """

    def __init__(self) -> None:
        folder = os.environ.get("TICKMIND_BENCH_CACHE", "~/.cache/tickmind-bench")
        self._path = Path(folder).expanduser() / f"{MODEL}.npz"
        self._known: dict[str, Vector] = {}
        if self._path.exists():
            with np.load(self._path) as kept:
                self._known = dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))

    def add(
        self, passages: Iterable[str], queries: Iterable[str], report: Callable[[str], None]
    ) -> None:
        """Compute what is missing, some 50 texts a second, and keep it."""
        missing = [(kind, text) for kind, text in _each(passages, queries)]
        missing = [(kind, text) for kind, text in missing if _key(kind, text) not in self._known]
        if not missing:
            return
        model = load_model()
        missing.sort(key=lambda one: (one[0], len(one[1])))
        for first in range(0, len(missing), _TEXTS_A_CALL):
            chunk = missing[first : first + _TEXTS_A_CALL]
            for kind, embed in (("query", model.query), ("passage", model.passage)):
                texts = [text for of, text in chunk if of == kind]
                if texts:
                    found = np.asarray(embed(texts), dtype=np.float32)
                    self._known |= {
                        _key(kind, text): row for text, row in zip(texts, found, strict=True)
                    }
            if first % _TELL_TEXTS == 0:
                report(f"{first} of {len(missing)} texts embedded")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part.npz")
        np.savez(part, keys=np.array(list(self._known)), vectors=np.stack([*self._known.values()]))
        part.replace(self._path)

    def passage(self, text: str) -> Vector:
        return self._known[_key("passage", text)]

    def query(self, text: str) -> Vector:
        return self._known[_key("query", text)]


def _key(kind: str, text: str) -> str:
    return kind + content_hash(text).hex()


def _each(passages: Iterable[str], queries: Iterable[str]) -> Iterator[tuple[str, str]]:
    yield from (("passage", text) for text in set(passages))
    yield from (("query", text) for text in set(queries))
