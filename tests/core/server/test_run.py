"""The server as a process: its socket, its signals, its exit codes."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from glmserve.api import CheckpointError

from .conftest import HELLO

ROOT = __file__.split("/tests/")[0]


class Process:
    def __init__(self, port=0, reply="Hello!", delay=0.0, drain_s=20.0, mode="normal", ready=True):
        args = [port, reply, delay, drain_s, mode]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.core.server.serve_fake", *map(str, args)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.first = self.popen.stdout.readline()
        self.url = next((word for word in self.first.split() if word.startswith("http")), "").replace(
            "0.0.0.0", "127.0.0.1"
        )
        if ready:
            self.banner = self.popen.stdout.readline()

    def wait(self, seconds=20):
        self.out, self.err = self.popen.communicate(timeout=seconds)
        return self.popen.returncode

    def begin_stream(self):
        """A thread that reads a long stream; .text is what came."""
        thread = threading.Thread(target=self._read)
        self.started = threading.Event()
        thread.start()
        assert self.started.wait(10)
        return thread

    def _read(self):
        self.text = ""
        with (
            contextlib.suppress(httpx.RemoteProtocolError),
            httpx.stream("POST", self.url + "/v1/chat/completions", json=HELLO | {"stream": True}, timeout=30) as reply,
        ):
            for part in reply.iter_text():
                self.text += part
                if "content" in self.text:
                    self.started.set()


@pytest.fixture
def process():
    running = []

    def begin(**kwargs):
        running.append(Process(**kwargs))
        return running[-1]

    yield begin
    for one in running:
        if one.popen.poll() is None:
            one.popen.kill()
        one.popen.communicate()


def test_a_reader_that_leaves_after_the_first_line_is_served_on(process):
    server = process(ready=False)
    server.popen.stdout.close()
    deadline = time.monotonic() + 20
    while httpx.get(server.url + "/readyz", timeout=30).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.popen.send_signal(signal.SIGTERM)
    assert server.popen.wait(20) == 0
    assert server.popen.stderr.read().count("Traceback") == 0


def test_the_banner_tells_what_matters(process):
    server = process()
    assert server.url in server.banner
    for fact in ("/v1", "fake", "512 tokens", "exact", "keys off"):
        assert fact in server.banner
    assert httpx.get(server.url + "/readyz").status_code == 200
    server.popen.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert server.err == ""


def test_sigterm_lets_streams_end_and_refuses_new_ones(process):
    server = process(reply="x" * 60, delay=0.03)
    reading = server.begin_stream()
    with httpx.Client(base_url=server.url) as idle:
        assert idle.get("/readyz").status_code == 200
        server.popen.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert idle.get("/readyz").status_code == 503
        refused = httpx.post(server.url + "/v1/chat/completions", json=HELLO)
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        reading.join()
        assert server.text.count('"content":"x"') == 60
        assert server.text.endswith("data: [DONE]\n\n")
        assert server.wait(5) == 0


def test_what_does_not_end_in_time_is_told_so(process):
    server = process(reply="x" * 400, delay=0.05, drain_s=0.5)
    reading = server.begin_stream()
    server.popen.send_signal(signal.SIGTERM)
    assert server.wait(8) == 0
    reading.join()
    assert '"error"' in server.text
    assert server.text.endswith("data: [DONE]\n\n")


def test_a_second_signal_forces(process):
    server = process(reply="x" * 400, delay=0.05, drain_s=60)
    reading = server.begin_stream()
    server.popen.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    server.popen.send_signal(signal.SIGTERM)
    assert server.wait(8) == 0
    reading.join()


def test_a_port_in_use_is_one_sentence(process):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = process(port=port, ready=False)
        assert server.wait() == 1
    assert server.err == (
        f"glmserve: Cannot listen on 127.0.0.1: port {port} is in use; stop the other program or choose another with "
        "--port.\n"
    )


def test_a_load_that_fails_ends_the_process_with_its_code(process):
    server = process(mode="broken", ready=False)
    assert server.wait() == CheckpointError.exit_code
    assert server.err == "glmserve: The model is broken.\n"


def test_a_signal_while_loading_ends_at_once(process):
    server = process(mode="slow", ready=False)
    assert httpx.get(server.url + "/livez").status_code == 200
    assert httpx.get(server.url + "/readyz").status_code == 503
    server.popen.send_signal(signal.SIGTERM)
    assert server.wait(5) == 0


def test_an_open_address_without_keys_is_warned_about(process):
    server = process(mode="open")
    server.popen.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "--api-key-file" in server.err
