"""What the fuzzers begin with: real traces where they are, and messages written to be difficult."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["ANSWERS", "RECALLS", "REFUSALS", "REPLIES", "TICKS", "recorded_ticks"]

_TOWNS = ("smallville", "smallville-zh")


def recorded_ticks(data: Path, number: int) -> list[bytes]:
    """So many ticks of real towns, the same every time; those with talk more often than not."""
    rng = random.Random("corpus")
    lines: list[bytes] = []
    for town in _TOWNS:
        found = (data / town / "tick_ended.jsonl").read_bytes().splitlines()
        talks = [line for line in found if b'"talk"' in line]
        lines += rng.sample(talks, min(len(talks), number // 3))
        lines += rng.sample(found, number // 2 - number // 3)
    return lines


def _json(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value, ensure_ascii=False).encode() for value in values)


_TOLD = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}

TICKS: Sequence[bytes] = (
    *_json(
        {
            "world": "town-7",
            "tick": 42,
            "time": "2026-08-02T09:00:00Z",
            "decisions": [
                _TOLD | {"heard_by": ["alice", 17]},
                {"agent": 17, "action": "move", "target": [15, 8], "place": "market"},
                {"agent": "carol", "action": "stay"},
                {
                    "agent": "dan",
                    "action": "observe",
                    "text": "The bakery is on fire",
                    "importance": 9,
                    "core": False,
                    "event_id": "fire-1",
                },
            ],
        },
        {"world": 7, "tick": 0, "decisions": []},
        {"world": "w", "tick": 2**63 - 1, "decisions": [_TOLD] * 3},
        {
            "world": "界",
            "tick": 5,
            "decisions": [_TOLD | {"place": "鱼市"}, _TOLD | {"agent": "a"}],
        },
        {
            "world": "crowd",
            "tick": 1,
            "decisions": [_TOLD | {"heard_by": [f"agent-{n}" for n in range(70)]}],
        },
        {
            "world": "w",
            "tick": 9,
            "decisions": [
                {"agent": f"{n}", "action": "observe", "text": f"text {n}"} for n in range(40)
            ],
        },
        {"world": "w", "tick": 1, "decisions": [_TOLD, {"agent": "x"}, "talk", None, 5, []]},
        {"world": "w", "tick": 1, "decisions": [{"agent": "x", "action": "sing", "text": "la"}]},
    ),
    b'{"world": "w", "tick": 1, "decisions": [{"agent": "x", "action": "move", "target": [NaN]}]}',
    b'{"world": "w", "world": "v", "tick": 1, "tick": "1", "decisions": []}',
    b'\xef\xbb\xbf{"world": "w", "tick": 3, "decisions": [{"agent": "\\ud83d", "action": "talk", '
    b'"speech": "a\\u0000b\\ud83d\\u0000\\ude00"}]}',
    b'{"world": "w", "tick": 1, "decisions": [{"agent": "a", "action": "b", "text": "tab\there"}]}',
)

_ASKED = {"agent": "alice", "observation": "Alice walks past the market"}

RECALLS: Sequence[bytes] = _json(
    {"world": "town", "tick": 200, "queries": [_ASKED]},
    {
        "world": "town",
        "tick": 200,
        "queries": [_ASKED, {"agent": 17, "observation": "鱼在哪里？"}, _ASKED],
        "k": 5,
        "language": "zh",
        "deadline_ms": 800,
        "max_chars": 2000,
        "ranking": "blended",
        "weights": {"relevance": 1.0, "recency": 0.2, "importance": 0.2},
        "as_of_tick": None,
        "from_tick": 1,
        "to_tick": 200,
        "exclude_last_ticks": 2,
        "kinds": ["observation", "conversation"],
        "min_importance": 2,
        "distinct": "numbers",
        "max_core": 2,
        "fallback": "text",
        "explain": True,
    },
    {"world": "town", "tick": 1, "queries": [_ASKED], "ranking": "relevance", "k": 100},
    {
        "world": "town",
        "tick": 1,
        "queries": [_ASKED, "alice", None, {"agent": "x"}],
        "max_chars": 0,
    },
    {"world": 5, "tick": 2**63 - 1, "queries": [_ASKED] * 12, "wait_for_tick": 1, "wait_ms": 5},
)

_MEMORY = {
    "id": 1,
    "tick": 42,
    "kind": "conversation",
    "content": "bob told me",
    "importance": 8,
    "core": False,
    "score": 0.92,
    "relevance": 0.6,
    "recency": 0.8,
}

REPLIES: Sequence[bytes] = _json(
    {
        "world": "town",
        "tick": 200,
        "replies": [
            {
                "agent": "alice",
                "status": "ok",
                "reason": None,
                "detail": None,
                "fragment": "You remember:\n- bob told me",
                "memories": [_MEMORY],
                "explain": {"plan": "exact", "rows": 3, "scored": 3, "ms": {"rank": 1.5}},
            }
        ],
        "watermarks": {"recorded": 199, "embedded": 199},
        "reason": None,
        "detail": None,
    },
    {"reason": "invalid", "detail": "no"},
    {"world": "town", "tick": 1, "replies": [{"agent": "alice", "status": "empty"}] * 2},
)

ANSWERS: Sequence[bytes] = _json(
    {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.1, -0.2, 0.3, 0.4]},
            {"object": "embedding", "index": 1, "embedding": [1, 0, 0, 1e-3]},
            {"object": "embedding", "index": 2, "embedding": "AACAPwAAAEAAAEBAAACAQA=="},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    },
    {"data": [{"embedding": [0.5] * 8}, {"index": 2, "embedding": [0.5] * 8},
              {"index": 1, "embedding": [0.25] * 8}]},
    {"error": {"message": "no", "code": 429, "type": "rate_limit"}},
)  # fmt: skip

REFUSALS: Sequence[bytes] = _json(
    {"error": {"message": "at most 100 requests can be in one batch", "code": 400}},
    {"error": {"message": "batch size 40 > maximum allowed batch size 32", "type": "Validation"}},
    {"error": {"message": "This model does not support specifying dimensions", "param": None}},
    [
        {
            "error": {
                "code": 429,
                "details": [
                    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"},
                    {
                        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                        "violations": [{"quotaId": "EmbedContentRequestsPerDay"}],
                    },
                ],
            }
        }
    ],
    {"error": "overloaded", "error_type": "overloaded"},
    {"detail": [{"loc": ["body", "dimensions"], "type": "extra_forbidden"}]},
    {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}},
)
