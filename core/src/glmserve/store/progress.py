"""Telling a person how far a fetch is: bars on a terminal, a line every two seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from .download import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

INTERVAL_S = 2.0


@contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """A progress callback that writes to `stream`, standard error by default; silent until it is called."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _Lines(stream)
        return
    # Only here: a start that fetches nothing does not pay for the import.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bars = _Bars(Progress(*columns, console=Console(file=stream)))
    try:
        yield bars
    finally:
        bars.stop()


class _Bars:
    """One bar a file."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, name: str, done_bytes: int, total_bytes: int) -> None:
        self._bars.start()
        if name not in self._tasks:
            for asking in [task for task in self._bars.tasks if task.total is None]:
                self._bars.remove_task(asking.id)
            # What an earlier run has fetched is where the bar begins, not part of its rate.
            self._tasks[name] = self._bars.add_task(name, total=total_bytes or None, completed=done_bytes)
        self._bars.update(self._tasks[name], total=total_bytes or None, completed=done_bytes)

    def stop(self) -> None:
        self._bars.stop()


class _Lines:
    """A line when something begins, every INTERVAL_S and when it is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._name = ""
        self._finished = False

    def __call__(self, name: str, done_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if name != self._name or (self._finished and done_bytes < total_bytes):
            self._name, self._began, self._first_bytes, self._finished = name, now, done_bytes, False
            self._next = now + INTERVAL_S
            # Small things are done at once and need no announcement.
            if not total_bytes or done_bytes < total_bytes:
                self._write(name + (f": {_size(done_bytes)} of {_size(total_bytes)}" if total_bytes else ""))
        if total_bytes and done_bytes >= total_bytes and not self._finished:
            self._finished = True
            self._write(f"{name}: done, {_size(total_bytes)} in {_time(now - self._began)}")
        elif now >= self._next and not self._finished:
            self._next = now + INTERVAL_S
            self._write(f"{name}: {self._state(done_bytes, total_bytes, now)}")

    def _state(self, done_bytes: int, total_bytes: int, now: float) -> str:
        rate = (done_bytes - self._first_bytes) / max(now - self._began, 1e-9)
        if not total_bytes:
            return f"{_size(done_bytes)}, {_size(rate)}/s"
        left = f", {_time((total_bytes - done_bytes) / rate)} left" if rate > 0 else ""
        share = done_bytes / total_bytes
        return f"{_size(done_bytes)} of {_size(total_bytes)} ({share:.0%}), {_size(max(rate, 0))}/s{left}"

    def _write(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def _size(count: float) -> str:
    """Decimal units, as disks and networks are sold."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
