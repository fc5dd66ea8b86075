"""Every wheel that this repository builds passes its own packaging gate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from glmserve.licensing.wheel.check import check_wheel

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = [
    folder
    for folder in (ROOT / "core", ROOT / "licenses", *sorted(ROOT.glob("plugins/*")), *sorted(ROOT.glob("models/*")))
    if (folder / "pyproject.toml").is_file()
]


def test_there_is_something_to_build() -> None:
    assert {"core", "licenses", "tiny_glm"} <= {folder.name for folder in DISTRIBUTIONS}


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_a_built_wheel_may_be_published(folder: Path, tmp_path: Path) -> None:
    flags = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", str(tmp_path), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert check_wheel(wheel) == ()
