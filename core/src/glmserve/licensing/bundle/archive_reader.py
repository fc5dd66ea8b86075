"""Reading the archives that `archive` writes, and no others.

Every header is made again from what was read and compared. So a changed bit in a header, in padding or after the end is
seen as surely as one in a file's content.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from glmserve.api.errors import ConfigError, IntegrityError

from .archive import BLOCK_BYTES, CHUNK_BYTES, Progress, collision, header, order, path_fault

MAX_ENTRIES = 1_000_000
_MAX_EXTENSION_BYTES = 16 * BLOCK_BYTES


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


def read_archive(path: Path, progress: Progress | None = None) -> tuple[Entry, ...]:
    """Every file of an archive that `write_archive` wrote, sorted by path.

    Raises ConfigError when there is no such file, and IntegrityError for an archive that differs in any byte from what
    `write_archive` makes of these files; links, devices, directories and paths that lead outside are among that.
    """
    try:
        # Before it is opened: a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path} is not a regular file; name an archive.")
        with path.open("rb") as file:
            return tuple(_Reader(file, path, progress).entries())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None


def content(path: Path, entry: Entry, limit_bytes: int) -> bytes:
    """The content of an entry of the archive at `path`. Raises IntegrityError when it is too large, or changed."""
    if entry.size > limit_bytes:
        raise IntegrityError(
            f"{entry.path} in {path} has {entry.size} bytes, and more than {limit_bytes} are not read."
        )
    try:
        with path.open("rb") as file:
            file.seek(entry.offset)
            data = file.read(entry.size)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
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
        while (block := self._file.read(BLOCK_BYTES)) != bytes(BLOCK_BYTES):
            found, info = self._next_header(block)
            if fault := path_fault(info.name):
                raise self._damaged(f"the name {info.name[:200]!r} {fault}")
            if names and order(info.name) <= order(names[-1]):
                raise self._damaged(f"{info.name} is out of order or there twice")
            epoch_s = epoch_s if names else int(info.mtime)
            executable = info.mode == 0o755
            if found != header(info.name, info.size, executable, epoch_s):
                raise self._damaged(f"the header of {info.name} is not as glmserve writes it")
            names.append(info.name)
            if len(names) > MAX_ENTRIES:
                raise self._damaged(f"it has more than {MAX_ENTRIES} files")
            offset = self._file.tell()
            yield Entry(info.name, info.size, self._digest(info.size), executable, offset)
            if any(self._file.read(-info.size % BLOCK_BYTES)):
                raise self._damaged(f"something stands after the end of {info.name}")
        if self._file.read(BLOCK_BYTES + 1) != bytes(BLOCK_BYTES):
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
            extension = self._file.read(info.size + -info.size % BLOCK_BYTES)
            last = self._file.read(BLOCK_BYTES)
            records = dict(_records(extension[: info.size]))
            info = tarfile.TarInfo.frombuf(last, "utf-8", "strict")
            info.name = records.get("path", info.name)
            info.size = int(records.get("size", info.size))
            if info.size < 0:
                raise ValueError
        except (tarfile.TarError, ValueError, OverflowError, struct.error):
            raise self._damaged(f"there is no file header at byte {self._file.tell() - BLOCK_BYTES}") from None
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
