"""The licence and notice files of one installed distribution, and whether they are the ones that were installed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..content.unpack import unsafe_name
from ..report import Finding, LicenseText, Reason, Use, Verdict
from ..texts import digest, normalise
from .claims import FoundText
from .distinfo import Installed, read_regular

MAX_TEXT_BYTES = 4 << 20
"""Of a licence file; bundles of hundreds of notices have some hundred kilobytes."""

_LICENSE = re.compile(r".*(licen[cs]e|copying|copyright)", re.IGNORECASE)
_NOTICE = re.compile(r"notice|third.?party", re.IGNORECASE)
_SHARES = frozenset(use for use in Use if use.shares)


@dataclass(frozen=True)
class LicenseFiles:
    texts: tuple[FoundText, ...]
    """Main texts first, then those of parts, then what else is declared, such as AUTHORS."""
    digests: tuple[LicenseText, ...]
    """The same, with the digests of their normalised texts."""
    notices: tuple[FoundText, ...]
    """NOTICE files and lists of third parties, none of them a main text."""
    findings: tuple[Finding, ...]
    paths: frozenset[str]
    """All of these files, relative to the installation."""


def license_files(one: Installed) -> LicenseFiles:
    """Find and check them. Files outside the metadata directory are never read."""
    if one.info is None:
        return LicenseFiles((), (), (), (), frozenset())
    findings: list[Finding] = []
    names = dict.fromkeys(_declared(one, one.info, findings))
    names.update(dict.fromkeys(_lying_there(one.info)))
    texts: list[FoundText] = []
    notices: list[FoundText] = []
    prefix = one.info.name
    for name in names:
        data = _checked(one, f"{prefix}/{name}", one.info / name, findings)
        if data is None:
            continue
        text = normalise(data)
        inner = name.removeprefix("licenses/").removeprefix("license_files/")
        if not text or "\0" in text:
            what = "empty" if not text else "binary"
            findings.append(_missing(f"its licence file {name} is {what}"))
        elif _NOTICE.match(inner.rpartition("/")[2]):
            notices.append(FoundText(f"{prefix}/{name}", text, False))
        else:
            main = "/" not in inner and bool(_LICENSE.match(inner))
            texts.append(FoundText(f"{prefix}/{name}", text, main))
    texts.sort(key=lambda text: (not text.main, not _LICENSE.match(text.path.rpartition("/")[2]), text.path))
    digests = tuple(LicenseText(text.path, digest(text.text), text.text) for text in texts)
    return LicenseFiles(
        tuple(texts), digests, tuple(notices), tuple(findings), frozenset(f"{prefix}/{n}" for n in names)
    )


def _declared(one: Installed, info: Path, findings: list[Finding]) -> Iterator[str]:
    """The License-File entries that are there, relative to `info`."""
    for declared in one.headers.all("License-File"):
        if unsafe_name(declared):
            message = f"its License-File {declared[:80]!r} leaves its own directory, and was not read"
            findings.append(Finding(Reason.MALFORMED, Verdict.UNKNOWN, message, remedies=("ask its publisher",)))
            continue
        # Before metadata 2.4 they lay beside METADATA, for a while without their directories.
        places = (f"licenses/{declared}", f"license_files/{declared}", declared, declared.rpartition("/")[2])
        found = next((place for place in places if place and (info / place).is_file()), None)
        if found is None:
            findings.append(_missing(f"its License-File {declared} was not installed"))
        else:
            yield found


def _lying_there(info: Path) -> Iterator[str]:
    """What looks like a licence or a notice, whether declared or not."""
    try:
        entries = sorted(os.scandir(info), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name in ("licenses", "license_files") and entry.is_dir(follow_symlinks=False):
            for directory, subdirectories, files in os.walk(entry.path):
                subdirectories.sort()
                inside = Path(directory).relative_to(info).as_posix()
                yield from (f"{inside}/{name}" for name in sorted(files))
        elif (_LICENSE.match(entry.name) or _NOTICE.match(entry.name)) and entry.is_file():
            yield entry.name


def _checked(one: Installed, path: str, file: Path, findings: list[Finding]) -> bytes | None:
    """The bytes of a file as RECORD has them; None, with a finding, when they are not."""
    if unsafe_name(path):
        message = f"a file of its metadata directory has the name {path[:80]!r}, and was not read"
        findings.append(Finding(Reason.MALFORMED, Verdict.UNKNOWN, message))
        return None
    # A link may point into an installer's store, where whole packages are linked; RECORD then vouches for the bytes.
    recorded = one.entries.get(path)
    if recorded is None and (one.record is not None or not file.resolve().is_relative_to(one.root.resolve())):
        message = f"{path} lies in its metadata directory and not in its RECORD, so it was not counted"
        findings.append(Finding(Reason.UNOWNED_FILE, Verdict.ALLOW, message))
        return None
    data = read_regular(file, MAX_TEXT_BYTES)
    if data is None:
        findings.append(_missing(f"its licence file {path} is no readable file of at most {MAX_TEXT_BYTES >> 20} MiB"))
        return None
    if recorded and recorded.digest and hashlib.new(recorded.algorithm, data).hexdigest() != recorded.digest:
        findings.append(edited(path))
    return data


def edited(path: str, others: int = 0) -> Finding:
    """The finding for a file that is not what RECORD says, and `others` more."""
    more = f" and {others} more" if others else ""
    message = f"{path}{more} was changed after it was installed: it is not what RECORD says"
    return Finding(Reason.HASH_MISMATCH, Verdict.DENY, message, remedies=("install the distribution anew",))


def _missing(message: str) -> Finding:
    return Finding(Reason.TEXT_MISSING, Verdict.DENY, message, remedies=("ask its publisher",), uses=_SHARES)
