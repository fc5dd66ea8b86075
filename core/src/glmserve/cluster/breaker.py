"""What ends the waits of a rank: one first error, set from any thread, that stays."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable

from glmserve.api import RankError


def named(ranks: Iterable[int]) -> str:
    """ "rank 2", or "ranks 0, 2"."""
    ranks = sorted(ranks)
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


class OutOfStepError(RankError):
    """A rank makes another exchange than this one."""


class Breaker:
    """Shared by all that waits for other ranks: every wait polls `fileno()` as well, which is readable once tripped.

    `explain` turns the error that one wait met into what the group knows of it, before anybody sees it.
    """

    def __init__(self, explain: Callable[[RankError], RankError] = lambda error: error) -> None:
        self.explain = explain
        self._error: RankError | None = None
        self._lock = threading.Lock()
        self._ends: tuple[socket.socket, socket.socket] | None = None
        """Written to, read from: made when somebody polls, which a group of one never does."""

    def fileno(self) -> int:
        with self._lock:
            if self._ends is None:
                self._ends = socket.socketpair()
                if self._error is not None:
                    self._ends[0].send(b"\0")
            return self._ends[1].fileno()

    def trip(self, reason: str, ranks: Iterable[int] = ()) -> None:
        """From any thread. Only the first reason counts."""
        with self._lock:
            if self._error is None:
                self._error = RankError(reason, tuple(ranks))
                if self._ends is not None:
                    self._ends[0].send(b"\0")

    @property
    def tripped(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self._error is not None:
            raise RankError(str(self._error), self._error.ranks)

    def fail(self, error: RankError) -> RankError:
        """What a wait that met `error` raises: the first error there was."""
        if self._error is None:
            error = self.explain(error)
            self.trip(str(error), error.ranks)
        assert self._error is not None
        return RankError(str(self._error), self._error.ranks)

    def close(self) -> None:
        """When nobody waits any more; it can still be tripped."""
        with self._lock:
            for end in self._ends or ():
                end.close()
            self._ends = None
