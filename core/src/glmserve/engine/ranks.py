"""All ranks, seen from rank 0: what it does, the others are told to do, and what came of it is compared."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from glmserve.api import Draft, Link, RankError

from .plan import StepPlan
from .runner import RowsResult
from .worker import LEAVE, Worker, encode

BEAT_S = 2.0
"""While nothing runs, the other ranks are told and heard this often."""
LEAVE_S = 1.0
"""Told to leave, a rank answers within this, or it hangs."""


@dataclass(frozen=True)
class RankStatus:
    """How far a rank has come."""

    rank: int
    steps: int
    exchanges: int
    """Collectives that it took part in."""
    memory_bytes: int
    """Resident."""
    seconds_since_report: float


class Ranks:
    """Commands to every rank, rank 0 included. With a world of one nothing is sent and nothing compared.

    Everything raises RankError when ranks are lost, late, or have come apart; they cannot go on after it.
    """

    def __init__(self, worker: Worker, link: Link) -> None:
        self.worker = worker
        self._link = link
        self._alone = link.world_size == 1
        drafter = worker.drafter
        self._drafts_everywhere = not self._alone and drafter is not None and drafter.replicated
        self._written: list[Sequence[Any]] = []
        """Commands that go along with the next message."""
        self._heard = time.monotonic()
        self._reports: list[dict[str, Any]] = []

    def execute(self, plan: StepPlan) -> list[RowsResult]:
        """Results in the order of `plan.rows`."""
        if self._alone:
            return self.worker.execute(plan)
        results: list[RowsResult] = self._send("execute", plan.plain())
        return results

    def propose(self, sequence: int, pending: int, depth: int) -> Draft:
        if not self._drafts_everywhere:
            return self.worker.propose(sequence, pending, depth)
        draft: Draft = self._send("propose", sequence, pending, depth)
        return draft

    def observe(self, sequence: int, start: int, tokens: Sequence[int]) -> None:
        if self._drafts_everywhere:
            self._written.append(("observe", sequence, start, tokens))
        else:
            self.worker.observe(sequence, start, tokens)

    def forget(self, sequence: int) -> None:
        if self._drafts_everywhere:
            self._written.append(("forget", sequence))
        else:
            self.worker.forget(sequence)

    def beat(self) -> None:
        """Nothing runs: see that the other ranks are there, hear from them now and then, and be heard."""
        self._link.check()
        if not self._alone and time.monotonic() - self._heard >= BEAT_S:
            self._send()

    def close(self) -> None:
        """Let the other ranks leave, and the link go. One that hangs holds it up for LEAVE_S seconds."""
        if not self._alone:
            with suppress(RankError):  # the link does what is left to do
                self._link.publish(encode([(LEAVE,)]))
                # Then all know that they may go, and none takes the end of the link for a fault.
                self._link.collect(within_s=LEAVE_S)
        self._link.close()

    def abandon(self, reason: str) -> None:
        """From any thread: what waits for other ranks fails now, and so does everything after it."""
        self._link.abandon(reason)

    def status(self) -> tuple[RankStatus, ...]:
        since = time.monotonic() - self._heard
        own = (0.0, self.worker.report())
        return tuple(
            RankStatus(rank, report["steps"], report["exchanges"], report["memory_bytes"], round(age, 3))
            for rank, (age, report) in enumerate([own, *((since, report) for report in self._reports)])
        )

    def _send(self, *command: Any) -> Any:
        """All that is written and `command`, if any, on all ranks; the result of the last one on this rank."""
        written, self._written = [*self._written, *([command] if command else [])], []
        message = encode(written)
        self._link.publish(message)
        try:
            result = self.worker.perform(message)
        except RankError:
            raise
        except Exception as error:  # the others wait in a collective that this rank will never come to
            reason = f"rank 0 failed: {type(error).__name__}: {error}"
            self._link.abandon(reason)
            raise RankError(reason, [0]) from error
        self._reports = [json.loads(report) for report in self._link.collect()]
        self._heard = time.monotonic()
        self._compare()
        return result

    def _compare(self) -> None:
        own = self.worker.report()
        for key, what in (("exchanges", "made another number of exchanges"), ("digest", "computed something else")):
            apart = [rank for rank, report in enumerate(self._reports, 1) if report[key] != own[key]]
            if apart:
                reason = f"rank {apart[0]} {what} than rank 0 after {own['steps']} steps"
                self._link.abandon(reason)
                raise RankError(reason, apart)
