"""A walk over every byte of a file or tree, archives inside archives included: what is there, whatever it is called.

Nothing is unpacked to a name, followed or executed. Memory is constant: an archive inside another is spooled to an
unnamed temporary file, and what it may unpack to is limited.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from .magic import HEAD_BYTES, EncodedData, archive, sniff
from .unpack import UNPACK_ERRORS, Budget, Observe, TooMuch, decompressed, unsafe_name, zip_problem

__all__ = ["MAX_DEPTH", "Item", "sniff", "walk"]

MAX_DEPTH = 3
"""How many archives deep a walk looks; deeper ones are a problem, not a surprise."""

_CHUNK = 1 << 20
_TAIL = 22  # the end record of a zip without a comment
_SINGLE = frozenset({"gz", "bz2", "xz"})
_CLOSED = frozenset({"zstd", "7z", "rar"})

Opener = Callable[[], AbstractContextManager[IO[bytes]]]
"""Opens the same bytes from their beginning, as often as it is called."""


@dataclass(frozen=True)
class Item:
    """One file, or one entry that is no file."""

    names: tuple[str, ...]
    """Where it is: its path in the tree, then its name in each archive around it, from the outside in."""
    size: int
    """Bytes, unpacked; 0 where nothing was read."""
    sha256: str
    """Hex, of all its bytes; "" where it was not read to its end."""
    kind: str | None = None
    """The container of weights it is; see `sniff`."""
    problem: str = ""
    """A phrase: why its content is not vouched for. Whoever copies or ships files refuses it."""
    warning: str = ""
    """A phrase: what is conspicuous and may be harmless."""

    @property
    def where(self) -> str:
        return " > ".join(self.names)


def walk(path: Path, observe: Observe | None = None) -> Iterator[Item]:
    """Every file at and under `path`, in the order of names; an archive comes before what is in it.

    `observe` is called with the names of each file before it is read, and what it returns with every chunk of it.

    Links, devices and names that leave their tree are items with a `problem`. Nothing is raised for what the content
    is; OSError when `path` itself does not exist.
    """
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        yield from _directory(path, path, observe)
    else:
        yield from _entry(path, path.name, mode, observe)


def _directory(root: Path, directory: Path, observe: Observe | None) -> Iterator[Item]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        yield _refused((directory.relative_to(root).as_posix(),), f"it cannot be listed ({error.strerror})")
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _directory(root, path, observe)
        else:
            mode = entry.stat(follow_symlinks=False).st_mode
            yield from _entry(path, path.relative_to(root).as_posix(), mode, observe)


def _entry(path: Path, name: str, mode: int, observe: Observe | None) -> Iterator[Item]:
    if not stat.S_ISREG(mode):
        what = "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
        yield _refused((name,), f"it is {what}")
        return

    def open_() -> IO[bytes]:
        # The entry can have been replaced by a link or a pipe since it was listed.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise OSError("it is no regular file any more")
        return file

    yield from _file((name,), open_, Budget(path.lstat().st_size, observe), 0)


def _file(names: tuple[str, ...], open_: Opener, budget: Budget, depth: int) -> Iterator[Item]:
    """The item of one file, and those inside it. `depth` counts the archives around it. Raises TooMuch."""
    digest, encoded = hashlib.sha256(), EncodedData(names[-1])
    feed = budget.observe(names) if budget.observe is not None else None
    head, tail, size = b"", b"", 0
    try:
        with open_() as file:
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if depth:
                    budget.spend(len(chunk))
                head += chunk[: HEAD_BYTES - len(head)]
                tail = (tail + chunk[-_TAIL:])[-_TAIL:]
                digest.update(chunk)
                encoded.feed(chunk)
                if feed is not None:
                    feed(chunk)
    except UNPACK_ERRORS as error:
        yield _refused(names, f"it cannot be read ({_phrase(error)})")
        return
    packed = archive(head, tail)
    problem = ""
    if packed in _CLOSED:
        problem = f"it is a {packed} archive, which cannot be looked into"
    elif packed is not None and depth == MAX_DEPTH:
        problem = f"it is an archive, more than {MAX_DEPTH} archives deep"
    yield Item(names, size, digest.hexdigest(), sniff(head, size), problem, encoded.warning)
    if packed is None or problem:
        return
    try:
        with open_() as file:
            if depth and packed not in _SINGLE:
                # A member of an archive can only be read forwards at a fair price.
                with tempfile.TemporaryFile() as spool:
                    shutil.copyfileobj(file, spool, _CHUNK)
                    spool.seek(0)
                    yield from _archive(names, packed, spool, budget, depth + 1)
            else:
                yield from _archive(names, packed, file, budget, depth + 1)
    except TooMuch as error:
        if depth:
            raise  # the budget is that of the outermost file
        yield _refused((*names, "?"), str(error))
    except UNPACK_ERRORS as error:
        yield _refused((*names, "?"), f"the {packed} archive around it is damaged ({_phrase(error)})")


def _archive(names: tuple[str, ...], packed: str, file: IO[bytes], budget: Budget, depth: int) -> Iterator[Item]:
    if packed in _SINGLE:
        stem = PurePosixPath(names[-1]).stem

        def open_() -> IO[bytes]:
            file.seek(0)
            return decompressed(file, packed)

        yield from _file((*names, stem), open_, budget, depth)
    elif packed == "zip":
        yield from _zip(names, file, budget, depth)
    else:
        yield from _tar(names, file, budget, depth)


def _zip(names: tuple[str, ...], file: IO[bytes], budget: Budget, depth: int) -> Iterator[Item]:
    seen: set[str] = set()
    with zipfile.ZipFile(file) as opened:
        for info in sorted(opened.infolist(), key=lambda info: info.filename):
            inner = (*names, info.filename)
            budget.count()
            problem = "its name is there twice" if info.filename in seen else zip_problem(info)
            seen.add(info.filename)
            if problem:
                yield _refused(inner, problem)
            elif not info.is_dir():
                yield from _file(inner, partial(opened.open, info), budget, depth)


def _tar(names: tuple[str, ...], file: IO[bytes], budget: Budget, depth: int) -> Iterator[Item]:
    seen: set[str] = set()
    with tarfile.open(fileobj=file, mode="r:", errorlevel=2) as opened:
        for info in opened:
            inner = (*names, info.name)
            budget.count()
            problem = "its name is there twice" if info.name in seen else unsafe_name(info.name)
            seen.add(info.name)
            if not problem and not (info.isreg() or info.isdir()):
                problem = "it is a link" if info.issym() or info.islnk() else "it is no regular file"
            if problem:
                yield _refused(inner, problem)
            elif info.isreg():
                yield from _file(inner, cast("Opener", partial(opened.extractfile, info)), budget, depth)
        end = opened.offset
    file.seek(end)
    while rest := file.read(_CHUNK):
        if rest.strip(b"\0"):
            yield _refused((*names, "?"), "bytes follow the end of the tar archive")
            return


def _refused(names: tuple[str, ...], problem: str) -> Item:
    return Item(names, 0, "", problem=problem)


def _phrase(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 100 else f"{text[:97]}..."
