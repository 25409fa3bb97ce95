"""The wire contracts, version 1: what engines publish and ask, and what they get back.

JSON in UTF-8 over AMQP 0-9-1; unknown fields are ignored, so either side may grow.
`tickmind asyncapi` publishes these models as schemas.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from tickmind.memory import MAX_TICK, Distinct

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_NAME_CHARS",
    "MAX_QUERIES",
    "AgentReply",
    "Decision",
    "Explained",
    "Name",
    "PlanName",
    "RecallEnvelope",
    "RecallQuery",
    "RecallReply",
    "RecallRequest",
    "RecalledMemory",
    "TickEnded",
    "TickEnvelope",
    "WatermarksOut",
    "WeightsIn",
]

#: Largest tick.ended or recall body, in bytes (1 MiB); the client splits larger ticks.
MAX_BODY_BYTES = 1024 * 1024

#: Most agents one recall request may ask for.
MAX_QUERIES = 1000

#: Longest name of a world, an agent or an event, in characters.
MAX_NAME_CHARS = 200


def _name(value: object) -> object:
    """An integer is its decimal digits, exactly; anything but a string or integer is refused."""
    if type(value) is int:
        # Python refuses to print integers of more than 4,300 digits; a name ends long before.
        if abs(value) >= 10**MAX_NAME_CHARS:
            msg = f"must have at most {MAX_NAME_CHARS} digits"
            raise ValueError(msg)
        return str(value)
    if isinstance(value, str):
        return value
    msg = "must be a string or an integer"
    raise ValueError(msg)


def _instant(value: object) -> object:
    """ISO 8601 text to an instant in UTC; a time without an offset is taken as UTC."""
    if value is None or isinstance(value, datetime):
        parsed = value
    elif isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            msg = "must be an ISO 8601 time such as 2026-08-02T09:00:00Z"
            raise ValueError(msg) from None
    else:
        msg = "must be an ISO 8601 time as text"
        raise ValueError(msg)
    if parsed is None:
        return None
    if parsed.tzinfo is None:
        return parsed.replace(tzinfo=UTC)
    try:
        return parsed.astimezone(UTC)
    except OverflowError:
        msg = "lies outside the years 1..9999 in UTC"
        raise ValueError(msg) from None


Name = Annotated[
    str,
    # Before the validator, so that a name's length is spoken of as a string's.
    Field(min_length=1, max_length=MAX_NAME_CHARS),
    BeforeValidator(_name),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS},
                {"type": "integer"},
            ]
        }
    ),
]
Tick = Annotated[int, Field(strict=True, ge=0, le=MAX_TICK)]
Instant = Annotated[
    AwareDatetime | None,
    BeforeValidator(_instant),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}),
]
Coordinate = (
    Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)]
)
Text = Annotated[str, Field(strict=True)]


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Decision(_Contract):
    """What one agent did in one tick."""

    agent: Name
    action: Annotated[str, Field(strict=True, min_length=1, max_length=100)]
    speech: Text | None = None
    text: Text | None = None
    target: Annotated[list[Coordinate], Field(min_length=2, max_length=3)] | None = None
    place: Annotated[str, Field(strict=True, max_length=500)] | None = None
    heard_by: Annotated[list[Name], Field(max_length=10_000)] | None = None
    importance: Annotated[int, Field(strict=True, ge=1, le=10)] | None = None
    core: Annotated[bool, Field(strict=True)] | None = None
    event_id: Name | None = None


class TickEnvelope(_Contract):
    """`tick.ended` v1. Each decision is checked by itself (see `Decision`), so that a bad one
    costs only itself."""

    world: Name
    tick: Tick
    time: Instant = None
    decisions: list[Any]


class TickEnded(_Contract):
    """`tick.ended` v1 as published: what the agents of one world did in one tick."""

    world: Name
    tick: Tick
    time: Instant = None
    decisions: list[Decision]


Weight = Annotated[float, Field(strict=True, ge=0, le=1000, allow_inf_nan=False)]


class WeightsIn(_Contract):
    """How much each term counts in a blended score; null: as the retriever's settings say."""

    relevance: Weight | None = None
    recency: Weight | None = None
    importance: Weight | None = None


class RecallQuery(_Contract):
    """One agent, and what it sees now."""

    agent: Name
    observation: Annotated[str, Field(strict=True, max_length=100_000)]


class _RecallOptions(_Contract):
    world: Name
    tick: Tick
    k: Annotated[int, Field(strict=True, ge=1, le=100)] = 5
    language: Literal["en", "zh", "ja"] = "en"
    deadline_ms: Annotated[int, Field(strict=True, ge=1, le=60_000)] = 800
    max_chars: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 2000
    ranking: Literal["relevance", "blended"] = "blended"
    weights: WeightsIn | None = None
    as_of_tick: Tick | None = None
    from_tick: Tick | None = None
    to_tick: Tick | None = None
    exclude_last_ticks: Tick | None = None
    kinds: Annotated[list[str], Field(max_length=100)] | None = None
    min_importance: Annotated[int, Field(strict=True, ge=1, le=10)] | None = None
    distinct: Distinct | None = None
    max_core: Annotated[int, Field(strict=True, ge=0, le=100)] | None = None
    fallback: Literal["none", "text"] = "none"
    wait_for_tick: Tick | None = None
    wait_until: Literal["recorded", "embedded"] = "recorded"
    wait_ms: Annotated[int, Field(strict=True, ge=0, le=60_000)] = 200
    explain: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _range(self) -> Self:
        first, last = self.from_tick, self.to_tick
        if first is not None and last is not None and first > last:
            msg = "from_tick must not be after to_tick"
            raise ValueError(msg)
        return self


class RecallEnvelope(_RecallOptions):
    """`recall` v1. Each query is checked by itself, so that a bad one costs only itself."""

    queries: Annotated[list[Any], Field(min_length=1, max_length=MAX_QUERIES)]


class RecallRequest(_RecallOptions):
    """`recall` v1 as sent: what do these agents remember about what they see?"""

    queries: Annotated[list[RecallQuery], Field(min_length=1, max_length=MAX_QUERIES)]


class RecalledMemory(_Contract):
    """One memory that came back, and why: `score` is what the order follows, core memories first.

    `relevance` is 0 where the observation had no vector (status `degraded`).
    """

    id: int
    tick: int
    kind: str
    content: str
    importance: int
    core: bool = False
    score: float
    relevance: float
    recency: float


#: All of an agent's memories scored, its signatures compared first, or an index of its own asked.
PlanName = Literal["exact", "signatures", "hnsw"]


class Explained(_Contract):
    """How one query was ranked. `rows`: the agent's memories that have a vector; `scored`: how many
    of them were scored exactly, at most; `ms`: milliseconds by step."""

    plan: PlanName
    rows: int
    scored: int
    ms: dict[str, float]


class AgentReply(_Contract):
    """The answer for one query, in the order of the request.

    `reason` is null where the agent simply remembers nothing; else it names the fault.
    """

    agent: str
    status: Literal["ok", "empty", "degraded"]
    reason: str | None = None
    detail: str | None = None
    fragment: str = ""
    memories: list[RecalledMemory] = []
    explain: Explained | None = None


class WatermarksOut(_Contract):
    """Highest tick recorded, and highest tick up to which everything is embedded or parked."""

    recorded: int | None = None
    embedded: int | None = None


class RecallReply(_Contract):
    """`recall` v1, the answer. `reason` is set where the request as a whole failed."""

    world: str | None = None
    tick: int | None = None
    replies: list[AgentReply] = []
    watermarks: WatermarksOut = WatermarksOut()
    reason: str | None = None
    detail: str | None = None
