"""Ranks that are killed or stopped, whichever and whenever: it is said which, nothing hangs, nothing is left."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from glmserve.cluster.faults import GRACE_S
from glmserve.engine.ranks import BEAT_S

from .conftest import START_S, Server, assert_clear, assert_refusal

DEADLINE_S = 2
SOON_S = BEAT_S + DEADLINE_S + GRACE_S + 10
"""Any wait has ended by then; the last part is for this machine's other work."""
STREAM = {"stream": True, "temperature": 0, "ignore_eos": True}
DECODING = {"prompt": "My name is", "max_tokens": 20_000, **STREAM}
PREFILL = {"prompt": "word " * 20_000, "max_tokens": 2, **STREAM}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Four ranks, of which none is waited for long; started for one test, which may do anything to it."""
    running = Server(tmp_path, "--set", f"transport.options.deadline_s={DEADLINE_S}", profile="tiny-four-spark")
    try:
        yield running
    finally:
        running.end(signal.SIGKILL)


class Reader(threading.Thread):
    """A client of one stream."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._server, self._body = server, body
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        url = self._server.url + "/v1/completions"
        with (
            suppress(httpx.TransportError),  # the server may be killed
            httpx.stream("POST", url, json=self._body, timeout=60) as reply,
        ):
            for line in reply.iter_lines():
                self.lines += [line] if line else []

    def error(self) -> dict[str, Any]:
        """With which the stream ended."""
        self.join(SOON_S)
        assert not self.is_alive()
        assert self.lines[-1] == "data: [DONE]"
        error: dict[str, Any] = json.loads(self.lines[-2].removeprefix("data: "))["error"]
        return error


def busy(server: Server, when: str) -> Reader | None:
    """Something that goes on for minutes, or nothing when `when` is "idle"."""
    if when == "idle":
        return None
    before = server.metrics()["glmserve_steps_total"]
    reader = Reader(server, DECODING if when == "decoding" else PREFILL)
    until(lambda: server.metrics()["glmserve_steps_total"] >= before + 4)
    assert bool(reader.lines) == (when == "decoding")
    return reader


def until(true: Callable[[], bool], patience_s: float = SOON_S) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "it does not come to pass"
        time.sleep(0.02)


def health(server: Server) -> httpx.Response:
    return httpx.get(server.url + "/health", timeout=SOON_S)


def assert_all_end(processes: list[psutil.Process]) -> None:
    assert psutil.wait_procs(processes, 10)[1] == []


def a_fault(server: Server, number: signal.Signals, when: str, rank: int) -> None:
    followers = server.ready().followers()
    assert len(followers) == 3
    reader = busy(server, when)
    assert health(server).status_code == 200
    followers[rank - 1].send_signal(number)
    until(lambda: health(server).status_code == 503)
    cause = "was killed by SIGKILL" if number == signal.SIGKILL else "does not answer"
    named = f"Rank {rank} {cause}"
    assert named in assert_refusal(health(server), [503])["message"]
    if reader is not None:
        error = reader.error()
        assert_clear(error)
        assert named in error["message"]
        assert error["type"] == "service_unavailable_error"
    for body in ({"prompt": "x"}, {"prompt": "x", "stream": True}):
        assert named in assert_refusal(httpx.post(server.url + "/v1/completions", json=body), [503])["message"]
    assert named in httpx.get(server.url + "/status", timeout=30).json()["engine"]["reason"]
    assert server.metrics()["glmserve_ready"] == 0
    assert server.end() == 0
    assert_all_end(followers)
    assert "Traceback" not in server.err
    lines = server.err.splitlines()
    assert sum(named in line for line in lines) == 1, lines
    for other in {1, 2, 3} - {rank}:
        assert any(line.startswith(f"[rank {other}] Ran") for line in lines), lines
    assert all(line.startswith(("INFO glmserve", "ERROR glmserve", "WARNING glmserve", "[rank ")) for line in lines)


@pytest.mark.parametrize(
    ("number", "when", "rank"), [(signal.SIGKILL, "decoding", 2), (signal.SIGSTOP, "prefill", 3)], ids=str
)
def test_a_rank_that_is_killed_or_stopped_is_named_to_everybody(
    server: Server, number: signal.Signals, when: str, rank: int
) -> None:
    a_fault(server, number, when, rank)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("when", ["idle", "decoding", "prefill"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=str)
def test_any_rank_at_any_time(server: Server, number: signal.Signals, when: str, rank: int) -> None:
    a_fault(server, number, when, rank)


def ends(server: Server, way: str, when: str, stopped: bool) -> None:
    """The leader ends in some way, while one of the others is stopped or not."""
    followers = server.ready().followers()
    busy(server, when)
    if stopped:
        followers[1].send_signal(signal.SIGSTOP)
    if way == "SIGSTOP and SIGKILL":
        server.popen.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        way = "SIGKILL"
    server.popen.send_signal(signal.Signals[way])
    if way in ("SIGINT", "SIGTERM") and when != "idle":
        time.sleep(0.2)
        server.popen.send_signal(signal.Signals[way])
    code = server.popen.wait(SOON_S)
    assert code == (0 if way in ("SIGINT", "SIGTERM") else -signal.Signals[way])
    assert_all_end(followers)
    if code == 0:
        assert "Traceback" not in server.err


def test_no_rank_outlives_a_leader_that_is_killed_in_mid_step_while_one_is_stopped(server: Server) -> None:
    ends(server, "SIGKILL", "decoding", stopped=True)


def test_a_stopped_rank_does_not_hold_up_the_end_for_long(server: Server) -> None:
    ends(server, "SIGTERM", "idle", stopped=True)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("when", ["idle", "decoding", "prefill"])
@pytest.mark.parametrize("way", ["SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP and SIGKILL", "SIGSEGV", "SIGABRT"])
def test_no_rank_outlives_its_leader(server: Server, way: str, when: str, stopped: bool) -> None:
    ends(server, way, when, stopped)


def test_no_rank_is_left_of_a_start_that_is_interrupted(server: Server) -> None:
    until(lambda: len(server.followers()) == 3, START_S)
    followers = server.followers()
    assert server.end(signal.SIGINT) == 0
    assert_all_end(followers)
    assert "Traceback" not in server.err


@pytest.mark.slow
@pytest.mark.parametrize("wait_s", [0.0, 0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=str)
def test_a_rank_that_is_killed_or_stopped_while_it_loads_stops_the_start(
    tmp_path: Path, number: signal.Signals, wait_s: float
) -> None:
    server = Server(tmp_path, "--set", "transport.options.start_s=20", profile="tiny-four-spark")
    until(lambda: len(server.followers()) == 3, START_S)
    followers = server.followers()
    time.sleep(wait_s)
    followers[1].send_signal(number)
    assert server.popen.wait(60) == 1
    assert_all_end(followers)
    (line,) = (line for line in server.err.splitlines() if line.startswith("glmserve: "))
    assert "Rank 2 " in line
    assert line.endswith(".")
