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
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from glmserve.api import IntegrityError, SourceError

from . import hub, pypi
from .download import Progress, create, disk_errors, make_private, publish, sha256_of, write_all
from .sources import HubSource, PackageSource, PathSource, PypiSource, Source, parse_source

MANIFEST = "manifest.json"
LOCK = ".lock"


@dataclass(frozen=True)
class Broken:
    """Something stored that is not what was fetched."""

    file: Path
    """The directory, when the fetch was cut off."""
    what: Literal["missing", "changed", "incomplete"]


def store_dir() -> Path:
    """$GLMSERVE_HOME, or glmserve in the user's cache directory."""
    home = os.environ.get("GLMSERVE_HOME")
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(home) if home else (Path(cache) if cache else Path.home() / ".cache") / "glmserve"


def locate(source: Source, sha256: str | None = None) -> Path | None:
    """Where the model is on this machine, or None. Compares sizes and times, without the network.

    Raises SourceError for a path that does not exist and for a pin that cannot be checked, IntegrityError for a file
    whose digest is not `sha256`.
    """
    if isinstance(source, PackageSource):
        return _in_place(source.root() / source.member, sha256)
    if isinstance(source, PathSource):
        return _in_place(source.path, sha256)
    if sha256 and isinstance(source, HubSource):
        raise SourceError(f"A sha256 pins one file, and {source} is many, each pinned by the commit; drop the sha256.")
    directory = _directory(source)
    manifest = _manifest(directory)
    if manifest is None or not manifest["complete"]:
        return None
    if not all(_untouched(directory / name, entry) for name, entry in manifest["files"].items()):
        return None
    if isinstance(source, HubSource):
        return directory
    name = PurePosixPath(source.member).name
    if sha256 and manifest["files"][name]["sha256"] != sha256:
        raise IntegrityError(
            f"{source} has the sha256 {manifest['files'][name]['sha256']}, and not {sha256} that is pinned; correct "
            "the source or the pin."
        )
    return directory / name


def _in_place(path: Path, sha256: str | None) -> Path:
    """A file or directory that is used where it is."""
    if not path.exists():
        raise SourceError(f"{path} does not exist; correct the path, or fetch a model with `glmserve pull`.")
    if sha256 and path.is_dir():
        raise SourceError(f"{path} is a directory and a sha256 pins one file; name the file, or drop the pin.")
    if sha256 and _digest(path) != sha256:
        raise IntegrityError(f"{path} does not have the pinned sha256 {sha256}.")
    return path


def pull(source: Source, sha256: str | None = None, progress: Progress | None = None) -> Path:
    """Fetch what is not here yet; return the file or directory. What is here already costs no network.

    Raises SourceError (network, disk, wrong source) or IntegrityError (wrong bytes); what has arrived is kept.
    """
    found = locate(source, sha256)
    if found is not None:
        return found
    assert not isinstance(source, PathSource | PackageSource)
    with _locked(source, progress) as directory:
        if locate(source, sha256) is None:
            _fetch(source, directory, progress)
    path = locate(source, sha256)
    if path is None:
        raise IntegrityError(f"{directory} changed while it was being fetched; run `glmserve pull` again.")
    return path


def stored() -> tuple[list[Source], list[Path]]:
    """Every source of which something is stored, and the directories whose record cannot be read."""
    sources, unreadable = [], []
    for path in sorted((store_dir() / "models").glob(f"*/{MANIFEST}")):
        manifest = _manifest(path.parent)
        try:
            sources.append(parse_source(manifest["source"] if manifest else ""))
        except SourceError:
            unreadable.append(path.parent)
    return sources, unreadable


def verify(source: Source, progress: Progress | None = None) -> list[Broken]:
    """Hash every stored file of a fetched source again. Raises SourceError when it was never fetched."""
    if isinstance(source, PathSource | PackageSource):
        raise SourceError(f"{source} is not in the store: there is no digest on record to compare it with.")
    directory = _directory(source)
    manifest = _manifest(directory)
    if manifest is None:
        raise SourceError(f"Nothing of {source} is stored in {directory}; fetch it with `glmserve pull`.")
    broken = [] if manifest["complete"] else [Broken(directory, "incomplete")]
    for name, entry in manifest["files"].items():
        file = directory / name
        if not file.is_file():
            broken.append(Broken(file, "missing"))
        elif not _same(file, entry, progress):
            broken.append(Broken(file, "changed"))
    return broken


def repair(source: Source, progress: Progress | None = None) -> list[Broken]:
    """Fetch again only what `verify` finds broken, and what a cut-off fetch lacks; returns what was broken."""
    broken = verify(source, progress)
    if broken and not isinstance(source, PathSource | PackageSource):
        with _locked(source, progress) as directory:
            # Again, now that no one else is at it: another process may have repaired it in the meantime.
            broken = verify(source, progress)
            for fault in broken:
                if fault.what == "changed":
                    fault.file.unlink()
            if broken:
                _fetch(source, directory, progress)
    return broken


def _fetch(source: HubSource | PypiSource, directory: Path, progress: Progress | None) -> None:
    """Fetch what is not here as the record says, which is written after every file: a cut-off fetch goes on there."""
    record = _manifest(directory) or {"files": {}}
    files = {name: _renewed(directory / name, entry, progress) for name, entry in record["files"].items()}
    sound = {name: entry for name, entry in files.items() if entry is not None}

    def save(complete: bool) -> None:
        text = json.dumps({"source": str(source), "complete": complete, "files": sound}, indent=1)
        partial = directory / (MANIFEST + ".partial")
        with create(partial) as file:
            write_all(file, text.encode())
        publish(partial, directory / MANIFEST)

    save(complete=False)
    fetched: Iterator[tuple[Path, str | None]]
    if isinstance(source, HubSource):
        fetched = hub.fetch(source, directory, sound, progress)
    else:
        fetched = iter(()) if sound else pypi.fetch(source, directory, progress)
    try:
        for file, sha256 in fetched:
            sound[file.relative_to(directory).as_posix()] = _entry(file, sha256 or sha256_of(file))
            save(complete=False)
    except SourceError:
        # A source that gave nothing, such as one with a typing error, is not stored in part.
        if {path.name for path in directory.iterdir()} <= {MANIFEST, LOCK}:
            (directory / MANIFEST).unlink()
        raise
    save(complete=True)


def _digest(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror or error}); correct its permissions.") from None


def _entry(file: Path, sha256: str) -> dict[str, Any]:
    stat = file.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256}


def _untouched(file: Path, entry: dict[str, Any]) -> bool:
    """Whether size and time are those on record."""
    try:
        stat = file.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (entry["size"], entry["mtime_ns"])


def _renewed(file: Path, entry: dict[str, Any], progress: Progress | None) -> dict[str, Any] | None:
    """The entry of a stored file with its time of today; None when the content is not that on record."""
    if _untouched(file, entry):
        return entry
    return _entry(file, entry["sha256"]) if _same(file, entry, progress) else None


def _same(file: Path, entry: dict[str, Any], progress: Progress | None) -> bool:
    """Whether the content is that on record. What a failing disk does not give back is not."""
    try:
        return bool(file.stat().st_size == entry["size"]) and sha256_of(file, progress) == str(entry["sha256"])
    except OSError:
        return False


def _directory(source: HubSource | PypiSource) -> Path:
    """Readable, and distinct for distinct sources."""
    name = source.repo if isinstance(source, HubSource) else f"{source.package}-{source.version}"
    digest = hashlib.sha256(repr(source).encode()).hexdigest()[:12]
    return store_dir() / "models" / f"{re.sub(r'[^A-Za-z0-9._-]', '--', name)}-{digest}"


def _manifest(directory: Path) -> dict[str, Any] | None:
    """The record of a directory; None when there is none, or none that can be trusted."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        whole = all(entry["sha256"] and entry["size"] + entry["mtime_ns"] >= 0 for entry in manifest["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (
        manifest
        if whole and isinstance(manifest.get("source"), str) and isinstance(manifest.get("complete"), bool)
        else None
    )


@contextmanager
def _locked(source: HubSource | PypiSource, progress: Progress | None) -> Iterator[Path]:
    """The source's directory. One process at a time fetches a source; the others wait and then find it there."""
    directory = _directory(source)
    with disk_errors(directory):
        make_private(directory)
        with (directory / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress is not None:
                    progress(f"waiting for another process that fetches {source}", 0, 0)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield directory
