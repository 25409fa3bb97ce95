"""Vectors of real texts by the real model, kept on disk: the model does some 50 texts a second."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tickmind.errors import ConfigurationError
from tickmind.local.embedding_server import load_model

__all__ = ["RealVectors", "real_vectors"]

_TOWNS = ("smallville", "smallville-zh")
_DIALOGUES = ("en", "cn")
#: Texts embedded, and kept, at once.
_BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RealVectors:
    """Of the towns' and the dialogues' distinct texts, and of what is asked about them:
    (n, 384) float32 each, unit length."""

    texts: NDArray[np.float32]
    queries: NDArray[np.float32]


def real_vectors(report: Callable[[str], None]) -> RealVectors:
    """Read from TICKMIND_BENCH_CACHE (a directory; by default a temporary one that stays), or
    computed and kept there. Raises ConfigurationError without the traces."""
    data = Path(os.environ.get("TICKMIND_DATA", "../shared/data"))
    if not data.is_dir():
        msg = f"no data in {data}: set TICKMIND_DATA to the folder of the traces"
        raise ConfigurationError(msg)
    kept = Path(
        os.environ.get("TICKMIND_BENCH_CACHE", Path(tempfile.gettempdir()) / "tickmind-bench-cache")
    )
    kept.mkdir(parents=True, exist_ok=True)
    texts = list(dict.fromkeys((*_of_towns(data), *_of_dialogues(data))))
    return RealVectors(
        texts=_embedded(texts, "passage", kept, report),
        queries=_embedded(list(dict.fromkeys(_asked(data))), "query", kept, report),
    )


def _of_towns(data: Path) -> Iterator[str]:
    for town in _TOWNS:
        for line in (data / town / "tick_ended.jsonl").read_text(encoding="utf-8").splitlines():
            for decision in json.loads(line)["decisions"]:
                if decision["action"] == "talk":
                    yield f"I said: {decision['speech']}"
                    if decision.get("heard_by"):
                        yield f"{decision['agent']} told me: {decision['speech']}"
                elif decision["action"] == "move":
                    x, y = decision["target"][:2]
                    yield f"I moved to ({x}, {y}), {decision.get('place')}"


def _of_dialogues(data: Path) -> Iterator[str]:
    for language in _DIALOGUES:
        path = data / "memorybank" / f"memory_bank_{language}.json"
        for user in json.loads(path.read_text(encoding="utf-8")).values():
            for day in user["history"].values():
                for turn in day:
                    yield from (turn[side] for side in ("query", "response") if turn.get(side))


def _asked(data: Path) -> Iterator[str]:
    path = data / "smallville-zh" / "summary_qrels.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)["query"]
    path = data / "memorybank" / "memorybank_qrels.json"
    for question in json.loads(path.read_text(encoding="utf-8"))["queries"]:
        yield from (question[name] for name in ("q_zh", "q_en") if question[name])


def _embedded(
    texts: Sequence[str], side: str, kept: Path, report: Callable[[str], None]
) -> NDArray[np.float32]:
    """(n, 384), from the disk where all of it is there; else what is missing is computed."""
    digest = hashlib.blake2b("\0".join((side, *texts)).encode(), digest_size=16).hexdigest()
    whole = kept / f"{digest}.npy"
    if whole.exists():
        found: NDArray[np.float32] = np.load(whole)
        return found
    model = load_model()
    parts = []
    for first in range(0, len(texts), _BATCH):
        part = kept / f"{digest}-{first}.npy"
        if not part.exists():
            batch = list(texts[first : first + _BATCH])
            vectors = model.query(batch) if side == "query" else model.passage(batch)
            with part.with_suffix(".new").open("wb") as file:
                np.save(file, np.asarray(vectors, dtype=np.float32))
            part.with_suffix(".new").rename(part)
            report(f"{first + len(batch)} of {len(texts)} texts embedded")
        parts.append(part)
    vectors = np.concatenate([np.load(part) for part in parts])
    with whole.with_suffix(".new").open("wb") as file:
        np.save(file, vectors)
    whole.with_suffix(".new").rename(whole)
    for part in parts:
        part.unlink()
    return vectors
