"""MemoryClient: what an engine in Python needs. Publishes ticks, asks for memories.

    async with MemoryClient("amqp://guest:guest@localhost/") as memory:
        await memory.publish_tick("town-7", 42, [{"agent": "bob", "action": "move", ...}])
        answer = await memory.recall("town-7", "alice", "Alice walks past the market", tick=200)
        prompt += answer.fragment

Recalls never raise for an outage and never outlive their timeout; publishing returns a receipt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aio_pika
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractExchange,
    DeliveryMode,
)
from aio_pika.exceptions import DeliveryError, PublishError
from pydantic import SecretStr, ValidationError

from tickmind.connecting import BROKER_ERRORS, declare, losses_told, url_for
from tickmind.decoding import explain
from tickmind.encoding import listed, recall_body, recall_request, rejections, tick_bodies
from tickmind.link import Link
from tickmind.messages import RecallReply
from tickmind.rpc import Requests
from tickmind.settings import BrokerSettings, load
from tickmind.telemetry import log, outgoing_headers
from tickmind.topology import (
    EVENTS,
    RECALL_QUEUE,
    RECORDER_QUEUE,
    TICK_ENDED_PREFIX,
    tick_ended_key,
)
from tickmind.tracing import SpanKind, messaging, span

__all__ = ["Answer", "MemoryClient", "Receipt"]

_logger = logging.getLogger("tickmind.client")

#: A tick is sent this often within its timeout; each is the same event.
_ATTEMPTS = 5
#: Between two of them: at first; then twice as long each.
_AGAIN_S = 0.1
#: Waiting for the first connection before going on without: recalls are empty until it is there.
_FIRST_CONNECTION_S = 5.0
#: So many different reasons for which decisions will be rejected are logged.
_REJECTIONS_TOLD = 100
#: What there is to say of a reason that says too little for itself.
_DETAILS = {
    "timeout": "no answer from RabbitMQ or a retriever in time",
    "refused": "the recorder's queue is full: are recorders running, and is their database there?",
    "unroutable": "the recorder's queue is not there, and this user may not make it",
    "reply": "the reply cannot be read: is it a retriever who answers, of this version or newer?",
}
_TICKS = f"{EVENTS.name}:{TICK_ENDED_PREFIX}{{world}}"
_PUBLISHES = messaging("send", EVENTS.name) | {"messaging.destination.template": _TICKS}
_ASKS = messaging("send", RECALL_QUEUE.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of a published tick. Not confirmed: it may or may not have arrived; publish it
    again, which is safe.

    `reason`: why it is not confirmed: `connection` (there is none), `timeout` (no answer in time),
    `refused` (the recorder's queue is full), `unroutable` (it is not there and cannot be made).
    `detail`: the same for a person. `messages`: how many the tick took; `attempts`: how often
    they were sent.
    """

    confirmed: bool
    reason: str | None = None
    detail: str | None = None
    messages: int = 1
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an agent remembers. `fragment` goes into the prompt as it is, empty where nothing is.

    `status`: `ok`, `empty`, or `degraded`: what could be told without the observation's vector,
    where `fallback="text"` asked for that. `reason`: None where the agent simply remembers
    nothing; else what kept us from knowing: `timeout`, `connection`, or the retriever's own word
    (`deadline`, `embedding`, `database`, `invalid`). `detail`: the same for a person, of nothing
    remembered, too. `explain`: how it was ranked, where that was asked for.
    """

    agent: str
    status: str = "empty"
    reason: str | None = None
    detail: str | None = None
    fragment: str = ""
    memories: tuple[Mapping[str, Any], ...] = ()
    recorded_tick: int | None = None
    embedded_tick: int | None = None
    explain: Mapping[str, Any] | None = None


class MemoryClient:
    """Long-term memory for the agents of an engine.

    `url`: amqp(s)://user:password@host:5672/vhost; without one the TICKMIND_AMQP_* settings
    count. `ca_file`: PEM of an own CA for amqps. Raises ConfigurationError where they are wrong.
    """

    def __init__(self, url: str | None = None, *, ca_file: str | Path | None = None) -> None:
        given: dict[str, Any] = {}
        if url is not None:
            given["amqp_url"] = SecretStr(url)
        if ca_file is not None:
            given["amqp_ca_file"] = Path(ca_file)
        settings = load(BrokerSettings, **given)
        # A wrong URL or CA is told now, not at the first recall.
        url_for(settings, name="client")
        settings.broker_tls()
        self._fault: str | None = None
        self._rejections: set[str] = set()
        self._events = Link(
            settings, name="events", confirms=True, opened=_declare_events, told=self._told
        )
        self._recalls = Requests(settings, RECALL_QUEUE, name="recalls", told=self._told)

    async def __aenter__(self) -> Self:
        self._events.start()
        self._recalls.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_CONNECTION_S):
                await self._events.wait()
                await self._recalls.wait()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close both connections; calls still waiting come back empty."""
        await self._events.close()
        await self._recalls.close()

    async def publish_tick(
        self,
        world: str | int,
        tick: int,
        decisions: Iterable[Mapping[str, Any]],
        *,
        time: str | None = None,
        timeout_s: float = 10.0,
    ) -> Receipt:
        """Publish what the agents of `world` did in `tick`; may be repeated safely.

        Tried again within `timeout_s` until the broker confirms. Raises InvalidMessage for a
        world, tick or value that no message can hold; a decision the recorder cannot use is
        rejected there, and kept with its reason, which is logged here, once.
        """
        given = listed(decisions)
        bodies = tick_bodies(world, tick, given, time)
        self._warn(world, tick, rejections(given, bodies))
        attempts = 0
        reason: str | None = "connection"
        try:
            async with asyncio.timeout(timeout_s):
                while reason is not None and attempts < _ATTEMPTS:
                    if attempts:
                        await asyncio.sleep(_AGAIN_S * 2 ** (attempts - 1))
                    channel = await self._events.wait()
                    attempts += 1
                    reason = "timeout"  # what stands, should it come now
                    reason = await self._publish(channel, str(world), bodies)
        except TimeoutError:
            if self._events.channel is None:
                reason = "connection"
        except ConnectionError:  # closed for good
            reason = "connection"
        return Receipt(
            confirmed=reason is None,
            reason=reason,
            detail=self._detail(reason),
            messages=len(bodies),
            attempts=attempts,
        )

    def _told(self, fault: str | None) -> None:
        """What a connection fails of, or None once it is open; said once for both."""
        if fault is not None and fault != self._fault:
            log(_logger, logging.WARNING, "waiting", broker=fault)
        self._fault = fault

    def _warn(self, world: str | int, tick: int, rejections: Sequence[str]) -> None:
        for why in rejections:
            if why not in self._rejections and len(self._rejections) < _REJECTIONS_TOLD:
                self._rejections.add(why)
                log(_logger, logging.WARNING, "will_be_rejected", world=world, tick=tick, why=why)

    def _detail(self, reason: str | None) -> str | None:
        if reason == "connection":
            return self._fault or "RabbitMQ: not connected yet, or not any more"
        return _DETAILS.get(reason or "")

    async def _publish(
        self, channel: AbstractChannel, world: str, bodies: Sequence[bytes]
    ) -> str | None:
        """Why it is not confirmed; None: it is."""
        try:
            with losses_told():
                await _publish(channel, world, bodies)
        except PublishError:
            self._events.suspect(channel)  # the next one declares the queue again
            return "unroutable"
        except DeliveryError:
            return "refused"
        except BROKER_ERRORS:
            self._events.suspect(channel)
            return "connection"
        return None

    async def recall(
        self,
        world: str | int,
        agent: str | int,
        observation: str,
        *,
        tick: int,
        timeout_s: float = 0.8,
        **options: Any,
    ) -> Answer:
        """What `agent` remembers about what it sees; within `timeout_s`, whatever happens.

        `options`: the fields of a recall request (k, language, max_chars, ranking, weights,
        as_of_tick, from_tick, to_tick, exclude_last_ticks, kinds, min_importance, distinct,
        max_core, fallback, wait_for_tick, wait_until, wait_ms). Raises InvalidMessage where they
        are wrong.
        """
        answers = await self.recall_many(
            world, [(agent, observation)], tick=tick, timeout_s=timeout_s, **options
        )
        return answers[0]

    async def recall_many(
        self,
        world: str | int,
        queries: Sequence[tuple[str | int, str]],
        *,
        tick: int,
        timeout_s: float = 0.8,
        **options: Any,
    ) -> list[Answer]:
        """As `recall`, for many agents in one request: (agent, observation) each, in order."""
        if not queries:
            return []
        request = recall_request(world, queries, tick, timeout_s, options)
        body = recall_body(request)
        asking = f"publish {RECALL_QUEUE.name}"
        with span(asking, kind=SpanKind.CLIENT, attributes=_ASKS) as current:
            current.set_attribute("tickmind.queries", len(queries))
            reply, reason = await self._ask(body, timeout_s)
            if reason is not None:
                current.set_attribute("error.type", reason)
        if reply is None:
            detail = self._detail(reason)
            return [
                Answer(agent=query.agent, reason=reason, detail=detail) for query in request.queries
            ]
        if len(reply.replies) != len(request.queries):
            return [
                Answer(agent=query.agent, reason=reply.reason or "invalid", detail=reply.detail)
                for query in request.queries
            ]
        return [
            Answer(
                agent=answer.agent,
                status=answer.status,
                reason=answer.reason,
                detail=answer.detail,
                fragment=answer.fragment,
                memories=tuple(memory.model_dump() for memory in answer.memories),
                recorded_tick=reply.watermarks.recorded,
                embedded_tick=reply.watermarks.embedded,
                explain=answer.explain.model_dump() if answer.explain is not None else None,
            )
            for answer in reply.replies
        ]

    async def _ask(self, body: bytes, timeout_s: float) -> tuple[RecallReply | None, str | None]:
        """The reply, or None and why there is none."""
        try:
            answer = await self._recalls.ask(body, timeout_s=timeout_s)
        except TimeoutError:
            return None, "timeout"
        except ConnectionError:
            return None, "connection"
        try:
            return RecallReply.model_validate_json(answer), None
        except ValidationError as exc:
            log(_logger, logging.ERROR, "reply_unreadable", error=explain(exc))
            return None, "reply"


async def _declare_events(connection: AbstractConnection, _: AbstractChannel) -> None:
    """The recorder's queue, so that ticks published before any recorder ran are kept.

    A user without the right to declare goes on: the operator has declared it, then.
    """
    channel = await connection.channel()
    try:
        await declare(channel, RECORDER_QUEUE)
    except BROKER_ERRORS as exc:
        if connection.is_closed:
            raise
        log(_logger, logging.WARNING, "not_declared", error=type(exc).__name__)
    else:
        await channel.close()


async def _publish(channel: AbstractChannel, world: str, bodies: Sequence[bytes]) -> None:
    """Publish and wait for every confirmation. Raises one of BROKER_ERRORS."""
    exchange: AbstractExchange = await channel.get_exchange(EVENTS.name, ensure=False)
    key = tick_ended_key(world)
    with span(f"publish {_TICKS}", kind=SpanKind.PRODUCER, attributes=_PUBLISHES) as current:
        current.set_attribute("messaging.batch.message_count", len(bodies))
        headers = outgoing_headers()
        for body in bodies:
            message = aio_pika.Message(
                body,
                content_type="application/json",
                delivery_mode=DeliveryMode.PERSISTENT,
                headers=headers,
            )
            await exchange.publish(message, routing_key=key, mandatory=True)
