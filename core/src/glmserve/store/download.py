"""One file over HTTP: resumable, verified, and never half there under its final name."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from glmserve.api import IntegrityError, SourceError

Progress = Callable[[str, int, int], None]
"""progress(file name, done_bytes, total_bytes); the total is 0 while unknown."""

CHUNK_BYTES = 1 << 20
ATTEMPTS = 5
TIMEOUT_S = 30.0


def sha256_of(path: Path) -> str:
    """sha256 hex of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, target: Path, sha256: str, progress: Progress | None = None, pause_s: float = 1.0) -> Path:
    """Fetch `url` to `target` and check its digest.

    What arrives goes to TARGET.partial, which a later call continues by a range request. A dropped connection is tried
    ATTEMPTS times, waiting `pause_s` times 1, 2, 4... between. Raises SourceError (network, disk; the partial file
    stays) or IntegrityError (wrong bytes; the partial file goes).
    """
    partial = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for attempt in range(ATTEMPTS):
            try:
                _fetch(url, partial, target.name, progress)
                break
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                raise SourceError(f"{target.name} cannot be fetched: the server answered {status}.") from None
            except httpx.HTTPError as error:
                if attempt == ATTEMPTS - 1:
                    raise SourceError(
                        f"{target.name} cannot be fetched ({type(error).__name__} after {ATTEMPTS} attempts); "
                        "check the network and repeat: what has arrived is kept."
                    ) from None
                time.sleep(pause_s * 2**attempt)
        if sha256_of(partial) != sha256:
            partial.unlink()
            raise IntegrityError(f"{target.name} does not have the expected sha256 {sha256}; fetch it again.")
        os.replace(partial, target)
    except OSError as error:
        raise SourceError(
            f"{target} cannot be written ({error.strerror or error}); free some space or choose another place "
            "with GLMSERVE_HOME, and repeat: what has arrived is kept."
        ) from None
    return target


def _fetch(url: str, partial: Path, name: str, progress: Progress | None) -> None:
    done = partial.stat().st_size if partial.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S) as response:
        if response.status_code == 416:  # nothing is left to fetch
            return
        response.raise_for_status()
        if response.status_code != 206:  # the server sends the whole file
            done = 0
        total = done + int(response.headers.get("Content-Length", -done))
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.truncate(done)
            file.seek(done)
            for chunk in response.iter_bytes(CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(name, done, total)
            file.flush()
            os.fsync(file.fileno())
