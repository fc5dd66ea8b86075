"""The real server, as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner
from glmserve.cli.main import main
from glmserve.cluster.child import VARIABLE
from openai import OpenAI

COMMAND = Path(sys.executable).with_name("glmserve")
START_S = 120.0


class Server:
    """`glmserve run` on a free port. `ready` waits for the banner; `end` sends a signal and gives the exit code."""

    def __init__(self, directory: Path, *arguments: str, profile: str = "local") -> None:
        self._out, self._err = directory / "stdout", directory / "stderr"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.popen = subprocess.Popen(
                [COMMAND, "run", "--profile", profile, "--port", "0", *arguments],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_WAIT_POLICY": "passive"},
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def ready(self) -> "Server":
        deadline = time.monotonic() + START_S
        while "glmserve is ready" not in self.out:
            assert self.popen.poll() is None, self.err
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.05)
        self.url = next(word for word in self.out.split() if word.startswith("http"))
        return self

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        try:
            return self.popen.wait(60)
        finally:
            if self.popen.poll() is None:
                self.popen.kill()
                self.popen.wait()

    def followers(self) -> list[psutil.Process]:
        """The processes of ranks 1, 2 and so on, as far as they have started."""
        ranks: dict[int, psutil.Process] = {}
        for process in psutil.Process(self.popen.pid).children():
            if inherited := process.environ().get(VARIABLE):
                ranks[json.loads(inherited)["rank"]] = process
        return [ranks[rank] for rank in sorted(ranks)]

    def metrics(self) -> dict[str, float]:
        """Metric with its labels -> value."""
        lines = httpx.get(self.url + "/metrics", timeout=30).text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def assert_idle(self) -> None:
        """Within seconds nothing runs or waits, every page is free, and new requests are welcome."""
        deadline = time.monotonic() + 20
        while True:
            now = self.metrics()
            busy = now["glmserve_requests_running"] + now["glmserve_requests_waiting"]
            lost = now["glmserve_kv_pages"] - now["glmserve_kv_pages_free"]
            if not busy and not lost:
                break
            assert time.monotonic() < deadline, f"{busy:.0f} requests are left and {lost:.0f} pages are taken"
            time.sleep(0.1)
        assert httpx.get(self.url + "/readyz", timeout=30).status_code == 200


@contextmanager
def serving(directory: Path, *arguments: str, profile: str = "local") -> Iterator[Server]:
    """At the end it is idle, leaves on SIGTERM with code 0, and no rank of it has said anything or is left."""
    running = Server(directory, *arguments, profile=profile)
    try:
        yield running.ready()
        running.assert_idle()
        followers = running.followers()
    finally:
        code = running.end()
    assert code == 0
    assert "Traceback" not in running.err
    assert "[rank" not in running.err
    assert not any(follower.is_running() for follower in followers)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


def assert_refusal(response: httpx.Response, statuses: Container[int] = range(400, 500)) -> dict[str, Any]:
    """One of `statuses` in the envelope, one sentence. Gives the error object."""
    assert response.status_code in statuses, response.text
    error: dict[str, Any] = response.json()["error"]
    assert_clear(error)
    return error


def assert_clear(error: dict[str, Any]) -> None:
    assert set(error) == {"message", "type", "param", "code"}
    message = error["message"]
    assert message.endswith("."), message
    assert ".." not in message
    assert "\n" not in message
    assert "Traceback" not in message
    assert len(message) < 500, message


def command(*arguments: str, profile: str = "local") -> list[str]:
    return ["run", "--profile", profile, "--port", "0", *arguments]


def refused(*arguments: str, **profile: str) -> tuple[int, str]:
    """(exit code, the one sentence) of a `glmserve run` that cannot start."""
    words = [str(COMMAND), *command(*arguments, **profile)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return result.returncode, one_sentence(result.stderr)


def refused_here(*arguments: str, **profile: str) -> tuple[int, str]:
    """The same in this process, which saves the start of another."""
    result = CliRunner().invoke(main, command(*arguments, **profile))
    assert isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, one_sentence(result.stderr)


def one_sentence(stderr: str) -> str:
    assert stderr.startswith("glmserve: "), stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.endswith(".\n"), stderr
    return stderr
