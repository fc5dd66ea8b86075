"""Processes of followers: their output, their ends, and that none outlives its leader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from glmserve.cluster.launcher import LINE_BYTES, Followers, Lines, phrase
from hypothesis import given
from hypothesis import strategies as st

PATIENCE_S = 60
HERE = dict(os.environ)


class Seen:
    """What one rank's process, which runs a piece of Python, wrote and how it ended."""

    def __init__(self, code: str, ranks: int = 1) -> None:
        self.text = ""
        self.ends: dict[int, str] = {}
        self.all = threading.Event()

        def ended(rank: int, how: str) -> None:
            self.ends[rank] = how
            if len(self.ends) == ranks:
                self.all.set()

        environ = {rank: {**HERE, "RANK": str(rank)} for rank in range(1, ranks + 1)}
        files = dict.fromkeys(environ, ())
        self.followers = Followers([sys.executable, "-c", code], environ, files, ended, self.write)

    def write(self, text: str) -> None:
        self.text += text


def test_each_line_bears_the_rank_that_wrote_it_and_no_line_is_shared() -> None:
    code = "import os\nfor i in range(200): os.write(1 + i % 2, b'a'); os.write(2, b'b%d\\n' % i)\nos.write(1, b'end')"
    seen = Seen(code, ranks=3)
    seen.followers.stop(PATIENCE_S)
    lines = seen.text.splitlines()
    for rank in (1, 2, 3):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert own == [f"[rank {rank}] ab{i}" for i in range(200)] + [f"[rank {rank}] end"]
    assert len(lines) == 3 * 201


@given(st.lists(st.binary(max_size=20)))
def test_lines_do_not_depend_on_the_pieces_in_which_they_come(pieces: list[bytes]) -> None:
    written: list[str] = []
    lines = Lines("> ", written.append)
    for piece in pieces:
        lines.feed(piece)
    lines.end()
    whole = b"".join(pieces)
    expected = whole.split(b"\n")[: -1 if whole.endswith(b"\n") or not whole else None]
    assert "".join(written) == "".join(f"> {line.decode(errors='replace')}\n" for line in expected)


def test_a_line_without_end_is_written_in_pieces() -> None:
    written: list[str] = []
    lines = Lines("", written.append)
    for _ in range(3 * LINE_BYTES // 1000):
        lines.feed(b"x" * 1000)
    assert written[0] == "x" * LINE_BYTES + "\n"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("pass", "exited with 0"),
        ("raise SystemExit(3)", "exited with 3"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    ],
)
def test_the_end_of_a_process_is_told_in_words(code: str, how: str) -> None:
    seen = Seen(code)
    seen.followers.stop(PATIENCE_S)
    assert seen.ends == {1: how}


def test_the_end_of_a_process_is_told_while_another_keeps_its_output_open() -> None:
    seen = Seen("import os, time\nif pid := os.fork(): print(pid)\nelse: time.sleep(600)")
    assert seen.all.wait(PATIENCE_S)
    other = psutil.Process(int(seen.text.removeprefix("[rank 1] ")))
    assert other.is_running()
    other.kill()


def test_signals_without_a_name_have_their_number() -> None:
    assert phrase(-63) == "was killed by signal 63"


IGNORE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(600)"


@pytest.mark.parametrize(
    ("code", "how"), [(IGNORE, "was killed by SIGKILL"), ("import time; time.sleep(600)", "was killed by SIGTERM")]
)
def test_who_does_not_leave_is_ended_and_leaves_no_zombie(code: str, how: str) -> None:
    seen = Seen(f"import sys; sys.stdout.reconfigure(line_buffering=True); {code}")
    while code is IGNORE and "ready" not in seen.text:
        assert not seen.ends
    pid = seen.followers.pid(1)
    seen.followers.stop(0)
    assert seen.ends == {1: how}
    assert not psutil.pid_exists(pid)


def test_a_stopped_process_is_ended_too() -> None:
    seen = Seen("import time; time.sleep(600)")
    os.kill(seen.followers.pid(1), signal.SIGSTOP)
    seen.followers.stop(0)
    assert seen.ends[1].startswith("was killed by")


def test_only_the_files_of_its_rank_reach_a_process() -> None:
    read, write = os.pipe()
    other = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(other, True)
    code = f"import os; os.write({write}, b'through'); os.read({other}, 1)"
    followers = Followers([sys.executable, "-c", code], {1: HERE}, {1: [write]}, lambda *_: None, lambda _: None)
    followers.stop(PATIENCE_S)
    os.close(write)
    os.close(other)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"through"


def test_a_program_that_does_not_exist_is_an_error_and_no_thread_stays() -> None:
    before = threading.active_count()
    with pytest.raises(FileNotFoundError):
        Followers(["/nowhere/at/all"], {1: HERE}, {1: ()}, lambda *_: None)
    assert threading.active_count() == before


LEADER = """
import os, sys, time
from glmserve.cluster.launcher import Followers
child = "import sys, os, time; from glmserve.cluster.child import die_with; die_with(int(sys.argv[1]))"
child += "; print('up', os.getpid(), flush=True); time.sleep(600)"
argv = [sys.executable, "-c", child, str(os.getpid())]
Followers(argv, {r: os.environ for r in (1, 2)}, {1: (), 2: ()}, lambda *_: None, lambda text: print(text, flush=True))
time.sleep(600)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_no_process_outlives_a_killed_leader_stopped_or_not(stopped: bool) -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    pids: list[int] = []
    while len(pids) < 2:
        line = leader.stdout.readline()
        pids += [int(line.split()[-1])] if "up" in line else []
    if stopped:
        os.kill(pids[0], signal.SIGSTOP)
    followers = [psutil.Process(pid) for pid in pids]
    leader.kill()
    leader.wait()
    leader.stdout.close()
    assert psutil.wait_procs(followers, PATIENCE_S)[1] == []


def test_a_follower_whose_leader_is_gone_before_it_looks_leaves() -> None:
    code = "from glmserve.cluster.child import die_with; die_with(1 << 22); print('stays')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


def test_an_interrupt_of_the_terminal_reaches_the_leader_only(tmp_path: Path) -> None:
    seen = Seen("import os; print(os.getsid(0) == os.getpid())")
    seen.followers.stop(PATIENCE_S)
    assert seen.text == "[rank 1] True\n"
