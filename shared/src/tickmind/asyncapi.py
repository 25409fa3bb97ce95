"""The wire contracts as an AsyncAPI 3.0 document, built from the models that check them.

Pure: what `tickmind asyncapi` prints. Written from the services' side, as AsyncAPI asks: they
receive ticks and answer recalls; an engine does the opposite.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from tickmind.messages import (
    MAX_BODY_BYTES,
    MAX_NAME_CHARS,
    MAX_QUERIES,
    RecallReply,
    RecallRequest,
    TickEnded,
)
from tickmind.telemetry import SENT_AT
from tickmind.topology import (
    EVENTS,
    MAX_KEY_BYTES,
    RECALL_QUEUE,
    RECORDER_QUEUE,
    TICK_ENDED_PATTERN,
    TICK_ENDED_PREFIX,
    Queue,
)

__all__ = ["document"]

_TITLE = "tickmind"

_ABOUT = f"""\
Long-term memory for multi-agent simulations, over AMQP 0-9-1 (RabbitMQ).

An engine publishes `tick.ended` at the end of each tick and asks `recall` before an agent decides.
Bodies are JSON in UTF-8, at most {MAX_BODY_BYTES} bytes; unknown fields are ignored. A message or
a single decision that breaks the contract is kept with its reason, and the rest is stored.

An event is one memory, however often it is delivered: it is known by its `event_id` within world,
tick and agent, or else by what was decided and its place among identical decisions of one message.
"""

_HEADERS = {
    "type": "object",
    "properties": {
        "traceparent": {
            "type": "string",
            "description": "W3C Trace Context: the trace that the message belongs to.",
            "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
        },
        SENT_AT: {
            "type": "integer",
            "description": "The sender's clock in milliseconds since 1970-01-01T00:00:00Z. In a"
            " recall the deadline counts from here.",
            "minimum": 0,
        },
    },
}

_TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_SENT = {"traceparent": _TRACEPARENT, SENT_AT: 1785661200000}
_ANSWERED = {SENT_AT: 1785661200042}

_TICK_EXAMPLE: dict[str, Any] = {
    "world": "town-7",
    "tick": 42,
    "time": "2026-08-02T09:00:00Z",
    "decisions": [
        {
            "agent": "bob",
            "action": "talk",
            "speech": "The market sells fresh fish",
            "heard_by": ["alice"],
        },
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
}
_REQUEST_EXAMPLE: dict[str, Any] = {
    "world": "town-7",
    "tick": 200,
    "queries": [{"agent": "alice", "observation": "Alice walks past the market"}],
    "k": 5,
    "language": "en",
    "deadline_ms": 800,
    "max_chars": 2000,
    "ranking": "blended",
    "weights": {"relevance": 1.0, "recency": 0.1, "importance": 0.2},
}
_REPLY_EXAMPLE: dict[str, Any] = {
    "world": "town-7",
    "tick": 200,
    "replies": [
        {
            "agent": "alice",
            "status": "ok",
            "reason": None,
            "detail": None,
            "fragment": "You remember:\n- bob told me: The market sells fresh fish",
            "memories": [
                {
                    "id": 1,
                    "tick": 42,
                    "kind": "conversation",
                    "content": "bob told me: The market sells fresh fish",
                    "importance": 8,
                    "core": False,
                    "score": 0.92,
                    "relevance": 0.6,
                    "recency": 0.8,
                }
            ],
            "explain": None,
        }
    ],
    "watermarks": {"recorded": 199, "embedded": 199},
    "reason": None,
    "detail": None,
}
_LATE_EXAMPLE: dict[str, Any] = {
    "world": "town-7",
    "tick": 200,
    "replies": [
        {
            "agent": "alice",
            "status": "empty",
            "reason": "deadline",
            "detail": None,
            "fragment": "",
            "memories": [],
            "explain": None,
        }
    ],
    "watermarks": {"recorded": None, "embedded": None},
    "reason": None,
    "detail": None,
}


def document() -> dict[str, Any]:
    """The whole document, plain JSON values in the order a reader wants them."""
    return {
        "asyncapi": "3.0.0",
        "id": "urn:tickmind:v1",
        "info": {
            "title": _TITLE,
            "version": version(_TITLE),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "broker": {
                "host": "localhost:5672",
                "protocol": "amqp",
                "protocolVersion": "0-9-1",
                "description": "Wherever TICKMIND_AMQP_URL says; amqps with TLS.",
            }
        },
        "channels": {
            "tickEnded": _tick_channel(),
            "recall": _queue_channel(RECALL_QUEUE, "recallRequest", _RECALL_ABOUT),
            "recallReply": {
                "address": None,
                "title": "Where the answer goes",
                "description": "The queue named by the request's `reply_to`; RabbitMQ's direct"
                " reply-to (`amq.rabbitmq.reply-to`) is the cheapest.",
                "messages": {"recallReply": _ref("messages", "recallReply")},
            },
        },
        "operations": {
            "recordTick": {
                "action": "receive",
                "channel": _channel("tickEnded"),
                "title": "Remember what happened",
                "summary": "Grade each decision and store it as memories of all concerned.",
                "messages": [{"$ref": "#/channels/tickEnded/messages/tickEnded"}],
                "bindings": {"amqp": {"ack": True, "bindingVersion": "0.3.0"}},
            },
            "answerRecall": {
                "action": "receive",
                "channel": _channel("recall"),
                "title": "Answer what agents remember",
                "summary": "Rank each agent's memories by what it sees, before the deadline.",
                "messages": [{"$ref": "#/channels/recall/messages/recallRequest"}],
                "reply": {
                    "address": {
                        "location": "$message.header#/reply_to",
                        "description": "AMQP property reply-to of the request.",
                    },
                    "channel": _channel("recallReply"),
                    "messages": [{"$ref": "#/channels/recallReply/messages/recallReply"}],
                },
            },
        },
        "components": {
            "messages": _messages(),
            "correlationIds": {
                "recall": {
                    "location": "$message.header#/correlation_id",
                    "description": "AMQP property correlation-id: the reply carries the request's.",
                }
            },
            "schemas": _schemas(),
        },
    }


_RECALL_ABOUT = (
    f"All agents of a tick go in one request, up to {MAX_QUERIES}. Published to the default"
    " exchange with this queue's name as routing key, and AMQP properties reply-to, correlation-id"
    " and expiration: the remaining budget in milliseconds, as text. A request that waited longer"
    " is dropped and never answered late."
)


def _tick_channel() -> dict[str, Any]:
    queue = {
        "name": RECORDER_QUEUE.name,
        "durable": True,
        "arguments": dict(RECORDER_QUEUE.arguments),
        "bindingKey": TICK_ENDED_PATTERN,
    }
    return {
        "address": TICK_ENDED_PREFIX + "{world}",
        "title": "Ticks of one world",
        "description": f"Routing key on the exchange {EVENTS.name}. Publish persistent and wait"
        " for the confirmation; publishing the same again is safe. One message holds one decision"
        " or a whole tick.",
        "parameters": {
            "world": {
                "description": "The world's name, percent-encoded, dots and tildes too, cut so"
                f" that the routing key has at most {MAX_KEY_BYTES} bytes. It only routes: the body"
                f" names the world, in at most {MAX_NAME_CHARS} characters."
            }
        },
        "messages": {"tickEnded": _ref("messages", "tickEnded")},
        "bindings": {
            "amqp": {
                "is": "routingKey",
                "exchange": {
                    "name": EVENTS.name,
                    "type": EVENTS.type,
                    "durable": EVENTS.durable,
                    "autoDelete": False,
                    "vhost": "/",
                },
                "bindingVersion": "0.3.0",
            }
        },
        # The specification has no place for the queue behind an exchange, nor for its arguments.
        "x-bound-queue": queue,
    }


def _queue_channel(queue: Queue, message: str, description: str) -> dict[str, Any]:
    return {
        "address": queue.name,
        "title": "Questions",
        "description": description,
        "messages": {message: _ref("messages", message)},
        "bindings": {
            "amqp": {
                "is": "queue",
                "queue": {
                    "name": queue.name,
                    "durable": True,
                    "exclusive": False,
                    "autoDelete": False,
                    "vhost": "/",
                },
                "bindingVersion": "0.3.0",
            }
        },
        "x-queue-arguments": dict(queue.arguments),
    }


def _messages() -> dict[str, Any]:
    correlated = {"correlationId": _ref("correlationIds", "recall")}
    return {
        "tickEnded": {
            "name": "tick.ended",
            "title": "A tick ended",
            "summary": "What the agents of one world did in one tick.",
            "contentType": "application/json",
            "headers": _HEADERS,
            "payload": _ref("schemas", "TickEnded"),
            "examples": [
                {"name": "a whole tick", "headers": _SENT, "payload": _TICK_EXAMPLE},
            ],
        },
        "recallRequest": {
            "name": "recall",
            "title": "What do these agents remember?",
            "summary": "Each agent with what it sees now, and how to rank and word the answer.",
            "contentType": "application/json",
            **correlated,
            "headers": _HEADERS,
            "payload": _ref("schemas", "RecallRequest"),
            "examples": [
                {"name": "one agent", "headers": _SENT, "payload": _REQUEST_EXAMPLE},
            ],
        },
        "recallReply": {
            "name": "recall.reply",
            "title": "What they remember",
            "summary": "In the order of the queries: memories with their scores, and a fragment"
            " for the prompt. An empty one with a reason tells of an outage; without, the agent"
            " remembers nothing.",
            "contentType": "application/json",
            **correlated,
            "headers": _HEADERS,
            "payload": _ref("schemas", "RecallReply"),
            "examples": [
                {"name": "remembered", "headers": _ANSWERED, "payload": _REPLY_EXAMPLE},
                {"name": "too late", "headers": _ANSWERED, "payload": _LATE_EXAMPLE},
            ],
        },
    }


class _Schemas(GenerateJsonSchema):
    """What we send holds every field; in what is sent to us those with a default may be absent."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return self.mode == "serialization" or super().field_is_required(field, total)


def _schemas() -> dict[str, Any]:
    """Every model of the wire, by its name."""
    _, schema = models_json_schema(
        [(TickEnded, "validation"), (RecallRequest, "validation"), (RecallReply, "serialization")],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Schemas,
    )
    schemas: dict[str, Any] = schema["$defs"]
    return schemas


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _channel(name: str) -> dict[str, str]:
    return {"$ref": f"#/channels/{name}"}
