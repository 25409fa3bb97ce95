"""Signatures: what the bits say of cosines, and what has none."""

from __future__ import annotations

import numpy as np
import pytest

from tickmind.signature import BITS, Signer, cosine, new_basis


def _signer(dimensions: int, seed: int = 1) -> Signer:
    random = np.random.default_rng(seed)
    mean = (0.5 * random.normal(size=dimensions) / np.sqrt(dimensions)).astype(np.float32)
    return Signer(mean, new_basis(dimensions, random))


def _bits(signature: bytes | None) -> np.ndarray:
    assert signature is not None
    return np.unpackbits(np.frombuffer(signature, dtype=np.uint8))


@pytest.mark.parametrize("dimensions", [1, 2, 3, 384, 768, 1000, 1536])
def test_basis_is_of_orthogonal_matrices_as_many_as_the_bits_need(dimensions: int) -> None:
    basis = new_basis(dimensions, np.random.default_rng(2))
    matrices = np.frombuffer(basis, dtype="<f2").reshape(-1, dimensions, dimensions)
    assert (len(matrices) - 1) * dimensions < BITS <= len(matrices) * dimensions
    for matrix in matrices[:3].astype(np.float64):
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(dimensions), atol=5e-3)


def test_bases_of_two_generations_differ_though_nothing_else_does() -> None:
    random = np.random.default_rng(3)
    assert new_basis(8, random) != new_basis(8, random)


@pytest.mark.parametrize("dimensions", [0, BITS + 1])
def test_basis_for_a_width_that_no_space_has_is_refused(dimensions: int) -> None:
    with pytest.raises(ValueError, match="dimensions"):
        new_basis(dimensions, np.random.default_rng(1))


def test_signer_refuses_a_basis_of_another_width() -> None:
    with pytest.raises(ValueError, match="basis"):
        Signer(np.zeros(9, dtype=np.float32), new_basis(8, np.random.default_rng(1)))


@pytest.mark.parametrize("dimensions", [384, 1536])
def test_hamming_distance_tells_the_cosine_of_centred_vectors(dimensions: int) -> None:
    random = np.random.default_rng(5)
    mean = (0.9 * np.ones(dimensions) / np.sqrt(dimensions)).astype(np.float32)
    signer = Signer(mean, new_basis(dimensions, random))
    first = random.normal(size=(200, dimensions))
    mixed = np.linspace(-1, 1, 200)[:, np.newaxis]
    second = mixed * first + (1 - np.abs(mixed)) * random.normal(size=first.shape)
    true = (first * second).sum(axis=1)
    true /= np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    signed = [signer.sign(mean + 0.1 * rows) for rows in (first, second)]
    hamming = np.array(
        [(_bits(one) != _bits(other)).sum() for one, other in zip(*signed, strict=True)]
    )
    # A bit differs with probability p = angle / pi: sqrt(p (1 - p) / 1536) <= 0.0128 of them, so
    # 0.04 of the cosine; orthogonal planes do better.
    error = cosine(hamming) - true
    assert np.abs(error).max() < 4 * 0.04
    assert np.sqrt((error**2).mean()) < 0.04


def test_vector_without_a_direction_has_no_signature() -> None:
    """case 14: zero, at the mean, or not finite."""
    random = np.random.default_rng(6)
    mean = random.normal(size=16).astype(np.float32)
    signer = Signer(mean, new_basis(16, random))
    rows = np.stack([np.zeros(16), mean, np.full(16, np.nan), np.full(16, np.inf), -mean])
    signed = signer.sign(rows.astype(np.float32))
    assert signed[:4] == [None] * 4
    assert signed[4] is not None


def test_bits_are_packed_first_bit_first() -> None:
    """As PostgreSQL writes bit strings."""
    basis = np.ones((BITS, 1, 1), dtype="<f2")
    basis[0] = basis[9] = -1
    (signature,) = Signer(np.zeros(1, dtype=np.float32), basis.tobytes()).sign(
        np.ones((1, 1), dtype=np.float32)
    )
    assert signature is not None
    assert signature[:2] == bytes([0b01111111, 0b10111111])
    assert len(signature) == BITS // 8
