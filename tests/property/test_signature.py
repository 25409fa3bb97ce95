"""Signatures hold for vectors of any length and width."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tickmind.signature import BITS, Signer, cosine, new_basis


@settings(max_examples=60)
@given(
    dimensions=st.integers(1, 96),
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(1e-3, 1e3),
    count=st.integers(1, 5),
)
def test_signature_is_that_of_the_direction_from_the_mean_alone(
    dimensions: int, seed: int, scale: float, count: int
) -> None:
    random = np.random.default_rng(seed)
    signer = Signer(np.zeros(dimensions, dtype=np.float32), new_basis(dimensions, random))
    rows = random.normal(size=(count, dimensions)).astype(np.float32)
    signed = signer.sign(rows)
    assert all(signature is not None and len(signature) == BITS // 8 for signature in signed)
    # Scaled by a power of two, nothing is rounded, so that no bit may move.
    assert signer.sign(rows * np.float32(2.0 ** round(np.log2(scale)))) == signed
    # Each alone, as a memory that comes by itself: only planes a vector all but lies on may differ.
    for row, together in zip(rows, signed, strict=True):
        (alone,) = signer.sign(row[np.newaxis])
        assert alone is not None
        assert together is not None
        differing = int.from_bytes(alone, "big") ^ int.from_bytes(together, "big")
        assert differing.bit_count() <= 2
        (opposite,) = signer.sign(-row[np.newaxis])
        assert opposite is not None
        differing = int.from_bytes(alone, "big") ^ int.from_bytes(opposite, "big")
        assert differing.bit_count() >= BITS - 2


@given(st.integers(0, BITS), st.integers(0, BITS))
def test_cosine_falls_with_the_bits_that_differ(one: int, other: int) -> None:
    few, many = sorted((one, other))
    assert -1 <= cosine(np.array(many)) <= cosine(np.array(few)) <= 1
