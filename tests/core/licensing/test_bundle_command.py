"""`glmserve bundle` as the process that a user starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from ..distributions import GLMSERVE, glmserve
from .assembly import safetensors, write

MODEL = """
[profile]
name = "mine"
[model]
source = "path:{model}"
served_name = "m"
license = "MIT"
[licenses.facts]
purpose = "noncommercial"
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile whose model lies in a directory of which no manifest says what is in it."""
    model = write(tmp_path / "model", {"model.safetensors": safetensors({"w": (4, 4)}), "config.json": b"{}"})
    (tmp_path / "mine.toml").write_text(MODEL.format(model=model))
    return tmp_path / "mine.toml"


def test_the_default_profile_is_packed_and_sound_and_two_runs_are_equal(tmp_path: Path) -> None:
    out = tmp_path / "a.tar"
    ran = glmserve("bundle", "local", "-o", str(out), "--stub")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert "smollm2-135m-instruct-q4_1  weights" in ran.stdout
    checked = glmserve("bundle", "verify", str(out))
    assert (checked.returncode, checked.stdout) == (0, f"{out}: sound\n"), checked.stderr
    first = out.read_bytes()
    assert glmserve("bundle", "make", "local", "-o", str(out), "--stub").returncode == 0
    assert out.read_bytes() == first
    with tarfile.open(out) as tar:
        index = json.load(tar.extractfile("glmserve-bundle.json"))  # type: ignore[arg-type]
    assert index["schema"] == "glmserve.bundle/1"
    harmed = bytearray(first)
    harmed[len(first) // 2] ^= 1
    out.write_bytes(harmed)
    broken = glmserve("bundle", "verify", str(out))
    assert broken.returncode == 3
    assert broken.stdout.endswith(f"{out}: broken\n")
    assert "Traceback" not in broken.stderr


def test_the_source_date_is_the_time_in_the_archive(tmp_path: Path) -> None:
    out = tmp_path / "a.tar"
    command = ("bundle", "local", "-o", str(out), "--stub", "--use", "redistribute-source")
    assert glmserve(*command, SOURCE_DATE_EPOCH="1700000000").returncode == 0
    with tarfile.open(out) as tar:
        assert {member.mtime for member in tar} == {1_700_000_000}
    out.unlink()
    for wrong in ("yesterday", "-1", "9" * 15, "1e9", "\N{ARABIC-INDIC DIGIT ONE}"):
        ran = glmserve(*command, SOURCE_DATE_EPOCH=wrong)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("glmserve: ")
    assert list(tmp_path.iterdir()) == []


def test_the_flagship_is_refused_for_its_reasons_and_leaves_no_file(tmp_path: Path) -> None:
    ran = glmserve("bundle", "four-spark", "-o", str(tmp_path / "a.tar"), "--strict")
    assert ran.returncode == 1
    assert "drafter-glm53-dflash2 (CC-BY-NC-ND-4.0): PROJECT_POLICY" in ran.stderr
    assert "--stub" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_files_of_which_nobody_says_what_they_are_are_refused(profile: Path, tmp_path: Path) -> None:
    ran = glmserve("bundle", str(profile), "-o", str(tmp_path / "a.tar"))
    assert ran.returncode != 0
    assert "model.safetensors belongs to no component" in ran.stderr
    assert not (tmp_path / "a.tar").exists()


def test_a_dry_run_needs_no_place_and_writes_nothing(tmp_path: Path) -> None:
    ran = glmserve("bundle", "local", "--stub", "--dry-run")
    assert ran.returncode == 0
    assert "would be packed" in ran.stdout
    assert glmserve("bundle", "local", "--stub").returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        "bundle",
        "bundle nowhere -o a.tar",
        "bundle local -o a.tar --use run-local",
        "bundle local -o none/a.tar --stub",
        "bundle verify",
        "bundle verify missing.tar",
        "bundle verify .",
        "bundle local -o a.tar --stub --policy missing.toml",
    ],
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    ran = glmserve(*line.split())
    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_at_any_moment_leaves_no_file(tmp_path: Path) -> None:
    command = [GLMSERVE, "bundle", "local", "-o", str(tmp_path / "a.tar"), "--stub"]
    for delay_s, how in ((0.7, signal.SIGINT), (1.2, signal.SIGTERM), (1.7, signal.SIGINT)):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(delay_s)
            process.send_signal(how)
            status = process.wait(30)
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == (["a.tar"] if status == 0 else []), status
        (tmp_path / "a.tar").unlink(missing_ok=True)


def test_bundling_imports_no_torch(tmp_path: Path) -> None:
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "from glmserve.cli.main import main\n"
        f"main(['bundle', 'local', '-o', {str(tmp_path / 'a.tar')!r}, '--stub'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=os.environ)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "False"
