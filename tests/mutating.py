"""Inputs for the fuzzers: sound ones, bent in every way, the same again from the same seed.

An input is known by its seed and number: `TICKMIND_FUZZ_SEED=7 ./dev test FILE` makes the same
ones. What breaks a test is kept in a file that the failure names.
"""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.nasty import DEEP, KEYS, VALUES, Fields, Raw, dumps, parsed

__all__ = ["Fuzzing", "Mutated", "Mutator", "blamed"]

#: Of what broke a test so much is shown.
_SHOWN_BYTES = 2000
_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzing:
    """How much is tried: `factor` times what belongs to every change; `seed`: of what is drawn."""

    seed: str
    factor: int

    def inputs(self, seeds: Sequence[bytes], number: int) -> Iterator[Mutated]:
        """`factor` times so many inputs made of these seeds."""
        return Mutator(seeds, self.seed).inputs(number * self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutated:
    """One input; `how` it was made of which seed's `number`."""

    seed: str
    number: int
    how: str
    body: bytes

    def __str__(self) -> str:
        return f"input {self.number} of seed {self.seed} ({self.how})"


@contextmanager
def blamed(mutated: Mutated) -> Iterator[None]:
    """Tell which input it was that broke the block, and keep it."""
    try:
        yield
    except Exception as exc:
        kept = Path(tempfile.gettempdir()) / f"tickmind-fuzz-{mutated.seed}-{mutated.number}"
        kept.write_bytes(mutated.body)
        shown = repr(mutated.body[:_SHOWN_BYTES])
        more = "…" if len(mutated.body) > _SHOWN_BYTES else ""
        msg = f"{type(exc).__name__}: {exc}\n{mutated}, kept in {kept}:\n{shown}{more}"
        raise AssertionError(msg) from exc


class Mutator:
    """`seeds`: sound inputs and bad ones, JSON or not; `seed`: of the numbers drawn."""

    def __init__(self, seeds: Sequence[bytes], seed: str) -> None:
        self._seeds = [bytes(each) for each in seeds]
        self._seed = seed

    def inputs(self, number: int, *, first: int = 0) -> Iterator[Mutated]:
        """So many inputs, each from its own number alone."""
        for place in range(first, first + number):
            yield self.make(place)

    def make(self, number: int) -> Mutated:
        rng = random.Random(f"{self._seed}:{number}")
        body = rng.choice(self._seeds)
        kind = rng.random()
        if kind < 0.70:
            body, how = self._structural(rng, body)
        elif kind < 0.95:
            body, how = self._bytewise(rng, body)
        else:
            body, structural = self._structural(rng, body)
            body, bytewise = self._bytewise(rng, body)
            how = f"{structural}, {bytewise}"
        return Mutated(seed=self._seed, number=number, how=how, body=body)

    def _structural(self, rng: random.Random, body: bytes) -> tuple[bytes, str]:
        value = parsed(body)
        if value is None:
            return self._bytewise(rng, body)
        done = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            value, name = bend(rng, value, [parsed(rng.choice(self._seeds))])
            done.append(name)
        return dumps(value), ", ".join(done)

    def _bytewise(self, rng: random.Random, body: bytes) -> tuple[bytes, str]:
        change = rng.choice(_BYTEWISE)
        return change(rng, body, rng.choice(self._seeds)), change.__name__.strip("_")


def bend(rng: random.Random, value: Any, others: Sequence[Any]) -> tuple[Any, str]:
    """The value with one thing changed somewhere in it, and what that was. `others`: from which
    parts may be taken."""
    box = [value]
    holder, place = _somewhere(rng, box)
    change = rng.choice(_STRUCTURAL)
    change(rng, holder, place, others)
    return (box[0] if box else None), change.__name__.strip("_")


def _somewhere(rng: random.Random, box: list[Any]) -> tuple[Any, int]:
    """A list or object, and one place in it."""
    holder: Any = box
    place = 0
    while True:
        item = _get(holder, place)
        if not isinstance(item, list) or not item or rng.random() < 0.25:
            return holder, place
        holder, place = item, rng.randrange(len(item))


def _get(holder: Any, place: int) -> Any:
    return holder[place][1] if isinstance(holder, Fields) else holder[place]


def _set(holder: Any, place: int, value: Any) -> None:
    holder[place] = (holder[place][0], value) if isinstance(holder, Fields) else value


def _part(rng: random.Random, others: Sequence[Any]) -> Any:
    value = rng.choice(list(others))
    if value is None:
        return _odd(rng)
    holder, place = _somewhere(rng, [value])
    return _get(holder, place)


def _copied(value: Any) -> Any:
    """Of its own, so that a later change does not happen in two places, or in itself."""
    return copy.deepcopy(value) if isinstance(value, list) else value


def _odd(rng: random.Random) -> Any:
    return _copied(rng.choice(VALUES))


# Structural: (rng, holder, place, others), changes the holder.


def _replaced(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    _set(holder, place, _odd(rng))


def _deleted(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    del holder[place]


def _doubled(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    again = rng.choice([_copied(_get(holder, place)), _odd(rng)])
    if isinstance(holder, Fields):
        holder.insert(rng.randint(0, len(holder)), (holder[place][0], again))
    else:
        holder.insert(rng.randint(0, len(holder)), again)


def _swapped(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    other = rng.randrange(len(holder))
    one, two = _get(holder, place), _get(holder, other)
    _set(holder, place, two)
    _set(holder, other, one)


def _retagged(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    if isinstance(holder, Fields):
        holder[place] = (rng.choice(KEYS), holder[place][1])
    else:
        holder[place] = Fields([(rng.choice(KEYS), holder[place])])


def _added(rng: random.Random, holder: Any, place: int, others: Sequence[Any]) -> None:
    value = rng.choice([_odd(rng), _copied(_part(rng, others))])
    if isinstance(holder, Fields):
        holder.insert(place, (rng.choice(KEYS), value))
    else:
        holder.insert(place, value)


def _nested(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    levels = rng.choice((1, 1, 2, 3, 50))
    value = _get(holder, place)
    for _level in range(levels):
        value = [value] if rng.random() < 0.5 else Fields([(rng.choice(KEYS), value)])
    _set(holder, place, value)


def _buried(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    _set(holder, place, rng.choice(DEEP))


def _spliced(rng: random.Random, holder: Any, place: int, others: Sequence[Any]) -> None:
    _set(holder, place, _copied(_part(rng, others)))


def _texted(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    """What it is as a text, or a text as what it might be."""
    value = _get(holder, place)
    if isinstance(value, str) and not isinstance(value, Raw):
        _set(holder, place, Raw(value) if value.isdecimal() else [value])
    else:
        _set(holder, place, dumps(value).decode(errors="replace"))


def _stretched(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    value = _get(holder, place)
    times = rng.choice((2, 10, 200, 3000))
    if isinstance(value, str) and not isinstance(value, Raw):
        _set(holder, place, (value + rng.choice(("", " ", "\n", "é")))[:200] * times)
    elif isinstance(value, list) and not isinstance(value, Fields) and len(dumps(value)) < 5000:
        _set(holder, place, [_copied(item) for _ in range(min(times, 20)) for item in value])
    else:
        _set(holder, place, [_copied(value) for _ in range(3)])


def _perforated(rng: random.Random, holder: Any, place: int, _: Sequence[Any]) -> None:
    """A text with something odd inside."""
    value = _get(holder, place)
    if not isinstance(value, str) or isinstance(value, Raw):
        value = "text"
    at = rng.randint(0, len(value))
    odd = rng.choice(("\x00", "\ud800", "\udfff", "\ud83d\x00\ude00", "\u202e", "\ufeff", "\n\n- "))
    _set(holder, place, value[:at] + odd + value[at:])


_Structural = Callable[[random.Random, Any, int, Sequence[Any]], None]
_STRUCTURAL: tuple[_Structural, ...] = (
    *(_replaced, _replaced, _replaced, _deleted, _deleted, _doubled, _swapped, _retagged),
    *(_added, _added, _nested, _buried, _spliced, _texted, _stretched, _perforated, _perforated),
)


# Bytewise: (rng, body, another body), gives a new body.


def _flipped(rng: random.Random, body: bytes, _: bytes) -> bytes:
    changed = bytearray(body or b"\0")
    for _bit in range(rng.choice((1, 1, 2, 8, 64))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwritten(rng: random.Random, body: bytes, _: bytes) -> bytes:
    at = rng.randint(0, len(body))
    return body[:at] + rng.randbytes(rng.randint(1, 12)) + body[at + rng.randint(0, 12) :]


def _cut(rng: random.Random, body: bytes, _: bytes) -> bytes:
    return body[: rng.randint(0, len(body))]


def _beheaded(rng: random.Random, body: bytes, _: bytes) -> bytes:
    return body[rng.randint(0, len(body)) :]


def _holed(rng: random.Random, body: bytes, _: bytes) -> bytes:
    at = rng.randint(0, len(body))
    return body[:at] + body[at + rng.randint(1, 40) :]


def _crossed(rng: random.Random, body: bytes, other: bytes) -> bytes:
    return body[: rng.randint(0, len(body))] + other[rng.randint(0, len(other)) :]


def _joined(rng: random.Random, body: bytes, other: bytes) -> bytes:
    return body + rng.choice((b"", b"\n", b",", b" ")) + other


def _marked(rng: random.Random, body: bytes, _: bytes) -> bytes:
    mark = rng.choice(
        (b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf", b"\0", b"\xff\xfe", b"\x1f\x8b")
    )
    return mark + body


def _recoded(rng: random.Random, body: bytes, _: bytes) -> bytes:
    text = body.decode(errors="replace")
    return text.encode(
        rng.choice(("utf-16", "utf-16-le", "utf-32", "latin-1", "gbk", "utf-7")), "replace"
    )


def _trailed(rng: random.Random, body: bytes, _: bytes) -> bytes:
    return body + rng.choice((b"\0", b"}", b"]", b"garbage", b"\n\n", b"\xff", b"//", b"\x00\x00"))


def _filled(rng: random.Random, body: bytes, _: bytes) -> bytes:
    """Up to, or just beyond, the largest body there may be; rarely, since it is large."""
    if rng.random() < 0.9:
        return _flipped(rng, body, b"")
    return body + b" " * (_MEBIBYTE + rng.choice((-1, 0, 1)) - len(body))


def _other(rng: random.Random, _: bytes, __: bytes) -> bytes:
    """Nothing like it."""
    return rng.choice(
        (b"", b" ", b"\0", b"null", b"true", b"1", b'"text"', b"[]", b"{}", b"[1, 2", b"NaN", b"-",
         b"<html><body>502 Bad Gateway</body></html>", b"data: {}\n\n", rng.randbytes(40))
    )  # fmt: skip


_Bytewise = Callable[[random.Random, bytes, bytes], bytes]
_BYTEWISE: tuple[_Bytewise, ...] = (
    *(_flipped, _flipped, _overwritten, _overwritten, _cut, _cut, _beheaded, _holed, _crossed),
    *(_joined, _marked, _recoded, _trailed, _filled, _other),
)
