"""What is needed to look into archives that strangers made: limits, unsafe names, and one set of errors."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, cast

MAX_UNPACKED_BYTES = 256 << 30
MAX_RATIO = 250
"""Unpacked to packed, over everything inside one file; honest archives stay far below."""
FREE_BYTES = 64 << 20
"""So much may unpack whatever the ratio: a small archive of zeros is nobody's bomb."""
MAX_MEMBERS = 500_000

UNPACK_ERRORS = (
    *(OSError, EOFError, ValueError, RuntimeError, struct.error, OverflowError, LookupError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError),
)
"""All that the standard library raises for damaged archives."""


class TooMuch(Exception):
    """A file unpacks to more than it may; the message is a phrase."""


Observe = Callable[[tuple[str, ...]], Callable[[bytes], None]]


@dataclass
class Budget:
    """What everything inside one file may unpack to."""

    packed: int
    """Bytes of the file itself."""
    observe: Observe | None = None
    """Who watches the bytes go by."""
    unpacked: int = 0
    members: int = 0

    def spend(self, size: int) -> None:
        """Account for unpacked bytes. Raises TooMuch."""
        self.unpacked += size
        if self.unpacked > min(MAX_UNPACKED_BYTES, FREE_BYTES + self.packed * MAX_RATIO):
            raise TooMuch(f"it unpacks to more than {MAX_RATIO} times its size")

    def count(self) -> None:
        """Account for one member. Raises TooMuch."""
        self.members += 1
        if self.members > MAX_MEMBERS:
            raise TooMuch(f"it holds more than {MAX_MEMBERS:,} files")


def decompressed(file: IO[bytes], packed: str) -> IO[bytes]:
    """The one stream inside a "gz", "bz2" or "xz" file."""
    if packed == "gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
    return cast("IO[bytes]", bz2.BZ2File(file) if packed == "bz2" else lzma.LZMAFile(file))


def unsafe_name(name: str) -> str:
    """A phrase that says what is wrong with a name in an archive, or ""."""
    if not name or not name.isprintable() or "\\" in name:
        return "its name has characters that file names must not have"
    if name.startswith("/") or name[1:2] == ":" or ".." in PurePosixPath(name).parts:
        return "its name leaves the archive"
    return ""


def zip_problem(info: zipfile.ZipInfo) -> str:
    """A phrase that says why a member of a zip is not followed, or ""."""
    if problem := unsafe_name(info.orig_filename) or unsafe_name(info.filename):
        return problem
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        return "it is a link"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "it is no regular file"
    if info.flag_bits & 0x1:
        return "it is encrypted"
    if info.is_dir() and info.file_size:
        return "it is a directory with content"
    return ""


def zip_hides(file: IO[bytes], archive: zipfile.ZipFile) -> bool:
    """Whether the zip has bytes before, between or after its members and its index that belong to neither.

    Raises one of UNPACK_ERRORS for a zip whose headers do not hold.
    """
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.header_offset != end:
            return True
        file.seek(end)
        header = file.read(30)
        if header[:4] != b"PK\x03\x04":
            raise zipfile.BadZipFile("a member has no header")
        name, extra = struct.unpack("<HH", header[26:30])
        end += 30 + name + extra + info.compress_size
        if info.flag_bits & 0x8:  # sizes follow the data, with or without a signature
            file.seek(end)
            end += 16 if file.read(4) == b"PK\x07\x08" else 12
    index = archive.start_dir
    size = file.seek(0, 2)
    file.seek(max(0, size - 22))
    record = file.read(22)
    if record[:4] != b"PK\x05\x06" or archive.comment:
        return True
    return end != index or index + int.from_bytes(record[12:16], "little") + 22 != size
