"""POST /v1/embeddings: read, refuse or embed, bill, answer."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tickmind.local.provider.answers import Answer, answer_body
from tickmind.local.provider.delivery import Cut, Dripped
from tickmind.local.provider.faults import (
    Asked,
    Drip,
    Fault,
    Hang,
    Outage,
    RefuseParameter,
    Status,
    Throttle,
    Truncate,
)
from tickmind.local.provider.limits import DAY_S, Admission
from tickmind.local.provider.refusals import Refusal, refuse, throttle
from tickmind.local.provider.state import ProviderState
from tickmind.local.provider.tokens import count_tokens, cut_to_tokens
from tickmind.local.provider.validation import Refused, check_request, read_request, too_large
from tickmind.local.provider.vectors import hash_embed_many

__all__ = ["EmbeddingsEndpoint"]

# The model named in answers where neither the request nor the options name one.
_UNNAMED_MODEL = "test-embedding"


class EmbeddingsEndpoint:
    """The endpoint as an ASGI application. One call, one entry in the ledger, whatever happens."""

    def __init__(self, state: ProviderState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        ledger = self._state.ledger
        number = ledger.begin()
        status: int | None = None
        delivered = False
        try:
            response = await self._respond(number, request)
            delivered = not await request.is_disconnected()
            if isinstance(response, Cut) and response.share is None:
                delivered = False
            else:
                status = response.status_code
            await response(scope, receive, send)
            if isinstance(response, Cut) or (isinstance(response, Dripped) and response.gave_up):
                delivered = False
        except ClientDisconnect:
            # Gone in the middle of its own body: there is nobody to answer.
            delivered = False
        finally:
            ledger.finish(number, status=status, delivered=delivered)

    async def _respond(self, number: int, request: Request) -> Response:
        state, ledger = self._state, self._state.ledger
        raw = await request.body()
        payload, asked = read_request(raw)
        ledger.note_asked(number, asked)
        fault = state.faults.choose(asked)
        if fault is not None:
            ledger.note_fault(number, fault.kind, down=isinstance(fault, Outage))
        match fault:
            case Outage(how="reset"):
                return Cut(state.abort, body=b"", share=None, reset=True)
            case Outage():
                return self._refused(number, refuse(Status(code=503)))
            case Status():
                return self._refused(number, refuse(fault))
            case Throttle():
                return self._refused(number, throttle(fault, model=self._model(asked)))
            case RefuseParameter(parameter=parameter):
                return self._refused(number, self._error(_unsupported(parameter)))
        try:
            too_large(raw, state.options)
            check_request(payload, request.headers, state.options)
        except Refused as refused:
            return self._refused(number, self._error(refused))
        texts, tokens = self._measured(asked.texts)
        admission = state.limiter.admit(texts=len(texts), tokens=tokens)
        if not admission.admitted:
            return self._refused(number, self._over_limit(admission, asked), rejected=True)
        body = self._embedded(number, asked, texts, tokens, fault)
        if isinstance(fault, Hang):
            await self._hang(number, request, fault)
        return await self._answered(body, fault)

    def _embedded(
        self, number: int, asked: Asked, texts: list[str], tokens: int, fault: Fault | None
    ) -> bytes:
        """Embed and bill; the body of the answer."""
        options = self._state.options
        body = answer_body(
            Answer(
                vectors=self._vectors(texts, asked.dimensions),
                as_base64=self._as_base64(asked.encoding_format),
                model=self._model(asked),
                tokens=tokens if options.reports_usage else None,
                omits_index_zero=options.omits_index_zero,
            ),
            fault,
        )
        self._state.ledger.note_billed(number, tokens)
        return body

    async def _hang(self, number: int, request: Request, fault: Hang) -> None:
        """Wait as long as the fault says, noting at once if the caller leaves."""

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self._state.ledger.note_gone(number)

        watching = asyncio.create_task(watch())
        try:
            await self._state.faults.pause(fault.seconds)
        finally:
            watching.cancel()

    async def _answered(self, body: bytes, fault: Fault | None) -> Response:
        """The answer, after the time this provider takes."""
        options = self._state.options
        latency_s = options.latency_s + self._state.random.random() * options.latency_jitter_s
        if latency_s > 0:
            await asyncio.sleep(latency_s)
        match fault:
            case Truncate(share=share, how=how):
                return Cut(self._state.abort, body=body, share=share, reset=how == "reset")
            case Drip(seconds=seconds, chunks=chunks):
                return Dripped(body, seconds=seconds, chunks=chunks, pause=self._state.faults.pause)
            case _:
                return Response(body, media_type="application/json")

    def _measured(self, sent: tuple[str, ...]) -> tuple[list[str], int]:
        """The texts as this provider embeds them, and their tokens."""
        options = self._state.options
        texts = list(sent)
        if options.max_tokens_per_text is not None and options.over_length == "cut":
            texts = [cut_to_tokens(text, options.max_tokens_per_text) for text in texts]
        return texts, sum(map(count_tokens, texts))

    def _vectors(self, texts: list[str], dimensions: int | None) -> NDArray[np.float32]:
        """`(n, d) float32`: the start of the native vectors, to unit length where promised."""
        options = self._state.options
        width = dimensions or options.dimensions or options.native_width
        if options.normalises_cut or width == options.native_width:
            return hash_embed_many(texts, width)
        return hash_embed_many(texts, options.native_width)[:, :width]

    def _as_base64(self, encoding_format: str | None) -> bool:
        if encoding_format is None:
            return "float" not in self._state.options.encodings
        return encoding_format == "base64"

    def _model(self, asked: Asked) -> str:
        return asked.model or self._state.options.model or _UNNAMED_MODEL

    def _error(self, refused: Refused) -> Refusal:
        shape = self._state.options.error_body
        return refuse(Status(code=refused.status, body=shape, message=str(refused)))

    def _over_limit(self, admission: Admission, asked: Asked) -> Refusal:
        """The 429 of the provider's own limits, which tells the true wait."""
        style = self._state.options.throttle
        limit = admission.limit
        assert limit is not None
        wait_s = admission.wait_s
        if math.isinf(wait_s):
            wait_s = limit.window_s * self._state.options.time_scale
        quota = style.quota
        if quota != "insufficient":
            quota = "day" if limit.window_s >= DAY_S else "minute"
        return throttle(replace(style, retry_after_s=wait_s, quota=quota), model=self._model(asked))

    def _refused(self, number: int, refusal: Refusal, *, rejected: bool = False) -> Response:
        self._state.ledger.note_refused(
            number, retry_after_s=refusal.retry_after_s, rejected=rejected
        )
        headers: Mapping[str, str] = {**refusal.headers, "content-type": refusal.media_type}
        return Response(refusal.body, status_code=refusal.status, headers=dict(headers))


def _unsupported(parameter: str) -> Refused:
    if parameter == "dimensions":
        return Refused(400, "This model does not support the parameter 'dimensions'.")
    return Refused(400, f"Unsupported value of 'encoding_format': {json.dumps(parameter)}.")
