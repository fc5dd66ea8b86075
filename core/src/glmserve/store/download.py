"""One file over HTTP: resumable, verified, and never half there under its final name."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

import httpx

from glmserve.api import IntegrityError, SourceError

Progress = Callable[[str, int, int], None]
"""progress(what is being done, done_bytes, total_bytes); the total is 0 while unknown."""

CHUNK_BYTES = 1 << 20
ATTEMPTS = 5
"""Failures in a row, without a byte of progress between them, after which a fetch gives up."""
PAUSE_S = 1.0
"""Wait before the second attempt; it doubles with every further failure."""
MAX_PAUSE_S = 60.0
TIMEOUT_S = 30.0

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HOPELESS = (httpx.UnsupportedProtocol, httpx.TooManyRedirects)
"""Failures that another attempt cannot change."""

T = TypeVar("T")


@dataclass(frozen=True)
class Remote:
    """A file to fetch, and what tells it from a wrong one: its sha256, or the sha1 that git gives its content."""

    url: str
    sha256: str | None = None
    blob_sha1: str | None = None
    size: int | None = None
    """Bytes; None when only the server can tell."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def matches(self, path: Path, progress: Progress | None = None) -> bool:
        """Whether the file at `path` is this one. False too when there is none, or no digest to compare with."""
        if not path.is_file() or (self.size is not None and path.stat().st_size != self.size):
            return False
        if self.sha256 is not None:
            return sha256_of(path, progress) == self.sha256
        return self.blob_sha1 is not None and _blob_sha1(path.read_bytes()) == self.blob_sha1

    def is_content(self, content: bytes) -> bool:
        """Whether these are the file's bytes. False too when there is no digest to compare with."""
        if self.sha256 is not None:
            return hashlib.sha256(content).hexdigest() == self.sha256
        return self.blob_sha1 is not None and _blob_sha1(content) == self.blob_sha1


class _Refused(Exception):
    """The server answered with an error."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.status = response.status_code
        after = response.headers.get("Retry-After", "")
        self.retry_after_s = min(float(after), MAX_PAUSE_S) if after.isascii() and after.isdigit() else 0.0


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """sha256 hex of a file. The progress of hashing is told as "checking NAME"."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"checking {path.name.removesuffix('.partial')}", done, total)
    return digest.hexdigest()


def _blob_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def make_private(directory: Path) -> None:
    """Create a directory and those above it that are missing, each for the user only."""
    # Not mkdir(parents=True, mode=...): that gives the mode to the last one alone.
    for path in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Turn what the file system refuses into a SourceError about `target`."""
    try:
        yield
    except OSError as error:
        what = "there is no room for it" if error.errno in _FULL else str(error.strerror or error)
        raise SourceError(
            f"{target} cannot be written ({what}); free some space or choose another place with GLMSERVE_HOME, and "
            "repeat: what has arrived is kept."
        ) from None


def create(partial: Path, *, keep: int = 0) -> IO[bytes]:
    """Open for writing after the first `keep` bytes; unbuffered, so that what was written survives the process."""
    file = os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "wb", buffering=0)
    file.truncate(keep)
    file.seek(keep)
    return file


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write every byte: on a disk that fills up, an unbuffered write takes a part, and the next one says why."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def publish(partial: Path, target: Path) -> None:
    """Give a finished file its name, so that it holds after a power cut."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def check(response: httpx.Response) -> None:
    """Raise what `persist` understands when the server answered with an error."""
    if response.status_code >= 400:
        raise _Refused(response)


def persist(what: str, attempt: Callable[[], T], progressed: Callable[[], bool] = lambda: False) -> T:
    """Call `attempt` until it succeeds, at most ATTEMPTS times in a row without progress.

    Dropped and refused connections and the statuses 408, 429 and 5xx are tried again. Raises SourceError.
    """
    failures = 0
    while True:
        pause_s = 0.0
        try:
            return attempt()
        except _Refused as error:
            why, pause_s = f"the server answered {error.status}", error.retry_after_s
            if error.status not in (408, 429) and error.status < 500:
                hint = "; set HF_TOKEN to a token with access to it" if error.status in (401, 403) else ""
                raise SourceError(f"{what} cannot be fetched: {why}{hint}.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if isinstance(error, (*_HOPELESS, httpx.InvalidURL)):
                raise SourceError(f"{what} cannot be fetched ({why}).") from None
        failures = 0 if progressed() else failures + 1
        if failures == ATTEMPTS:
            raise SourceError(
                f"{what} cannot be fetched ({why}, after {ATTEMPTS} attempts); check the network and repeat: what has "
                "arrived is kept."
            ) from None
        time.sleep(max(pause_s, min(PAUSE_S * 2 ** max(failures - 1, 0), MAX_PAUSE_S)))


def download(remote: Remote, target: Path, progress: Progress | None = None) -> Path:
    """Fetch a file to `target`, unless it is there already, and check its digest.

    What arrives goes to TARGET.partial, which a later call continues by a range request. Raises SourceError (network,
    disk; the partial file stays) or IntegrityError (wrong bytes; the partial file goes).
    """
    partial = target.with_name(target.name + ".partial")
    with disk_errors(target):
        if remote.matches(target, progress):
            return target
        make_private(target.parent)
        continued = _size(partial) > 0
        while True:
            _Transfer(remote, partial, target.name, progress).run()
            if remote.matches(partial, progress):
                break
            partial.unlink()
            if not continued:
                raise IntegrityError(
                    f"{target.name} does not have the expected digest {remote.sha256 or remote.blob_sha1}, so it was "
                    "thrown away; the server holds another file than the one that is pinned."
                )
            # Its beginning is from an earlier run, perhaps of a file that the server has replaced: once from the start.
            continued = False
        publish(partial, target)
    return target


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Transfer:
    """The requests that fill one partial file."""

    def __init__(self, remote: Remote, partial: Path, name: str, progress: Progress | None) -> None:
        self._remote = remote
        self._partial = partial
        self._name = name
        self._progress = progress
        self._etag = ""
        self._most = _size(partial)
        """The largest size the partial file ever had: a server that always starts over makes no progress."""

    def run(self) -> None:
        persist(self._name, self._fetch, self._progressed)

    def _progressed(self) -> bool:
        grown = _size(self._partial) > self._most
        self._most = max(self._most, _size(self._partial))
        return grown

    def _fetch(self) -> None:
        done, size = _size(self._partial), self._remote.size
        if size is not None and done >= size:
            if done == size:
                return
            self._partial.unlink()
            done = 0
        headers = {"Accept-Encoding": "identity", **self._remote.headers}
        if done:
            headers["Range"] = f"bytes={done}-"
            if self._etag:
                headers["If-Range"] = self._etag
        with httpx.stream(
            "GET", self._remote.url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S
        ) as response:
            if response.status_code == 416:
                if size is None:
                    if content_range(response)[1] == done:  # all of it is here
                        return
                    self._partial.unlink(missing_ok=True)
                raise httpx.RemoteProtocolError("the file became shorter on the server", request=response.request)
            check(response)
            done = self._continue_at(response, done)
            etag = response.headers.get("ETag", "")
            self._etag = "" if etag.startswith("W/") else etag
            length = response.headers.get("Content-Length", "")
            total = size or (done + int(length) if length.isdigit() else 0)
            with create(self._partial, keep=done) as file:
                # As the pieces come: a chunk that waits to be full is lost when the connection drops.
                for piece in response.iter_bytes():
                    write_all(file, piece)
                    done += len(piece)
                    if self._progress is not None:
                        self._progress(self._name, done, total)
                    if size is not None and done > size:
                        return
        if done < (size or 0):
            raise httpx.RemoteProtocolError(f"it ended after {done} of {size} bytes", request=response.request)

    def _continue_at(self, response: httpx.Response, done: int) -> int:
        """The offset of the first byte that the server sends: `done`, or 0 when it sends the whole file."""
        if response.status_code != 206:
            return 0
        first, total = content_range(response)
        if first != done or (self._remote.size is not None and total not in (None, self._remote.size)):
            self._partial.unlink(missing_ok=True)
            raise httpx.RemoteProtocolError("it sent another range than asked", request=response.request)
        return done


def content_range(response: httpx.Response) -> tuple[int | None, int | None]:
    """(first byte, total bytes) by the Content-Range header, None for what it does not say."""
    match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", response.headers.get("Content-Range", ""))
    first, total = match.groups() if match else (None, None)
    return (None if first is None else int(first), None if total is None else int(total))
