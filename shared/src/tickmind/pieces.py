"""Texts too long for one embedding: cut into pieces, and their vectors made one again."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
import regex
from numpy.typing import NDArray

from tickmind.errors import ConfigurationError, EmbeddingFailed

__all__ = ["estimate_tokens", "fit", "grapheme_cut", "pool", "split"]

FloatVectors = NDArray[np.float32]

# One extended grapheme cluster (UAX #29): what a reader takes for one character. Flags have a
# branch of their own, since \X looks back over the whole run of them each time (measured: 4,000
# flags take 126 ms by \X alone, 0.5 ms so).
_GRAPHEME = regex.compile(
    r"\p{Regional_Indicator}{2}[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]*+|\X"
)

# Where a sentence is over: an ideographic full stop (with the closing marks after it), white
# space after a western one, a line's end. Written so that every match is linear in its length.
_SENTENCE_END = regex.compile(
    r"[。！？｡][」』”’）】]*+\s*+"
    r"|(?<=[.!?…][\"'”’)\]]?)\s++"
    r"|[\n\r\u2028\u2029]\s*+"
)
_SPACE = regex.compile(r"\s++")


def split(text: str, *, max_chars: int, overlap_chars: int) -> list[str]:
    """Cut `text` into pieces of at most `max_chars` code points that together cover all of it.

    Each piece begins at most `overlap_chars` before the end of the one before it, so that a
    sentence on a border stands whole in one of them. A piece ends at the last sentence end of its
    last fifth, else at white space there, else where it is full; never inside a grapheme cluster,
    unless one alone is longer than `max_chars`. Same text, same pieces; at most
    7 x len(text) / max_chars + 2 of them. A piece may be blank: see `clean.is_blank`.

    Raises ConfigurationError unless max_chars >= 1 and 0 <= overlap_chars <= max_chars / 2
    (more overlap would send most of the text many times).
    """
    if max_chars < 1:
        raise ConfigurationError(f"a piece needs at least 1 character, max_chars is {max_chars}")
    if not 0 <= overlap_chars <= max_chars // 2:
        raise ConfigurationError(
            f"overlap_chars must be between 0 and half of max_chars ({max_chars // 2}), "
            f"it is {overlap_chars}"
        )
    pieces: list[str] = []
    start = end = 0
    while len(text) - start > max_chars:
        bounds = _boundaries(text, start, start + max_chars)
        if bounds[-1] <= end:
            # The next grapheme does not fit behind the overlap: do without the overlap.
            start = end
            continue
        end = _preferred_end(text, start + max_chars * 4 // 5, bounds)
        pieces.append(text[start:end])
        start = next(bound for bound in bounds if bound >= end - overlap_chars)
    pieces.append(text[start:])
    return pieces


def grapheme_cut(text: str, limit: int) -> int:
    """The last grapheme boundary of `text` at or before `limit` (0 for less); `limit` itself where
    the first grapheme alone is longer. Costs about 0.1 us per character before `limit`."""
    if limit >= len(text):
        return len(text)
    return _boundaries(text, 0, limit)[-1] if limit > 0 else 0


def _boundaries(text: str, start: int, stop: int) -> list[int]:
    """Ends of the graphemes that lie whole in text[start:stop], rising; [stop] if there is none.

    `start` is a boundary itself and `stop` > `start`.
    """
    bounds: list[int] = []
    end = start
    # One character more than wanted: whether `stop` is a boundary depends on what follows it.
    for cluster in _GRAPHEME.findall(text, start, stop + 1):
        end += len(cluster)
        if end > stop:
            break
        bounds.append(end)
    return bounds or [stop]


def _preferred_end(text: str, earliest: int, bounds: Sequence[int]) -> int:
    """Where best to end a piece: one of `bounds`, behind `earliest` if it is not the last."""
    allowed = {bound for bound in bounds if bound > earliest}
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(text, earliest, bounds[-1])]
        for end in reversed(ends):
            if end in allowed:
                return end
    return bounds[-1]


def pool(vectors: FloatVectors, weights: Sequence[int] | NDArray[np.int64]) -> FloatVectors:
    """One vector for a text from those of its pieces: mean weighted by length, at unit length.

    `vectors`: (n, d) float32, n >= 1, as `fit` returns them; `weights`: n lengths > 0.
    Returns (d,) float32. Raises EmbeddingFailed where the pieces cancel out or are not finite.
    """
    shares = np.asarray(weights, dtype=np.float64)
    if vectors.ndim != 2 or shares.shape != vectors.shape[:1] or not np.all(shares > 0):
        raise ValueError(
            f"pool needs (n, d) vectors and n weights > 0, not {vectors.shape} and {shares.shape}"
        )
    rows = np.asarray(vectors, dtype=np.float64)
    mean = (shares / shares.sum()) @ rows
    return _unit_rows(mean[np.newaxis, :], "the mean of a text's pieces").reshape(-1)


def fit(vectors: FloatVectors, dimensions: int) -> FloatVectors:
    """Make vectors of a provider fit a space: cut to `dimensions`, at unit length.

    `vectors`: (n, w) or (w,) float32; the result is (n, dimensions) or (dimensions,) float32.
    Renormalised always: a model whose leading components stand alone (Matryoshka, such as
    Gemini's) gives truncated vectors that are not of unit length. Raises EmbeddingFailed, naming
    both widths, where they are narrower, and naming the row, where one is not finite or of norm
    zero.
    """
    if dimensions < 1:
        raise ConfigurationError(f"a space needs at least 1 dimension, it has {dimensions}")
    rows = np.atleast_2d(np.asarray(vectors, dtype=np.float64))
    width = rows.shape[1]
    if width < dimensions:
        raise EmbeddingFailed(
            f"the provider sent vectors {width} wide where the space has {dimensions} dimensions; "
            "set the space's dimensions to what the model gives, or name the right model"
        )
    if not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows).all(axis=1)))
        raise EmbeddingFailed(f"vector {row} of the reply holds a value that is not finite")
    fitted = _unit_rows(rows[:, :dimensions], "vector {row} of the reply")
    if np.ndim(vectors) == 1:
        return fitted.reshape(-1)
    return fitted


def _unit_rows(rows: NDArray[np.float64], name: str) -> FloatVectors:
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    unusable = ~np.isfinite(largest[:, 0]) | (largest[:, 0] == 0)
    if unusable.any():
        row = int(np.argmax(unusable))
        raise EmbeddingFailed(
            f"{name.format(row=row)} has no direction: its norm is zero or not finite"
        )
    # Scaled by the largest component first, so that no square over- or underflows.
    scaled = rows / largest
    unit: NDArray[np.float64] = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    return unit.astype(np.float32)


_LETTERS_AND_SPACE = (string.ascii_letters + " ").encode()
_ASCII = bytes(range(128))


def estimate_tokens(text: str) -> int:
    """About how many tokens an embedding API will count in `text`; at least 1.

    0.3 per ASCII letter or space, 0.75 per other ASCII character, 0.5 per UTF-8 byte of anything
    else, rounded up: a first estimate without a tokenizer, to be corrected by the `usage` that
    replies report.
    """
    # A lone surrogate counts as its three bytes would.
    data = text.encode("utf-8", "surrogatepass")
    rest = data.translate(None, _LETTERS_AND_SPACE)
    foreign = len(rest.translate(None, _ASCII))
    letters = len(data) - len(rest)
    hundredths = 30 * letters + 75 * (len(rest) - foreign) + 50 * foreign
    return max(1, -(-hundredths // 100))
