"""The local embedding server, counting the texts it is sent.

`GET /counted` tells how many inputs all requests so far had, answered or not.
"""

from __future__ import annotations

import argparse
import json

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tickmind.local.embedding_server import create_app, load_model
from tickmind.local.ports import LOOPBACK


class _Counted:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._texts = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/counted":
            await PlainTextResponse(str(self._texts))(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "POST":
            body = await Request(scope, receive).body()
            given = json.loads(body)["input"]
            self._texts += 1 if isinstance(given, str) else len(given)
            await self._app(scope, _Replayed(body, receive), send)
        else:
            await self._app(scope, receive, send)


class _Replayed:
    """A body that was read, once more; afterwards what still comes (a hang-up)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> dict[str, object]:
        if self._body is None:
            return dict(await self._receive())
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(
        _Counted(create_app(load_model())),
        host=LOOPBACK,
        port=parser.parse_args().port,
        access_log=False,
        log_level="warning",
    )
