"""A wheel as a container: the zip, the names in it, RECORD and WHEEL."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from packaging.tags import Tag, parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..content.unpack import UNPACK_ERRORS, zip_hides, zip_problem
from ..content.walk import Item, walk
from ..installed.declared import Headers, read_headers
from ..installed.record import Record, RecordEntry, digest_of, read_record
from ..report import Finding, Reason, Verdict

MAX_WHEEL_BYTES = 100 << 20
"""The package index takes no larger ones by default."""
MAX_TEXT_BYTES = 16 << 20
"""Of one file that is read as a whole: METADATA, RECORD, a licence."""

_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class OpenWheel:
    """A wheel whose zip could be opened."""

    path: Path
    file: IO[bytes]
    archive: zipfile.ZipFile
    info: str
    """Its NAME-VERSION.dist-info."""

    @cached_property
    def members(self) -> Mapping[str, zipfile.ZipInfo]:
        """The files that may be read, by name."""
        return {i.filename: i for i in self.archive.infolist() if not i.is_dir() and not zip_problem(i)}

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """Everything in it, nested archives included, without the wheel itself."""
        return tuple(walk(self.path.resolve()))[1:]

    @cached_property
    def top(self) -> Mapping[str, Item]:
        """Those of `items` that are files of the wheel itself, by name."""
        return {item.names[1]: item for item in self.items if len(item.names) == 2}

    @cached_property
    def headers(self) -> Headers:
        return read_headers(self.read(f"{self.info}/METADATA") or b"")

    def read(self, name: str) -> bytes | None:
        """A member's bytes; None when it is not there, too large or damaged, which `items` reports."""
        info = self.members.get(name)
        if info is None or info.file_size > MAX_TEXT_BYTES:
            return None
        try:
            with self.archive.open(info) as member:
                return member.read(MAX_TEXT_BYTES)
        except UNPACK_ERRORS:
            return None


def check_container(wheel: OpenWheel) -> Iterator[Finding]:
    """Findings on the zip, on its names, and on RECORD. Raises one of UNPACK_ERRORS for a damaged zip."""
    size = wheel.path.stat().st_size
    if size > MAX_WHEEL_BYTES:
        yield malformed(f"it has {size:,} bytes, and a wheel has at most {MAX_WHEEL_BYTES:,}")
    if zip_hides(wheel.file, wheel.archive):
        yield malformed("it has bytes that belong to none of its files")
    names: dict[str, str] = {}
    for info in wheel.archive.infolist():
        other = names.setdefault(info.filename.casefold(), info.filename)
        if other != info.filename:
            yield malformed(f"{other} and {info.filename} are one file on some systems")
    yield from _names(wheel)
    yield from _record(wheel)


def _names(wheel: OpenWheel) -> Iterator[Finding]:
    """File name, directory name, METADATA and WHEEL have to agree."""
    try:
        name, version, _, tags = parse_wheel_filename(wheel.path.name)
    except (InvalidWheelFilename, InvalidVersion, ValueError) as error:
        yield malformed(f"its file name is not that of a wheel: {error}")
        return
    stem, _, suffix = wheel.info.removesuffix(".dist-info").rpartition("-")
    said = {"directory": (stem, suffix), "METADATA": (wheel.headers.get("Name"), wheel.headers.get("Version"))}
    for where, (its_name, its_version) in said.items():
        if canonicalize_name(its_name) != name or not _is_version(its_version, version):
            yield _conflict(
                f"its file name says {name} {version}, and its {where} {its_name or '?'} {its_version or '?'}"
            )
    headers = read_headers(wheel.read(f"{wheel.info}/WHEEL") or b"")
    if not headers.get("Wheel-Version").startswith("1."):
        yield malformed("its WHEEL is missing, or of a version other than 1")
    if headers.get("Root-Is-Purelib").lower() not in ("true", "false"):
        yield malformed("its WHEEL does not say whether it is pure Python")
    if _tags(headers) != tags:
        yield _conflict("the tags of its WHEEL are not those of its file name")


def _record(wheel: OpenWheel) -> Iterator[Finding]:
    """RECORD lists every file once, with its digest and size, and nothing else."""
    path = f"{wheel.info}/RECORD"
    data = wheel.read(path)
    if data is None:
        yield malformed("it has no RECORD that can be read")
        return
    record: Record = read_record(data)
    yield from (malformed(f"its RECORD does not hold: {problem}") for problem in record.problems)
    entries = {entry.path: entry for entry in record.entries}
    exempt = {path, *(f"{wheel.info}/{name}" for name in _SIGNATURES)}
    for name in wheel.members.keys() - entries.keys() - exempt:
        yield Finding(Reason.UNOWNED_FILE, Verdict.DENY, f"{name} is not in its RECORD", remedies=("build it anew",))
    if path not in entries or entries[path].digest:
        yield malformed("its RECORD does not list itself without a digest")
    for name, entry in entries.items():
        if name not in wheel.members:
            yield Finding(Reason.FILE_MISSING, Verdict.DENY, f"its RECORD lists {name}, which is not there")
        elif name not in exempt:
            yield from _recorded(wheel, entry)


def _recorded(wheel: OpenWheel, entry: RecordEntry) -> Iterator[Finding]:
    if not entry.digest or entry.size is None:
        yield malformed(f"its RECORD has no digest or size for {entry.path}")
        return
    item = wheel.top.get(entry.path)
    if item is None or not item.sha256:
        yield malformed(f"{entry.path} could not be read to its end")
        return
    if entry.algorithm == "sha256":
        digest = item.sha256
    else:
        with wheel.archive.open(wheel.members[entry.path]) as member:
            digest = digest_of(entry.algorithm, member)
    if digest != entry.digest or item.size != entry.size:
        message = f"{entry.path} is not what its RECORD says"
        yield Finding(Reason.HASH_MISMATCH, Verdict.DENY, message, remedies=("build it anew",))


def _is_version(text: str, version: Version) -> bool:
    try:
        return Version(text.replace("_", "-")) == version
    except InvalidVersion:
        return False


def _tags(headers: Headers) -> frozenset[Tag]:
    try:
        return frozenset[Tag]().union(*(parse_tag(tag) for tag in headers.all("Tag")))
    except ValueError:
        return frozenset()


def malformed(message: str) -> Finding:
    return Finding(Reason.MALFORMED, Verdict.UNKNOWN, message, remedies=("build it anew",))


def _conflict(message: str) -> Finding:
    return Finding(Reason.METADATA_CONFLICT, Verdict.UNKNOWN, message, remedies=("build it anew",))
