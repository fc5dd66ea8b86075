"""Server-sent events: framing, comments that keep the connection alive, and the end of a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def with_keep_alive(events: AsyncIterator[bytes], interval_s: float) -> AsyncIterator[bytes]:
    """`events`, with a comment whenever nothing came for `interval_s` seconds; 0 sends none.

    The timer is the event loop's: it runs through a long prefill and a stuck engine alike.
    """
    coming: asyncio.Future[bytes] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(events))
            while not (await asyncio.wait({coming}, timeout=interval_s or None))[0]:
                yield KEEP_ALIVE
            try:
                yield coming.result()
            except StopAsyncIteration:
                return
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait({coming})


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has left. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends `events` until they end or the client leaves, then calls `close(they ended)`."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[bool], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(until_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._close(sending.done())
            leaving.cancel()
            if not sending.done():
                sending.cancel()
            await asyncio.wait({sending, leaving})
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for part in self._events:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
