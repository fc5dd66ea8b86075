"""Links of forked ranks: whatever goes wrong with whichever rank at whatever time, rank 0 names it."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import RankError, UnavailableError
from glmserve.cluster.breaker import Breaker
from glmserve.cluster.control import Channel
from glmserve.cluster.faults import FaultFinder, Report
from glmserve.cluster.local import Ends, Limits, LocalLink, connected
from glmserve.engine.follower import follow
from glmserve.engine.ranks import Ranks

PATIENCE_S = 60
Work = Callable[[LocalLink], None]


class Forked:
    """Rank 0 in this process; the others do `work` in forked ones. All may use `directory`."""

    def __init__(self, size: int, work: Work, limits: Limits, directory: Path | None) -> None:
        self._store = None if directory is None else os.open(directory / "store", os.O_RDWR | os.O_CREAT)
        ends = connected(size)
        self.pids: dict[int, int] = {}
        for rank in range(1, size):
            pid = os.fork()
            if not pid:
                self._follow(rank, ends, work, limits)
            self.pids[rank] = pid
        self._close(ends[1:])
        self.link = LocalLink(0, size, ends[0], limits, 1, self._store)

    def _follow(self, rank: int, ends: list[Ends], work: Work, limits: Limits) -> None:
        # What earlier tests left is not collected here: the threads of a group of Gloo did not come along.
        gc.freeze()
        try:
            self._close(mine for other, mine in enumerate(ends) if other != rank)
            link = LocalLink(rank, len(ends), ends[rank], limits, 1, self._store)
            try:
                work(link)
            except UnavailableError:
                link.close()
        finally:
            os._exit(0)

    @staticmethod
    def _close(several: Iterator[Ends] | list[Ends]) -> None:
        for mine in several:
            for end in (*mine.mesh.values(), *mine.control.values(), *mine.faults.values()):
                end.close()

    def end(self) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.link.close()


@contextmanager
def forked(
    work: Work,
    size: int = 4,
    deadline_s: float = PATIENCE_S,
    silence_s: float = PATIENCE_S,
    directory: Path | None = None,
) -> Iterator[Forked]:
    torch.set_num_threads(1)
    group = Forked(size, work, Limits(deadline_s, PATIENCE_S, silence_s), directory)
    try:
        yield group
    finally:
        group.end()


def steps(link: LocalLink) -> None:
    """What a model's steps are made of: messages, sums of all, exchanges of neighbours, some work, reports."""
    half = link.world_size // 2
    while True:
        if link.rank == 0:
            link.publish(b"step")
        else:
            link.receive()
        for _ in range(3):
            link.group.sum("sum", torch.ones(3000))
            pair = [rank for rank in range(link.world_size) if rank // half == link.rank // half]
            link.group.gather("pair", torch.ones(40), [[40]] * len(pair), pair)
            torch.ones(60, 60) @ torch.ones(60, 60)
        if link.rank == 0:
            link.collect()
        else:
            link.report(b"done")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_rank_0_names_a_rank_that_is_stopped_or_killed_at_any_time(rank: int, number: int) -> None:
    stop_at_random(rank, number, 2)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_rank_0_names_a_rank_that_is_stopped_or_killed_at_many_times(rank: int, number: int) -> None:
    stop_at_random(rank, number, 100)


def stop_at_random(rank: int, number: int, times: int) -> None:
    chance = random.Random(rank)
    for _ in range(times):
        with forked(steps, deadline_s=0.3) as group:
            threading.Timer(chance.uniform(0.05, 0.15), os.kill, (group.pids[rank], number)).start()
            with pytest.raises(RankError) as error:
                steps(group.link)
            assert error.value.ranks == (rank,), error.value


def test_who_waits_for_a_rank_that_waits_for_a_stopped_one_is_not_named() -> None:
    def chain(link: LocalLink) -> None:
        if link.rank == 3:
            signal.raise_signal(signal.SIGSTOP)
        link.group.exchange("chain", {}, {link.rank + 1: torch.zeros(1)})

    with forked(chain, deadline_s=0.3) as group:
        with pytest.raises(RankError, match=r"Rank 3 does not answer \(") as error:
            chain(group.link)
        assert error.value.ranks == (3,)


def test_a_rank_that_is_busy_elsewhere_is_named_and_not_those_that_wait_for_it() -> None:
    def work(link: LocalLink) -> None:
        if link.rank == 2:
            time.sleep(PATIENCE_S)
        link.group.sum("sum", torch.ones(3))

    with forked(work, deadline_s=0.3) as group:
        with pytest.raises(RankError, match=r"Rank 2 is waited for and waits for nobody .* in 'sum'") as error:
            work(group.link)
        assert error.value.ranks == (2,)


def test_what_a_rank_reports_just_before_it_leaves_is_heard_though_it_cannot_be_asked_any_more() -> None:
    (here, there), (gone_here, gone) = socket.socketpair(), socket.socketpair()
    breaker, reporter = Breaker(), Channel(there, 0, 1)

    def state() -> Report:
        """Rank 1 leaves before it is asked."""
        reporter.post(Report((2,), error="Rank 2 closed its connection to rank 1.").pack())
        reporter.flush()
        reporter.close()
        return Report((2,))

    finder = FaultFinder({1: Channel(here, 1, 1), 2: Channel(gone_here, 2, 1)}, breaker, state)
    gone.close()
    finder._thread.join(PATIENCE_S)
    finder.close()
    with pytest.raises(RankError, match=r"^Rank 2 is gone\.$"):
        breaker.check()


def test_a_rank_out_of_step_is_named() -> None:
    def work(link: LocalLink) -> None:
        name = "layer 4" if link.rank == 2 else "layer 3"
        link.group.sum(name, torch.ones(3))

    with forked(work) as group:
        with pytest.raises(RankError, match=r"Rank 2 is out of step\. .* 'layer [34]' .* 'layer [34]'") as error:
            work(group.link)
        assert error.value.ranks == (2,)


def test_a_rank_that_abandons_the_group_tells_why() -> None:
    def work(link: LocalLink) -> None:
        if link.rank == 3:
            link.abandon("out of memory")
        link.group.sum("sum", torch.ones(3))

    with forked(work) as group:
        with pytest.raises(RankError, match="Rank 3: out of memory") as error:
            work(group.link)
        assert error.value.ranks == (3,)


def test_abandoning_from_a_thread_of_rank_0_ends_its_wait_and_those_of_all_others() -> None:
    def work(link: LocalLink) -> None:
        link.receive()

    with forked(work) as group:
        threading.Timer(0.1, group.link.abandon, ("the engine is stopped",)).start()
        with pytest.raises(RankError, match="the engine is stopped"):
            group.link.collect()
        for pid in group.pids.values():
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_after_an_error_every_call_raises_it_again() -> None:
    with forked(lambda link: None, deadline_s=0.3) as group:
        link = group.link
        with pytest.raises(RankError) as first:
            link.collect()
        calls = [link.collect, lambda: link.publish(b""), lambda: link.group.sum("x", torch.ones(1))]
        for call in calls:
            with pytest.raises(RankError) as again:
                call()
            assert (str(again.value), again.value.ranks) == (str(first.value), first.value.ranks)


def test_followers_leave_when_rank_0_is_silent_for_too_long() -> None:
    def work(link: LocalLink) -> None:
        link.report(b"loaded")
        link.receive()
        link.receive()

    with forked(work, silence_s=0.2) as group:
        group.link.collect()
        group.link.publish(b"the last")
        for pid in group.pids.values():
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_followers_leave_when_rank_0_closes() -> None:
    def work(link: LocalLink) -> None:
        link.receive()

    with forked(work) as group:
        group.link.close()
        for pid in group.pids.values():
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


class Leaving:
    """A worker that does nothing but leave, and takes its time to hear of it."""

    drafter = None

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s

    def perform(self, message: bytes) -> Any:
        time.sleep(self._patience_s)
        return json.loads(message)[-1][0]

    def report(self) -> dict[str, Any]:
        return {}


def leave(link: LocalLink) -> None:
    """Exit with 0 when the rank was told to leave, and met no error."""
    time.sleep(0.1 * link.rank)
    try:
        follow(Leaving(0.1 * link.rank), link)  # type: ignore[arg-type]
    except UnavailableError:
        os._exit(1)


def test_ranks_that_are_told_to_leave_meet_no_error_however_late_they_hear_of_it() -> None:
    with forked(leave) as group:
        Ranks(Leaving(0), group.link).close()  # type: ignore[arg-type]
        assert [os.waitpid(pid, 0)[1] for pid in group.pids.values()] == [0, 0, 0]
        group.pids.clear()


def test_a_rank_that_hangs_does_not_hold_up_the_others_that_leave() -> None:
    def work(link: LocalLink) -> None:
        if link.rank == 2:
            signal.raise_signal(signal.SIGSTOP)
        leave(link)

    with forked(work) as group:
        begin = time.monotonic()
        Ranks(Leaving(0), group.link).close()  # type: ignore[arg-type]
        assert time.monotonic() - begin < PATIENCE_S / 4
        assert group.link.finder is not None
        assert group.link.finder.guilty == (2,)
        for rank in (1, 3):
            assert os.waitpid(group.pids.pop(rank), 0)[1] == 0


def test_a_fault_while_nothing_waits_is_known_without_a_wait() -> None:
    with forked(lambda link: link.report(b"") if link.rank == 1 else time.sleep(PATIENCE_S), silence_s=0.2) as group:
        group.link.check()
        assert group.link.finder is not None
        assert group.link.finder._decided.wait(PATIENCE_S)
        with pytest.raises(RankError, match="Rank 1 is gone") as error:
            group.link.check()
        assert error.value.ranks == (1,)
