"""Deterministic tar files: what is written depends on paths, contents and an epoch, and on nothing else.

There is one way to write given files, and `archive_reader` takes no other.
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
BLOCK_BYTES = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK_BYTES)
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
    members = sorted(members, key=lambda member: order(member.path))
    if clash := collision(member.path for member in members):
        raise GlmserveError(f"No archive can be written, because {clash}; leave one of them out.")
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(8)}.partial")
    try:
        if out.exists() and not out.is_file():
            raise ConfigError(f"{out} is there and is not a file; choose another name for the archive.")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            total, done = sum(member.size for member in members), 0
            for member in members:
                file.write(header(member.path, member.size, member.executable, epoch_s))
                for chunk in _content(member):
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(f"writing {out.name}", done, total)
                file.write(bytes(-member.size % BLOCK_BYTES))
            file.write(END)
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


def header(path: str, size: int, executable: bool, epoch_s: int) -> bytes:
    """What stands before a file, some blocks long; empty for numbers that no header can hold."""
    info = tarfile.TarInfo(path)
    info.size, info.mtime, info.mode = size, epoch_s, 0o755 if executable else 0o644
    try:
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    except (ValueError, OverflowError, struct.error):
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


def order(path: str) -> bytes:
    """The key by which files are sorted."""
    return path.encode("utf-8", "surrogateescape")


def _umask() -> int:
    # There is no way to ask that does not set it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
