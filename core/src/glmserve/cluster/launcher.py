"""Follower processes on this machine: started, watched, heard and ended by one thread of the leader."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

READ_BYTES = 1 << 16
LINE_BYTES = 1 << 16
"""A longer line is written in pieces, each with its prefix."""
TERM_S = 1.0
"""From SIGTERM to SIGKILL."""

Ended = Callable[[int, str], None]


def phrase(status: int) -> str:
    """How a process ended, from the `returncode` of subprocess: "was killed by SIGKILL", "exited with 3"."""
    if status >= 0:
        return f"exited with {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


class Lines:
    """The output of one process, written line by line, so that those of several never share one."""

    def __init__(self, prefix: str, write: Callable[[str], None]) -> None:
        self._prefix = prefix
        self._write = write
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LINE_BYTES:
            lines.append(self._rest[:LINE_BYTES])
            self._rest = self._rest[LINE_BYTES:]
        if lines:
            self._write("".join(map(self._line, lines)))

    def end(self) -> None:
        if self._rest:
            self._write(self._line(self._rest))
            self._rest = b""

    def _line(self, line: bytes) -> str:
        return f"{self._prefix}{line.decode(errors='replace')}\n"


class Followers:
    """Processes by rank, of which each runs `argv` with its own environment and inherits the files of its rank only.

    The kernel kills a process that asked for it (child.die_with) when the *thread* that started it ends; so one thread
    starts them all and lives as long as they do. It writes their output with a prefix, and calls `ended` once for each
    rank whose process ends, with how it did.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[int, Mapping[str, str]],
        files: Mapping[int, Sequence[int]],
        ended: Ended,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self._ended = ended
        self._write = write or write_stderr
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._left = set(environ)
        self._change = threading.Condition()
        self._started = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(
            target=self._live, args=(list(argv), environ, files), name="followers", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self.stop(0)
            raise self._failure

    def pid(self, rank: int) -> int:
        return self._processes[rank].pid

    def kill(self, ranks: Sequence[int]) -> None:
        """End these at once, stopped or not."""
        for rank in set(ranks) & set(self._processes):
            self._processes[rank].kill()

    def stop(self, patience_s: float) -> None:
        """Return when all have ended: by themselves within `patience_s`, or else by SIGTERM, or else by SIGKILL."""
        for seconds, number in ((patience_s, signal.SIGTERM), (TERM_S, signal.SIGKILL)):
            if self._wait(seconds):
                break
            for process in self._processes.values():
                process.send_signal(number)
        self._thread.join()

    def _wait(self, seconds: float) -> bool:
        with self._change:
            return self._change.wait_for(lambda: not self._left, seconds)

    def _live(
        self, argv: list[str], environ: Mapping[int, Mapping[str, str]], files: Mapping[int, Sequence[int]]
    ) -> None:
        selector = selectors.DefaultSelector()
        try:
            for rank, environment in environ.items():
                self._processes[rank] = process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    pass_fds=tuple(files[rank]),
                    # An interrupt of the terminal is for the leader, which tells the others.
                    start_new_session=True,
                )
                assert process.stdout is not None
                os.set_blocking(process.stdout.fileno(), False)
                lines = Lines(f"[rank {rank}] ", self._write)
                selector.register(process.stdout, selectors.EVENT_READ, (rank, lines))
                # Readable when the process ends; its output may stay open longer, in a process it has started.
                selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, (rank, lines))
        except OSError as error:
            self._failure = error
            self._left &= set(self._processes)
        self._started.set()
        while self._left:
            for key, _ in selector.select():
                rank, lines = key.data
                process = self._processes[rank]
                if key.fileobj is process.stdout:
                    if not self._read(rank, lines):
                        selector.unregister(process.stdout)
                else:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    if process.stdout is not None and process.stdout in selector.get_map():
                        selector.unregister(process.stdout)
                        while self._read(rank, lines):
                            pass
                    self._end(rank, lines)
        selector.close()

    def _read(self, rank: int, lines: Lines) -> bool:
        """Pass on what a process has written. False when there is no more now, or ever."""
        output = self._processes[rank].stdout
        assert output is not None
        try:
            data = os.read(output.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        lines.feed(data)
        return bool(data)

    def _end(self, rank: int, lines: Lines) -> None:
        process = self._processes[rank]
        status = process.wait()
        lines.end()
        assert process.stdout is not None
        process.stdout.close()
        try:
            self._ended(rank, phrase(status))
        finally:
            with self._change:
                self._left.discard(rank)
                self._change.notify_all()


def write_stderr(text: str) -> None:
    # Whoever no longer reads the log does not end the followers.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
