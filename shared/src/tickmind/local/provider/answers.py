"""The body of a successful answer, right or wrong in the way a fault asks for."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from tickmind.local.provider.faults import (
    BadIndex,
    BadVector,
    Fault,
    NoUsage,
    OneVector,
    OtherEncoding,
    Shuffled,
    WrongCount,
    WrongWidth,
)

__all__ = ["Answer", "answer_body"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What there is to say: `vectors` `(n, d) float32`, and how to write it.

    `tokens`: None leaves usage out.
    """

    vectors: NDArray[np.float32]
    as_base64: bool
    model: str
    tokens: int | None
    omits_index_zero: bool


def answer_body(answer: Answer, fault: Fault | None) -> bytes:
    """The answer as JSON; faults that are not about its content leave it right.

    Not-a-number and infinity are written as Python does (NaN, Infinity), which strict parsers
    refuse.
    """
    vectors: list[NDArray[np.float32]] = list(answer.vectors)
    if isinstance(fault, BadVector | WrongWidth):
        for position in _positions(fault.position, len(vectors)):
            vectors[position] = _spoiled(vectors[position], fault)
    as_base64 = answer.as_base64 != isinstance(fault, OtherEncoding)
    null_in = (
        set(_positions(fault.position, len(vectors)))
        if isinstance(fault, BadVector) and fault.how == "null"
        else set()
    )
    data = [
        {
            "object": "embedding",
            "index": position,
            "embedding": _written(vector, as_base64=as_base64, null=position in null_in),
        }
        for position, vector in enumerate(vectors)
    ]
    data = _arranged(data, fault)
    if answer.omits_index_zero:
        for item in data:
            if item.get("index") == 0:
                del item["index"]
    body: dict[str, object] = {"object": "list", "data": data, "model": answer.model}
    if answer.tokens is not None and not isinstance(fault, NoUsage):
        body["usage"] = {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens}
    return to_json(body, inf_nan_mode="constants")


def _positions(position: int | None, count: int) -> list[int]:
    """The one position, the last one where there are fewer; all where None."""
    return list(range(count)) if position is None else [min(position, count - 1)]


def _spoiled(vector: NDArray[np.float32], fault: BadVector | WrongWidth) -> NDArray[np.float32]:
    if isinstance(fault, WrongWidth):
        resized = np.zeros(fault.width, dtype=np.float32)
        kept = min(fault.width, len(vector))
        resized[:kept] = vector[:kept]
        return resized
    match fault.how:
        case "zero":
            return np.zeros_like(vector)
        case "unnormalised":
            return (vector * fault.scale).astype(np.float32)
        case "nan" | "null" | "infinity":
            spoiled = vector.copy()
            spoiled[0] = np.inf if fault.how == "infinity" else np.nan
            return spoiled


def _written(
    vector: NDArray[np.float32], *, as_base64: bool, null: bool
) -> str | list[float | None]:
    """Base64 of little-endian float32, or the numbers themselves."""
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    numbers: list[float | None] = vector.tolist()
    if null:
        numbers[0] = None
    return numbers


def _arranged(data: list[dict[str, Any]], fault: Fault | None) -> list[dict[str, Any]]:
    """The items after faults of number, order and index."""
    match fault:
        case WrongCount(by=by) if by < 0:
            return data[: max(0, len(data) + by)]
        case WrongCount(by=by):
            return data + [{**data[-1], "index": len(data) + extra} for extra in range(by)]
        case OneVector():
            return data[:1]
        case Shuffled(seed=seed):
            return _shuffled(data, random.Random(seed))
        case BadIndex(how=how, position=position):
            for place in _positions(position, len(data)):
                match how:
                    case "missing":
                        del data[place]["index"]
                    case "null":
                        data[place]["index"] = None
                    case "duplicate":
                        data[place]["index"] = (
                            (place + 1) % len(data) if position is not None else 0
                        )
                    case "foreign":
                        data[place]["index"] = len(data)
                    case "negative":
                        data[place]["index"] = -1
    return data


def _shuffled(data: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Another order than before (Sattolo's shuffle: no item keeps its place)."""
    shuffled = list(data)
    for last in range(len(shuffled) - 1, 0, -1):
        other = rng.randrange(last)
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    return shuffled
