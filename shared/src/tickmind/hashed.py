"""Deterministic embeddings by hashing: no model, no server, a few ten microseconds a text.

Every feature of a text (a word; a pair of neighbouring characters in Chinese and Japanese) has a
fixed pseudo-random direction of ±1 per coordinate; a text is the sum of its features' directions.
So texts that share words are similar and others are nearly orthogonal (cosine 0 ± 1/sqrt(d)).
The idea is random indexing: Kanerva, Kristoferson, Holst, "Random indexing of text samples for
latent semantic analysis", CogSci 2000.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["hash_embed", "hash_embed_many"]

# Kana, Han (with extensions and compatibility forms) and the iteration mark: scripts written
# without spaces. Hangul is written with spaces and counts as words.
_UNSPACED = "\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(f"([{_UNSPACED}]+)|([^\\W{_UNSPACED}]+)")

#: Distinct features whose directions are kept: 192 bytes each at 1536 dimensions, so ~20 MB.
_CACHED_FEATURES = 1 << 16

#: Features unpacked at a time, so that one very long text needs ~6 MB at 1536 dimensions.
_FEATURES_AT_ONCE = 4096

#: Weight of the direction that belongs to the whole text. It keeps texts of the same words apart;
#: being half an odd number, it also keeps every coordinate, and so the norm, from being 0.
_IDENTITY_WEIGHT = 0.5


def hash_embed(text: str, dimensions: int) -> NDArray[np.float32]:
    """Embed one text: `(dimensions,) float32`, unit length, finite, the same on every machine.

    Fewer dimensions give the renormalised start of more.
    Raises ValueError when `dimensions` < 1.
    """
    if dimensions < 1:
        raise ValueError(f"dimensions must be at least 1, got {dimensions}")
    size = (dimensions + 7) // 8
    directions = [_direction(feature, size) for feature in _features(text)]
    whole = hashlib.shake_128(b"text:" + text.encode("utf-8", "surrogatepass")).digest(size)
    total = (2.0 * _bits([whole], dimensions)[0] - 1.0) * _IDENTITY_WEIGHT
    for start in range(0, len(directions), _FEATURES_AT_ONCE):
        bits = _bits(directions[start : start + _FEATURES_AT_ONCE], dimensions)
        total += 2.0 * bits.sum(axis=0, dtype=np.int16) - len(bits)
    vector: NDArray[np.float32] = (total / np.sqrt(total @ total)).astype(np.float32)
    return vector


def hash_embed_many(texts: Sequence[str], dimensions: int) -> NDArray[np.float32]:
    """Embed texts: `(len(texts), dimensions) float32`, each row as `hash_embed` gives it."""
    vectors = np.empty((len(texts), dimensions), dtype=np.float32)
    for row, text in enumerate(texts):
        vectors[row] = hash_embed(text, dimensions)
    return vectors


def _features(text: str) -> set[str]:
    """The words and character pairs of a text, without case or width, each once."""
    features: set[str] = set()
    for unspaced, word in _RUN.findall(unicodedata.normalize("NFKC", text).casefold()):
        if word:
            features.add(word)
        elif len(unspaced) == 1:
            features.add(unspaced)
        else:
            features.update(unspaced[i : i + 2] for i in range(len(unspaced) - 1))
    return features


@lru_cache(maxsize=_CACHED_FEATURES)
def _direction(feature: str, size: int) -> bytes:
    """A feature's direction, one bit a coordinate, `size` bytes."""
    return hashlib.shake_128(b"word:" + feature.encode("utf-8", "surrogatepass")).digest(size)


def _bits(directions: Sequence[bytes], dimensions: int) -> NDArray[np.uint8]:
    """Directions as `(n, dimensions) uint8` of 0 and 1."""
    packed = np.frombuffer(b"".join(directions), dtype=np.uint8).reshape(len(directions), -1)
    return np.unpackbits(packed, axis=1, count=dimensions)
