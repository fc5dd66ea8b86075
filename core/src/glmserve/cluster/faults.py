"""Whose fault it is when a group of ranks fails.

What one rank sees is not who is to blame: who waits for a rank that waits for a stopped one sees the innocent between
them. So each follower has a second connection to rank 0, on which a thread of its own says what its rank waits for:
unasked when a wait of its own fails, or asked by rank 0, which asks all as soon as it knows of any fault. From the
answers that come within a short grace, rank 0 names

1. the ranks whose process ended before it reported anything, or else
2. those that report a fault of their own, or else
3. those that do not answer, or else
4. where one found another out of step: those in another exchange than rank 0, or than most; or else
5. those that others wait for, and that wait for nobody: they are busy elsewhere, or
6. those that most ranks wait for or find out of step.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from glmserve.api import RankError

from .breaker import Breaker, OutOfStepError, named
from .control import Channel

GRACE_S = 0.5
"""A thread that does nothing else answers in milliseconds, on a busy machine in tens of them."""


@dataclass(frozen=True)
class Report:
    """What one rank waits for, or finds out of step; or that it has failed itself."""

    blames: tuple[int, ...]
    exchange: str = ""
    """That it makes."""
    error: str = ""
    """Why it reports unasked."""
    out_of_step: bool = False

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, message: bytes) -> Report:
        fields = json.loads(message)
        return cls(**{**fields, "blames": tuple(fields["blames"])})


def verdict(size: int, reports: Mapping[int, Report], ended: Mapping[int, str]) -> RankError:
    """By the rule above. `ended` says of ranks whose process ended how it did; rank 0 is among `reports`."""
    errors = [reports[rank].error for rank in sorted(reports) if reports[rank].error]
    because = f" ({errors[0].rstrip('.')})" if errors else ""
    if lost := sorted(set(ended) - set(reports)):
        text = ", ".join(f"rank {rank} {ended[rank]}" for rank in lost)
        return RankError(f"{text[0].upper()}{text[1:]}.", lost)
    if failed := sorted(rank for rank in reports if rank in reports[rank].blames):
        return RankError(" ".join(f"Rank {rank}: {reports[rank].error}" for rank in failed), failed)
    if silent := sorted(set(range(size)) - set(reports)):
        return RankError(f"{named(silent).capitalize()} {_verb(silent, 'does', 'do')} not answer{because}.", silent)
    contradictions = [report.error for _, report in sorted(reports.items()) if report.out_of_step]
    if contradictions and (astray := _astray(reports)):
        how = _verb(astray, "is", "are")
        return RankError(f"{named(astray).capitalize()} {how} out of step. {contradictions[0]}", astray)
    blames = Counter(rank for report in reports.values() for rank in report.blames)
    if not contradictions and (late := sorted(rank for rank in blames if not reports[rank].blames)):
        how = f"{_verb(late, 'is', 'are')} waited for and {_verb(late, 'waits', 'wait')} for nobody"
        return RankError(f"{named(late).capitalize()} {how}{because}.", late)
    most = sorted(rank for rank in blames if blames[rank] == max(blames.values()))
    # What one says of these, and not what these say of others.
    against = [report.error for _, report in sorted(reports.items()) if report.error and {*report.blames} & {*most}]
    return RankError(against[0] if against else f"{named(most).capitalize()} cannot go on.", most)


def _astray(reports: Mapping[int, Report]) -> list[int]:
    """The ranks in another exchange than rank 0, which leads, or than most where rank 0 is in none."""
    exchanges = {rank: report.exchange for rank, report in sorted(reports.items()) if report.exchange}
    if not exchanges:
        return []
    right = reports[0].exchange or Counter(exchanges.values()).most_common(1)[0][0]
    return [rank for rank, exchange in exchanges.items() if exchange != right]


def _verb(ranks: list[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


def met(error: RankError, state: Report) -> Report:
    """The report of a rank that was in `state` when it met `error`."""
    return Report(error.ranks, state.exchange, str(error), isinstance(error, OutOfStepError))


class FaultFinder:
    """At rank 0: hears of faults, asks all followers what they see, and trips the breaker with the verdict.

    `state` says what this rank waits for and which exchange it makes, from any thread.
    """

    def __init__(self, channels: Mapping[int, Channel], breaker: Breaker, state: Callable[[], Report]) -> None:
        self.guilty: tuple[int, ...] = ()
        self._channels = dict(channels)
        self._breaker = breaker
        self._state = state
        self._reports: dict[int, Report] = {}
        self._ended: dict[int, str] = {}
        self._gone: set[int] = set()
        self._error: RankError | None = None
        self._decided = threading.Event()
        self._closing = False
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="fault finder", daemon=True)
        breaker.explain = self._explain
        self._thread.start()

    def ended(self, rank: int, how: str) -> None:
        """From any thread: the process of this rank "was killed by SIGKILL"."""
        self._ended[rank] = how
        self._nudge()

    def note(self, error: RankError) -> None:
        """From any thread: this rank cannot go on; the others must not go on either."""
        self._reports.setdefault(0, met(error, self._state()))
        self._nudge()

    def dismiss(self) -> None:
        """From here on whatever ends is no fault."""
        self._closing = True
        self._nudge()
        self._thread.join()

    def close(self) -> None:
        self.dismiss()
        for channel in self._channels.values():
            channel.close()
        self._wake.close()
        self._woken.close()

    def _nudge(self) -> None:
        # Nobody listens after the verdict: the buffer may be full, and closed in the end.
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def _explain(self, error: RankError) -> RankError:
        self.note(error)
        self._decided.wait()
        return self._error or error

    def _run(self) -> None:
        try:
            while not (self._reports or self._ended or self._gone or self._closing):
                self._hear(None)
            # What was known before the end is followed up: a rank that hangs is ended, and not waited for.
            if self._reports or self._ended or self._gone:
                self._ask()
                self._error = verdict(len(self._channels) + 1, self._reports, self._ended)
                self.guilty = self._error.ranks
                self._breaker.trip(str(self._error), self.guilty)
        finally:
            self._decided.set()

    def _ask(self) -> None:
        """Collect what the followers see, until all have answered or the grace is over."""
        deadline = time.monotonic() + GRACE_S
        self._reports.setdefault(0, self._state())
        for rank in set(self._channels) - set(self._reports) - self._gone:
            self._channels[rank].post(b"")
            # One that is gone may have reported before: what it said and its end are heard below, in this order.
            with contextlib.suppress(RankError):
                self._channels[rank].flush()
        while not all(self._settled(rank) for rank in self._channels):
            if (left := deadline - time.monotonic()) <= 0:
                break
            self._hear(left)
        for rank in self._gone - set(self._reports):
            self._ended.setdefault(rank, "is gone")

    def _settled(self, rank: int) -> bool:
        # The end of a process is known from two sides. Its last report has been read when its connection is at its end.
        return rank in self._reports or (rank in self._gone and rank in self._ended)

    def _hear(self, timeout_s: float | None) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        ranks = {self._channels[rank].fileno(): rank for rank in set(self._channels) - self._gone}
        for file in ranks:
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)):
            if file not in ranks:
                self._woken.recv(4096)
                continue
            channel = self._channels[ranks[file]]
            try:
                channel.take()
            except RankError:
                self._gone.add(ranks[file])
            while channel.inbox:
                self._reports[ranks[file]] = Report.unpack(channel.inbox.popleft())


class FaultReporter:
    """At the other ranks: tells rank 0 once what this rank sees, and trips the breaker when rank 0 asks or is gone."""

    def __init__(self, channel: Channel, breaker: Breaker, state: Callable[[], Report]) -> None:
        self._channel = channel
        self._breaker = breaker
        self._state = state
        self._lock = threading.Lock()
        self._reported = False
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="fault reporter", daemon=True)
        breaker.explain = self._explain
        self._thread.start()

    def note(self, error: RankError) -> None:
        """From any thread: this rank cannot go on."""
        self._report(met(error, self._state()))

    def close(self) -> None:
        self._wake.send(b"\0")
        self._thread.join()
        self._channel.close()
        self._wake.close()
        self._woken.close()

    def _explain(self, error: RankError) -> RankError:
        self.note(error)
        return error

    def _report(self, report: Report) -> None:
        with self._lock:
            if self._reported:
                return
            self._reported = True
            self._channel.post(report.pack())
            # A report fits the empty buffer of its connection. Where rank 0 is gone nobody wants it.
            with contextlib.suppress(RankError):
                self._channel.flush()

    def _run(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self._woken, select.POLLIN)
            poll.register(self._channel, select.POLLIN)
            if any(file == self._woken.fileno() for file, _ in poll.poll()):
                return
            try:
                self._channel.take()
            except RankError:
                self._breaker.trip("Rank 0 is gone.", [0])
                return
            if self._channel.inbox:
                self._report(self._state())
                self._breaker.trip("Rank 0 ends the group, because a rank of it failed.")
                return
