"""An HTTP client for APIs that may answer with anything: it reads no more than could be of use, and
goes nowhere else for it."""

from __future__ import annotations

from typing import Any

import httpx2
import openai

__all__ = ["AnswerTooLarge", "BoundedClient", "most_bytes"]

#: An answer is read no further than this for each text that one request may hold, and so much
#: besides: 256 KiB are a vector of 8,192 numbers in more digits than they have.
_ANSWER_BYTES_A_TEXT, _ANSWER_BYTES = 256 * 1024, 1024 * 1024
#: Headers that speak of a body as it came, no longer of one that is unpacked.
_PACKING = ("content-encoding", "content-length", "transfer-encoding", "content-type")


def most_bytes(texts: int) -> int:
    """The largest answer that is read, of a request with so many texts."""
    return _ANSWER_BYTES + texts * _ANSWER_BYTES_A_TEXT


class AnswerTooLarge(httpx2.DecodingError):
    """More than any answer could be: a download, or a few bytes that unpack to gigabytes."""


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Reads no more of an answer than `most` bytes, unpacked, and takes it for JSON whatever
    encoding of characters it claims (JSON is UTF-8: RFC 8259, section 8.1). It follows no redirect,
    which would take texts and key to a host that nobody named."""

    def __init__(self, *, most: int, **options: Any) -> None:
        super().__init__(follow_redirects=False, **options)
        self._most = most

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response = await super().send(request, **(options | {"stream": True}))
        body = bytearray()
        try:
            async for part in response.aiter_bytes():
                body += part
                if len(body) > self._most:
                    msg = f"the answer has more than {self._most} bytes"
                    raise AnswerTooLarge(msg)
        finally:
            await response.aclose()
        headers = [
            (name, value) for name, value in response.headers.multi_items() if name not in _PACKING
        ]
        return httpx2.Response(
            response.status_code,
            headers=headers,
            content=bytes(body),
            request=response.request,
            extensions=response.extensions,
            history=response.history,
        )
