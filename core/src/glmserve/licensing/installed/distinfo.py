"""One installed distribution as it lies on disk, read without importing anything of it."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, PathDistribution, distributions
from pathlib import Path

from .declared import MAX_METADATA_BYTES, Headers, read_headers
from .record import Record, RecordEntry, read_record

_METADATA = ("METADATA", "PKG-INFO")
_MAX_RECORD_BYTES = 64 << 20


@dataclass(frozen=True)
class Installed:
    """A directory NAME-VERSION.dist-info, or what stands for one in older installations."""

    dist: Distribution
    root: Path
    """The directory that it is installed into: RECORD's paths are relative to it."""
    info: Path | None
    """Its metadata directory; None when the metadata is a single file or lies in a zip."""

    @cached_property
    def metadata(self) -> bytes:
        """The bytes of its metadata file; b"" when there is none or it cannot be read."""
        for name in _METADATA if self.info is not None else ():
            data = self.read(name, MAX_METADATA_BYTES)
            if data is not None:
                return data
        try:
            text = self.dist.read_text("METADATA") or self.dist.read_text("PKG-INFO") or self.dist.read_text("") or ""
        except (OSError, UnicodeDecodeError, ValueError):
            text = ""
        return text.encode("utf-8", "replace")[:MAX_METADATA_BYTES]

    @cached_property
    def headers(self) -> Headers:
        return read_headers(self.metadata)

    @cached_property
    def name(self) -> str:
        """As its metadata spells it; from the directory's name when the metadata is lost."""
        return self.headers.get("Name") or self._stem[0] or "unnamed"

    @cached_property
    def key(self) -> str:
        return normalised(self.name)

    @cached_property
    def version(self) -> str:
        return self.headers.get("Version") or self._stem[1]

    @cached_property
    def record(self) -> Record | None:
        """None where nothing records its files: eggs, conda, packages of the operating system."""
        data = self.read("RECORD", _MAX_RECORD_BYTES)
        return None if data is None else read_record(data)

    @cached_property
    def entries(self) -> dict[str, RecordEntry]:
        """RECORD's entries by path."""
        return {entry.path: entry for entry in self.record.entries} if self.record is not None else {}

    @cached_property
    def editable(self) -> bool:
        """Its modules are those of a working copy, which RECORD does not list."""
        try:
            url = json.loads(self.read("direct_url.json", MAX_METADATA_BYTES) or b"{}")
            return bool(url["dir_info"]["editable"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return False

    @cached_property
    def entry_points(self) -> str:
        data = self.read("entry_points.txt", MAX_METADATA_BYTES)
        return "" if data is None else data.decode("utf-8", "replace")

    @property
    def requires(self) -> tuple[str, ...]:
        """Its Requires-Dist."""
        found = self.headers.all("Requires-Dist")
        # Eggs keep them in a file of their own.
        return (
            found if found or self.info is None or self.info.suffix == ".dist-info" else tuple(self.dist.requires or ())
        )

    def read(self, name: str, limit: int) -> bytes | None:
        """A regular file of the metadata directory, or None when there is none of at most `limit` bytes."""
        return read_regular(self.info / name, limit) if self.info is not None else None

    @property
    def _stem(self) -> tuple[str, str]:
        stem = self.info.stem.encode("utf-8", "replace").decode() if self.info is not None else ""
        name, _, version = stem.partition("-")
        return name.lstrip("~"), version


def installed(paths: Iterable[str] | None = None) -> Iterator[Installed]:
    """The distributions on `paths` (sys.path by default) in the order of the path; of several with a name, the first.

    That is the one that an import of its modules finds.
    """
    seen: set[str] = set()
    found = distributions() if paths is None else distributions(path=[str(path) for path in paths])
    for dist in found:
        where = dist._path if isinstance(dist, PathDistribution) else None
        info = where if isinstance(where, Path) and where.is_dir() else None
        # An egg has its metadata in EGG-INFO, and locate_file is relative to that directory's parent as well.
        one = Installed(dist, Path(str(dist.locate_file(""))), info)
        if one.key not in seen:
            seen.add(one.key)
            yield one


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_regular(path: Path, limit: int) -> bytes | None:
    """The bytes of a regular file, or None: it is missing, no regular file, larger than `limit`, or unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        try:
            return file.read(limit)
        except OSError:
            return None
