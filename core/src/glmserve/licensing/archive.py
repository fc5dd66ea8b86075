"""Deterministic tar files: what is written depends on paths, contents and an epoch, and on nothing else.

There is one way to write given files, and the reader takes no other: it makes every header again from what it read and
compares. So a changed bit in a header, in padding or after the end is seen as surely as one in a file's content.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from glmserve.api.errors import ConfigError, GlmserveError, IntegrityError

Progress = Callable[[str, int, int], None]
"""progress(what is being done, done_bytes, total_bytes)."""

CHUNK_BYTES = 1 << 20
MAX_EPOCH_S = 8**11 - 1
"""The latest modification time that a plain tar header holds."""
MAX_PATH_BYTES = 1024
MAX_ENTRIES = 1_000_000
_BLOCK = tarfile.BLOCKSIZE
_MAX_EXTENSION_BYTES = 16 * _BLOCK
_END = bytes(2 * _BLOCK)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Member:
    """A file to write."""

    path: str
    """In the archive."""
    source: Path | bytes
    """A file on this machine, or the content itself."""
    size: int
    """Bytes."""
    sha256: str
    executable: bool = False


@dataclass(frozen=True)
class Entry:
    """A file that was read."""

    path: str
    size: int
    """Bytes."""
    sha256: str
    executable: bool
    offset: int
    """Of its content, in bytes from the start of the archive."""


def path_fault(path: str) -> str:
    """Why `path` cannot stand in an archive, as a phrase; "" when it can."""
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "is not UTF-8"
    if not path or len(encoded) > MAX_PATH_BYTES:
        return f"has {len(encoded)} bytes instead of 1 to {MAX_PATH_BYTES}"
    if path.startswith("/") or "\\" in path or re.match(r"[A-Za-z]:", path):
        return "is not a relative path with forward slashes"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return 'has an empty part, "." or ".."'
    if not path.isprintable():
        return "has characters that cannot be printed"
    return ""


def member_of(path: str, source: Path | bytes, progress: Progress | None = None) -> Member:
    """Hash what shall be written as `path`.

    Raises GlmserveError for a source that is no regular file, or cannot be read, and for a path that no archive holds.
    """
    if fault := path_fault(path):
        raise GlmserveError(f"{path[:200]!r} cannot be packed, because its name {fault}; rename it.")
    if isinstance(source, bytes):
        return Member(path, source, len(source), hashlib.sha256(source).hexdigest())
    digest = hashlib.sha256()
    with open_regular(source) as file:
        status = os.fstat(file.fileno())
        done = 0
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"checking {source.name}", done, status.st_size)
    return Member(path, source, done, digest.hexdigest(), bool(status.st_mode & stat.S_IXUSR))


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Raises GlmserveError for anything else, without waiting for a pipe's writer."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise GlmserveError(f"{path} is not a regular file and cannot be packed; take it out of the tree.")
            yield file
    except OSError as error:
        raise GlmserveError(f"{path} cannot be read: {error.strerror or error}.") from None


def collision(paths: Iterable[str]) -> str:
    """What is wrong with these paths taken together, as a clause; "" when nothing is."""
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            return f"{path} is there twice"
        seen.add(path)
    for path in sorted(seen):
        parts = path.split("/")
        for above in range(1, len(parts)):
            if (parent := "/".join(parts[:above])) in seen:
                return f"{parent} is both a file and a directory"
    return ""


def write_archive(out: Path, members: Iterable[Member], *, epoch_s: int, progress: Progress | None = None) -> None:
    """Write a tar file with every member, all of them last modified at `epoch_s`, in seconds since 1970 UTC.

    It gets its name when it is complete. Whatever goes wrong before, an interrupt included, leaves no file, and what
    stood at `out` as it was. Raises ConfigError for a place that cannot be written, GlmserveError when the disk is
    full, and IntegrityError when a source is not what its member says any more.
    """
    if not 0 <= epoch_s <= MAX_EPOCH_S:
        raise ConfigError(f"The modification time {epoch_s} is not between 0 and {MAX_EPOCH_S} seconds since 1970.")
    members = sorted(members, key=lambda member: _order(member.path))
    if clash := collision(member.path for member in members):
        raise GlmserveError(f"No archive can be written, because {clash}; leave one of them out.")
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(8)}.partial")
    try:
        if out.exists() and not out.is_file():
            raise ConfigError(f"{out} is there and is not a file; choose another name for the archive.")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            total, done = sum(member.size for member in members), 0
            for member in members:
                file.write(_header(member.path, member.size, member.executable, epoch_s))
                for chunk in _content(member):
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(f"writing {out.name}", done, total)
                file.write(bytes(-member.size % _BLOCK))
            file.write(_END)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, out)
    except BaseException as error:
        # A name that is too long cannot be removed either.
        with suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        if error.errno in _FULL:
            raise GlmserveError(f"There is no room for {out}; free some space and repeat.") from None
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}.") from None
    directory = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_archive(path: Path, progress: Progress | None = None) -> tuple[Entry, ...]:
    """Every file of an archive that `write_archive` wrote, sorted by path.

    Raises ConfigError when there is no such file, and IntegrityError for an archive that differs in any byte from what
    `write_archive` makes of these files; links, devices, directories and paths that lead outside are among that.
    """
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path} is not a regular file; name an archive.")
            return tuple(_Reader(file, path, progress).entries())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None


def content(path: Path, entry: Entry, limit_bytes: int) -> bytes:
    """The content of an entry of the archive at `path`. Raises IntegrityError when it is larger than `limit_bytes`."""
    if entry.size > limit_bytes:
        raise IntegrityError(
            f"{entry.path} in {path} has {entry.size} bytes, and more than {limit_bytes} are not read."
        )
    with path.open("rb") as file:
        file.seek(entry.offset)
        data = file.read(entry.size)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise IntegrityError(f"{path} changed while it was read.")
    return data


class _Reader:
    """One pass over an archive."""

    def __init__(self, file: BinaryIO, path: Path, progress: Progress | None) -> None:
        self._file = file
        self._path = path
        self._progress = progress
        self._size = os.fstat(file.fileno()).st_size

    def entries(self) -> Iterator[Entry]:
        names: list[str] = []
        epoch_s = 0
        while (block := self._file.read(_BLOCK)) != bytes(_BLOCK):
            header, info = self._next_header(block)
            if fault := path_fault(info.name):
                raise self._damaged(f"the name {info.name[:200]!r} {fault}")
            if names and _order(info.name) <= _order(names[-1]):
                raise self._damaged(f"{info.name} is out of order or there twice")
            epoch_s = epoch_s if names else int(info.mtime)
            executable = info.mode == 0o755
            if header != _header(info.name, info.size, executable, epoch_s):
                raise self._damaged(f"the header of {info.name} is not as glmserve writes it")
            names.append(info.name)
            if len(names) > MAX_ENTRIES:
                raise self._damaged(f"it has more than {MAX_ENTRIES} files")
            offset = self._file.tell()
            yield Entry(info.name, info.size, self._digest(info.size), executable, offset)
            if any(self._file.read(-info.size % _BLOCK)):
                raise self._damaged(f"something stands after the end of {info.name}")
        if self._file.read(_BLOCK + 1) != bytes(_BLOCK):
            raise self._damaged("it does not end where its last file does")
        if clash := collision(names):
            raise self._damaged(clash)

    def _next_header(self, block: bytes) -> tuple[bytes, tarfile.TarInfo]:
        """(its bytes, the header) that begins with `block`; an extension for a long name or size is part of it."""
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            if info.type != tarfile.XHDTYPE:
                return block, info
            if not 0 < info.size <= _MAX_EXTENSION_BYTES:
                raise ValueError
            extension = self._file.read(info.size + -info.size % _BLOCK)
            last = self._file.read(_BLOCK)
            records = dict(_records(extension[: info.size]))
            info = tarfile.TarInfo.frombuf(last, "utf-8", "strict")
            info.name = records.get("path", info.name)
            info.size = int(records.get("size", info.size))
            if info.size < 0:
                raise ValueError
        except (tarfile.TarError, ValueError, OverflowError, struct.error):
            raise self._damaged(f"there is no file header at byte {self._file.tell() - _BLOCK}") from None
        return block + extension + last, info

    def _digest(self, size: int) -> str:
        digest, left = hashlib.sha256(), size
        if size > self._size - self._file.tell():
            raise self._damaged("it ends in the middle of a file")
        while left:
            chunk = self._file.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise self._damaged("it became shorter while it was read")
            digest.update(chunk)
            left -= len(chunk)
            if self._progress is not None:
                self._progress(f"checking {self._path.name}", self._file.tell(), self._size)
        return digest.hexdigest()

    def _damaged(self, why: str) -> IntegrityError:
        return IntegrityError(f"{self._path} is not an undamaged bundle: {why}; get it again from where it was made.")


def _records(extension: bytes) -> Iterator[tuple[str, str]]:
    """Key and value of every record of a pax header. Raises ValueError."""
    while extension:
        length, _, _ = extension.partition(b" ")
        record = extension[: int(length)] if length.isdigit() and len(length) < 6 else b""
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if not equals or not record.endswith(b"\n"):
            raise ValueError("malformed record")
        yield key.decode("utf-8"), value.decode("utf-8")
        extension = extension[len(record) :]


def _header(path: str, size: int, executable: bool, epoch_s: int) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mtime, info.mode = size, epoch_s, 0o755 if executable else 0o644
    try:
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    except (ValueError, OverflowError, struct.error):
        # Only of numbers that a damaged header held.
        return b""


def _content(member: Member) -> Iterator[bytes]:
    """The bytes of a member, in pieces. Raises IntegrityError when they are not what was hashed before."""
    if isinstance(member.source, bytes):
        yield member.source
        return
    digest, left = hashlib.sha256(), member.size
    with open_regular(member.source) as file:
        while left and (chunk := file.read(min(left, CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        if left or file.read(1) or digest.hexdigest() != member.sha256:
            raise IntegrityError(f"{member.source} changed while it was packed; repeat when nothing writes to it.")


def _order(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _umask() -> int:
    # There is no way to ask that does not set it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
