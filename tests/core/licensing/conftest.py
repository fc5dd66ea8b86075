"""Fixtures of the tests of the licence commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from glmserve.cli.main import main

from .commands import Ran, Run


@pytest.fixture
def glmserve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command in this process, with a store and acceptances of its own and without a terminal."""
    monkeypatch.setenv("GLMSERVE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115 - the test's end closes it

    def run(*args: str | Path) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        assert "Traceback" not in captured.out + captured.err
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path, to install made-up distributions into."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    return directory
