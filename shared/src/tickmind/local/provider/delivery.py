"""Answers that reach the caller slowly, in part, or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["Abort", "Cut", "Dripped"]

#: Ends the caller's connection at once: `(client address, by reset instead of close)`.
Abort = Callable[[tuple[str, int], bool], None]


class Cut(Response):
    """An answer whose connection ends after `share` of the body; before the status where None."""

    media_type = "application/json"

    def __init__(self, abort: Abort, *, body: bytes, share: float | None, reset: bool) -> None:
        super().__init__(body)
        self.share = share
        self._abort = abort
        self._reset = reset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what may be sent, then end the connection."""
        if self.share is not None:
            await _start(self, send)
            part = bytes(self.body)[: int(len(self.body) * self.share)]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        self._abort(scope["client"], self._reset)


class Dripped(Response):
    """An answer whose body comes in `chunks` pieces spread over `seconds`.

    `gave_up`: the caller left before the last piece.
    """

    media_type = "application/json"

    def __init__(
        self,
        body: bytes,
        *,
        seconds: float,
        chunks: int,
        pause: Callable[[float | None], Awaitable[None]],
    ) -> None:
        super().__init__(body)
        self.gave_up = False
        self._step = -(-len(body) // chunks)
        self._pause_s = seconds / chunks
        self._pause = pause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces until all are sent or nobody is there."""
        await _start(self, send)
        request = Request(scope, receive)
        body = bytes(self.body)
        for start in range(0, len(body), self._step):
            await self._pause(self._pause_s)
            if await request.is_disconnected():
                self.gave_up = True
                return
            end = start + self._step
            await send(
                {
                    "type": "http.response.body",
                    "body": body[start:end],
                    "more_body": end < len(body),
                }
            )


async def _start(response: Response, send: Send) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
    )
