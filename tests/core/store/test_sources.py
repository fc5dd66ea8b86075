"""How sources are spelled, and what is refused."""

from pathlib import Path

import pytest
from glmserve.api import SourceError
from glmserve.store.sources import HubSource, PathSource, PypiSource, Source, parse_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (f"hf:org/repo.v1@{COMMIT}", HubSource("org/repo.v1", COMMIT)),
        ("path:some/dir", PathSource(Path("some/dir"))),
        ("pypi:llm-x==0.1.2/pkg/m.gguf", PypiSource("llm-x", "0.1.2", "pkg/m.gguf")),
    ],
)
def test_a_source_is_read_and_written_the_same(text: str, source: Source) -> None:
    assert parse_source(text) == source
    assert str(source) == text


@pytest.mark.parametrize("revision", ["@main", "@v1.0", "", "@" + COMMIT[:7], "@" + COMMIT.upper()])
def test_a_revision_that_can_change_is_refused(revision: str) -> None:
    with pytest.raises(SourceError, match="40-digit commit"):
        parse_source(f"hf:org/repo{revision}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "org/repo",
        "path:",
        "hf:repo",
        "hf:../../etc@" + COMMIT,
        "pypi:x/m.gguf",
        "pypi:x==1",
        "pypi:x==1/../m",
        "pypi:--index-url==1/m",
        "ftp:x",
    ],
)
def test_what_is_no_source_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(SourceError, match="is not a model source"):
        parse_source(text)


def test_a_path_in_the_home_directory_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_source("path:~/m") == PathSource(tmp_path / "m")
