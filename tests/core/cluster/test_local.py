"""The transport `local` with the processes it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from glmserve.api import ALONE, ConfigError, RankError, Topology, UnavailableError
from glmserve.cluster.child import inherit
from glmserve.cluster.local import LocalLink, LocalTransport
from glmserve.cluster.mesh import Mesh

FOLLOWER = Path(__file__).with_name("follower.py")
PATIENCE_S = 60


class Transport(LocalTransport):
    argv = (sys.executable, str(FOLLOWER))


def here(size: int, **options: Any) -> Topology:
    return Topology(("localhost",) * size, options)


@contextmanager
def opened(size: int, **options: Any) -> Iterator[LocalLink]:
    link = Transport().open(here(size, **options), 0)
    assert isinstance(link, LocalLink)
    try:
        yield link
    finally:
        link.close()


def pids(link: LocalLink) -> list[psutil.Process]:
    link.publish(b"pid")
    return [psutil.Process(int(report)) for report in link.collect(starting=True)]


def test_messages_go_to_all_ranks_and_their_reports_come_back_in_order() -> None:
    with opened(4) as link:
        for message in (b"a", b"b", bytes(3_000_000)):
            link.publish(message)
            assert link.collect() == [b"%d:" % rank + message for rank in (1, 2, 3)]


def test_ranks_leave_by_themselves_when_rank_0_closes() -> None:
    with opened(3) as link:
        followers = pids(link)
        ends: list[str] = []
        assert link.finder is not None
        assert link.followers is not None
        link.followers._ended = lambda rank, how: ends.append(how)
    assert ends == ["exited with 0"] * 2
    assert not any(process.is_running() for process in followers)
    link.close()


def test_ranks_that_are_asked_to_end_as_rank_0_is_wait_until_it_tells_them() -> None:
    with opened(3) as link:
        for process in pids(link):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
        link.publish(b"on")
        assert link.collect() == [b"1:on", b"2:on"]


def test_ranks_that_are_told_to_leave_do_so_however_soon_rank_0_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    with opened(3) as link:
        link.publish(b"nap")
        link.collect(starting=True)
        link.publish(b"leave")
    assert sorted(capfd.readouterr().err.splitlines()) == ["[rank 1] left", "[rank 2] left"]


def test_a_world_of_one_starts_nothing() -> None:
    files, threads = open_files(), threading.active_count()
    link = LocalTransport().open(here(1), 0)
    assert link.group is ALONE
    link.publish(b"x")
    assert link.collect() == []
    for call in (link.receive, lambda: link.report(b"x")):
        with pytest.raises(UnavailableError, match="nobody"):
            call()
    assert (open_files(), threading.active_count()) == (files, threads)
    link.close()


@pytest.mark.parametrize(
    ("command", "error"), [("exit 3", r"Rank 1 exited with 3\."), ("fail", "Rank 1: the disk is full")]
)
def test_a_rank_that_fails_is_named_with_the_reason(command: str, error: str) -> None:
    with opened(3) as link:
        link.publish(command.encode())
        with pytest.raises(RankError, match=error) as raised:
            link.collect()
        assert raised.value.ranks == (1,)


def test_ranks_whose_program_fails_at_the_start_are_named() -> None:
    class Broken(LocalTransport):
        argv = (sys.executable, "-c", "raise SystemExit('no such module')")

    link = Broken().open(here(3), 0)
    with pytest.raises(RankError, match="exited with 1"):
        link.collect(starting=True)
    link.close()


def test_a_program_that_cannot_be_started_is_one_sentence() -> None:
    class Missing(LocalTransport):
        argv = ("/nowhere/at/all",)

    files = open_files()
    with pytest.raises(UnavailableError, match=r"The ranks cannot be started: .*/nowhere/at/all"):
        Missing().open(here(3), 0)
    assert open_files() == files


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGKILL, r"Rank 2 was killed by SIGKILL\."),
        (signal.SIGSTOP, r"Rank 2 does not answer \(.*within|waited"),
    ],
)
def test_a_rank_that_is_killed_or_stopped_between_sums_is_named(number: int, error: str) -> None:
    torch.set_num_threads(1)
    with opened(3, deadline_s=1) as link:
        followers = pids(link)
        link.publish(b"sums")
        # Loading may take longer than an exchange.
        assert link.collect(starting=True) == [b"loaded"] * 2
        assert isinstance(link.group, Mesh)
        assert torch.equal(link.group.sum_slices("sum", torch.ones(3001)), torch.full((3001,), 3.0))
        threading.Timer(0.2, os.kill, (followers[1].pid, number)).start()
        with pytest.raises(RankError, match=error) as raised:
            sum_for_ever(link)
        assert raised.value.ranks == (2,)
    assert not any(process.is_running() for process in followers)


def sum_for_ever(link: LocalLink) -> None:
    while True:
        assert link.group.sum("sum", torch.ones(3000))[0] == 3


def test_output_of_followers_bears_their_rank(capfd: pytest.CaptureFixture[str]) -> None:
    with opened(3) as link:
        link.publish(b"say one\ntwo\n")
        link.collect()
    lines = capfd.readouterr().err.splitlines()
    for rank in (1, 2):
        assert [line for line in lines if line.startswith(f"[rank {rank}]")][:2] == [
            f"[rank {rank}] one",
            f"[rank {rank}] two",
        ]


LEADER = f"""
import os, signal, sys, time
sys.path.insert(0, {str(FOLLOWER.parent)!r})
from glmserve.api import Topology
from glmserve.cluster.local import LocalTransport
LocalTransport.argv = (sys.executable, {str(FOLLOWER)!r})
link = LocalTransport().open(Topology(("localhost",) * 4), 0)
link.publish(b"pid")
pids = link.collect()
os.kill(int(pids[1]), signal.SIGSTOP)
print(b" ".join(pids).decode(), flush=True)
"""


@pytest.mark.parametrize("end", ["time.sleep(600)", "os._exit(0)", "sys.exit()", "raise ValueError"])
def test_no_process_outlives_a_leader_that_is_killed_crashes_or_forgets_to_close(end: str) -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER + end], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert leader.stdout is not None
    followers = [psutil.Process(int(pid)) for pid in leader.stdout.readline().split()]
    assert len(followers) == 3
    if "sleep" in end:
        leader.kill()
    leader.wait(PATIENCE_S)
    leader.stdout.close()
    assert psutil.wait_procs(followers, PATIENCE_S)[1] == []


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_opening_and_closing_leaks_neither_files_nor_threads_nor_processes() -> None:
    class Short(LocalTransport):
        argv = ("/bin/cat",)

    before = open_files(), threading.active_count(), len(psutil.Process().children())
    for _ in range(50):
        Short().open(here(3), 0).close()
    assert (open_files(), threading.active_count(), len(psutil.Process().children())) == before


@pytest.mark.parametrize(
    ("topology", "error"),
    [
        (Topology(()), "runs 1 to 8 ranks, not 0"),
        (here(9), "runs 1 to 8 ranks, not 9"),
        (Topology(("localhost", "spark-2")), "this machine only; write 'localhost' for host 'spark-2'"),
        (here(1, deadline=3), "no option 'deadline'; it knows deadline_s, start_s, silence_s"),
        (here(1, deadline_s=0), r"deadline_s of transport 'local' is 0; give seconds, from 0\.1 to 86400\."),
        (here(1, start_s="long"), "start_s of transport 'local' is 'long'"),
        (here(1, silence_s=True), "silence_s of transport 'local' is True"),
    ],
)
def test_what_is_wrong_with_a_topology_is_said_before_anything_starts(topology: Topology, error: str) -> None:
    findings = LocalTransport().preflight(topology)
    assert "error" in {finding.level for finding in findings}
    with pytest.raises(ConfigError, match=error):
        LocalTransport().open(topology, 0)


@pytest.mark.parametrize("size", [1, 8])
def test_what_is_right_is_said_too(size: int) -> None:
    assert [finding.level for finding in LocalTransport().preflight(here(size))] == ["ok"]


def test_the_program_of_a_follower_does_nothing_by_itself() -> None:
    with pytest.raises(ConfigError, match="only a server starts"):
        inherit({})
