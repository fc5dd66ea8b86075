"""A server process that is started for a measurement and ended after it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from glmserve.api import GlmserveError

START_S = 1800.0
"""A first start may fetch and convert the model."""
POLL_S = 0.01
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


class BenchError(GlmserveError):
    """Nothing could be measured, or not all that was asked for."""


@dataclass(frozen=True)
class Running:
    """A server that is ready."""

    url: str
    pid: int
    ready_s: float
    """From the start of the process to its first "ready"."""


def glmserve_command(profile: str, *options: str) -> list[str]:
    """The command that serves `profile` with this interpreter on a free port of this machine."""
    start = "from glmserve.cli.main import main; main()"
    return [sys.executable, "-c", start, "run", "--profile", profile, "--host", "127.0.0.1", "--port", "0", *options]


@contextlib.contextmanager
def server(command: Sequence[str], ready: str, environ: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Run `command`, which must print its address, until GET `ready` answers 200; end it afterwards.

    Raises BenchError with the last line the process wrote when it ends before it is ready.
    """
    with tempfile.TemporaryFile("w+") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=None if environ is None else dict(environ)
        )
        try:
            url = ""
            while not (url and _answers(url + ready)):
                if process.poll() is not None or time.perf_counter() - begin > START_S:
                    lines = _read(output.fileno()).strip().splitlines() or ["it wrote nothing"]
                    raise BenchError(f"The server did not start: {lines[-1].removeprefix('glmserve: ')}")
                found = ADDRESS.search(_read(output.fileno()))
                url = found[0] if found else ""
                time.sleep(POLL_S)
            yield Running(url, process.pid, time.perf_counter() - begin)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _read(descriptor: int) -> str:
    """All that was written so far. The descriptor shares its offset with the writer, so it must not be moved."""
    import os

    return os.pread(descriptor, 1 << 20, 0).decode(errors="replace")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def peak_rss_bytes(pid: int) -> int | None:
    """The most memory a running process ever had resident, files it maps included; None where Linux does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else None
