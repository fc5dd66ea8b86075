"""`glmserve pull` and `glmserve verify` as a user runs them."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from glmserve.store import progress

from .conftest import FileServer
from .test_pull import COMMIT, LARGE, REPOSITORY, WEIGHTS, resolved

SOURCE = f"hf:org/model@{COMMIT}"
COMMAND = [sys.executable, "-c", "from glmserve.cli.main import main; main()"]


class Store:
    """The command with a home and a hub of its own."""

    def __init__(self, home: Path, server: FileServer) -> None:
        self.server = server
        self.home = home
        server.add_repository("org/model", COMMIT, REPOSITORY, LARGE)
        self.environ = os.environ | {"GLMSERVE_HOME": str(home), "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}

    def __call__(
        self, *args: str, status: int = 0, prepare: Callable[[], None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *args], env=self.environ, capture_output=True, text=True, timeout=50, preexec_fn=prepare
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def store(tmp_path: Path, server: FileServer) -> Store:
    return Store(tmp_path / "home", server)


def test_pull_prints_the_path_and_tells_progress_in_plain_lines(store: Store) -> None:
    store.server.drops[resolved("model-1.safetensors")] = [200_000, 0, 0]
    done = store("pull", SOURCE)
    path = Path(done.stdout.removesuffix("\n"))
    assert (path / "model-1.safetensors").read_bytes() == WEIGHTS[0]
    assert f"asking {store.server.url}" in done.stderr
    assert re.search(r"^model-1\.safetensors: done, 600\.0 kB in 0:0\d$", done.stderr, re.MULTILINE)
    assert "\x1b" not in done.stderr
    assert store("verify").stdout == f"{SOURCE}: sound\n"


def test_a_log_gets_a_line_at_every_interval_with_share_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.2)
    log = io.StringIO()
    with progress.show_progress(log) as tell:
        began = time.monotonic()
        # 3 MB are from an earlier run and no part of the rate.
        while (passed := time.monotonic() - began) < 0.7:
            tell("m.gguf", 3_000_000 + int(passed * 1e6), 5_000_000)
            time.sleep(0.01)
        tell("m.gguf", 5_000_000, 5_000_000)
    first, *lines, last = log.getvalue().splitlines()
    assert first == "m.gguf: 3.0 MB of 5.0 MB"
    assert 1 <= len(lines) <= 3
    assert all(
        re.fullmatch(r"m\.gguf: 3\.\d MB of 5\.0 MB \(\d\d%\), .* [kM]B/s, 0:01 left", line) for line in lines
    ), lines
    assert last == "m.gguf: done, 5.0 MB in 0:00"


def test_pull_shows_bars_with_rate_and_time_left_on_a_terminal(store: Store) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 140, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, "pull", SOURCE], env=store.environ | {"TERM": "xterm"}, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # the end of a terminal
        pass
    os.close(ours)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, shown
    assert Path(out.decode().strip()).is_dir()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert re.search(r"model-1\.safetensors .*600\.0/600\.0 kB .*(B/s|\?).* \d:\d\d:\d\d", text), text


def test_a_branch_name_is_refused(store: Store) -> None:
    done = store("pull", "hf:org/model@main", status=3)
    assert "give the 40-digit commit" in done.stderr
    assert store.server.requests == []


def test_a_digest_on_a_repository_is_refused(store: Store) -> None:
    assert "pins one file" in store("pull", SOURCE, "--sha256", "0" * 64, status=3).stderr
    assert "64 hexadecimal digits" in store("pull", SOURCE, "--sha256", "main", status=2).stderr


def test_a_file_that_is_gone_is_a_sentence(store: Store) -> None:
    del store.server.files[resolved("config.json")]
    assert "config.json cannot be fetched: the server answered 404." in store("pull", SOURCE, status=3).stderr


def test_a_full_disk_is_a_sentence_and_what_arrived_is_kept(store: Store) -> None:
    done = store(
        "pull", SOURCE, status=3, prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    )
    assert "model-1.safetensors cannot be written (there is no room for it)" in done.stderr
    store("pull", SOURCE)
    assert [r.start for r in store.server.requests if r.path == resolved("model-1.safetensors")] == [0, 400_000]


def test_a_pull_that_was_killed_goes_on(store: Store) -> None:
    store.server.stall_after = 250_000
    process = subprocess.Popen([*COMMAND, "pull", SOURCE], env=store.environ, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not any(file.stat().st_size == 250_000 for file in store.home.rglob("*.partial")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store.server.stall_after = None
    store.server.stopped.set()
    assert "incomplete" in store("verify", status=1).stdout
    path = Path(store("pull", SOURCE).stdout.strip())
    assert (path / "model-1.safetensors").read_bytes() == WEIGHTS[0]
    assert [r.start for r in store.server.requests if r.path == resolved("model-1.safetensors")] == [0, 250_000]
    assert store.server.sent(resolved("config.json")) == len(REPOSITORY["config.json"])


def test_a_flipped_bit_is_found_and_only_its_file_fetched_again(store: Store) -> None:
    path = Path(store("pull", SOURCE).stdout.strip())
    file = path / "model-2.safetensors"
    before = file.stat()
    flipped = bytearray(WEIGHTS[1])
    flipped[123_456] ^= 16
    file.write_bytes(flipped)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a disk does it: unseen by size and time
    assert store("verify", SOURCE, status=1).stdout == f"{SOURCE}: broken\n  changed: {file}\n"
    store.server.requests.clear()
    (row,) = json.loads(store("verify", "--repair", "--format", "json").stdout)
    assert row == {
        "source": SOURCE,
        "broken": [{"file": str(file), "what": "changed"}],
        "repaired": True,
        "error": None,
    }
    assert store.server.paths() == [f"/api/models/org/model/revision/{COMMIT}", resolved("model-2.safetensors")]
    assert store("verify", SOURCE).stdout == f"{SOURCE}: sound\n"


def test_one_that_cannot_be_repaired_does_not_hide_the_others(store: Store) -> None:
    other = "f" * 40
    store.server.add_repository("org/other", other, REPOSITORY, LARGE)
    paths = [Path(store("pull", source).stdout.strip()) for source in (SOURCE, f"hf:org/other@{other}")]
    for path in paths:
        (path / "config.json").unlink()
    store.server.files[resolved("config.json")] = b'{"architectures": 12}'
    rows = json.loads(store("verify", "--repair", "--format", "json", status=1).stdout)
    assert [row["repaired"] for row in rows] == [False, True]
    assert "config.json does not have the expected digest" in rows[0]["error"]
    (paths[1] / "manifest.json").write_text("{")
    assert "its record cannot be read" in store("verify", status=1).stdout


def test_an_empty_store_says_how_to_begin(store: Store) -> None:
    assert "glmserve pull" in store("verify").stdout
    assert json.loads(store("verify", "--format", "json").stdout) == []
    assert "fetch it with `glmserve pull`" in store("verify", SOURCE, status=3).stderr
