"""The asking side of a sequence: an asynchronous stream of outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .request import Output


class Stream:
    """Async iterator of `Output`; the last one has a finish reason. Belongs to the event loop that made it."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Output] = asyncio.Queue()
        self._done = False

    def deliver(self, output: Output) -> None:
        """From the engine's thread. A loop that has closed means that nobody listens: the sequence is aborted."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, output)
        except RuntimeError:
            self._abort()

    def abort(self) -> None:
        """End the sequence in the next step. From any thread; after the end it does nothing."""
        self._abort()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Output:
        if self._done:
            raise StopAsyncIteration
        output = await self._queue.get()
        self._done = output.finish_reason is not None
        return output
