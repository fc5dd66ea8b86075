"""Whether the files of one installed distribution are the recorded ones, and whether weights are among them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from ..content.magic import GENERAL, HEAD_BYTES, WEIGHT_SUFFIXES, archive
from ..content.walk import sniff, walk
from ..report import Finding, Reason, Verdict
from .distinfo import Installed
from .license_files import edited
from .record import RecordEntry, digest_of

LARGE_BYTES = 1 << 20
"""Weights below this size have to be named like weights to be found without `verify`."""
_REINSTALL = ("install the distribution anew",)


def inspect(one: Installed, owned: Mapping[str, str], *, verify: bool) -> Iterator[Finding]:
    """Findings on everything that RECORD lists.

    `owned`: path -> sha256 hex of the weights that a component manifest answers for. Without `verify`, only metadata is
    compared with RECORD, and weights are looked for in files that are large or named like weights; with it, every file
    is read, and archives are looked into.
    """
    if one.record is None:
        message = "nothing records what its files should be"
        yield Finding(Reason.INTEGRITY_UNKNOWN, Verdict.ALLOW, message, remedies=("install it from a wheel",))
        return
    if one.editable:
        message = "it is installed from a working copy, whose files nothing records"
        yield Finding(Reason.INTEGRITY_UNKNOWN, Verdict.ALLOW, message, remedies=("install it from a wheel",))
    for problem in one.record.problems[:1]:
        more = f", and {len(one.record.problems) - 1} lines more are wrong" if len(one.record.problems) > 1 else ""
        message = f"its RECORD does not hold: {problem}{more}"
        yield Finding(Reason.MALFORMED, Verdict.UNKNOWN, message, remedies=_REINSTALL)
    # What the verdict rests on is compared always.
    checked = [e for e in one.record.entries if e.digest and (verify or _is_metadata(one, e.path))]
    yield from _compare(one, checked)
    yield from _weights(one, one.record.entries if verify else filter(_suspicious, one.record.entries), owned, verify)


def weights_finding(places: list[tuple[str, str]]) -> Finding:
    """WEIGHTS_IN_WHEEL for (where, kind) pairs, of which there is at least one."""
    where, kind = places[0]
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    message = f"it carries what looks like model weights ({kind}) that no component manifest answers for: {where}{more}"
    ways = ("describe them in a component manifest with a licence of their own", "take them out")
    return Finding(Reason.WEIGHTS_IN_WHEEL, Verdict.UNKNOWN, message, remedies=ways)


def _is_metadata(one: Installed, path: str) -> bool:
    # Licence files are compared where they are read; entry points decide which component manifests are found.
    info = one.info.name if one.info is not None else ""
    return path in (f"{info}/METADATA", f"{info}/entry_points.txt")


def _suspicious(entry: RecordEntry) -> bool:
    return (entry.size or 0) >= LARGE_BYTES or os.path.splitext(entry.path)[1].lower() in WEIGHT_SUFFIXES


def _compare(one: Installed, entries: Iterable[RecordEntry]) -> Iterator[Finding]:
    changed: list[str] = []
    missing: list[str] = []
    for entry in entries:
        file = _open(one.root / entry.path)
        if file is None:
            missing.append(entry.path)
            continue
        with file:
            if digest_of(entry.algorithm, file) != entry.digest:
                changed.append(entry.path)
    if changed:
        yield edited(changed[0], len(changed) - 1)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        message = f"{missing[0]}{more} is recorded and not there"
        yield Finding(Reason.FILE_MISSING, Verdict.DENY, message, remedies=_REINSTALL)


def _weights(
    one: Installed, entries: Iterable[RecordEntry], owned: Mapping[str, str], verify: bool
) -> Iterator[Finding]:
    places: list[tuple[str, str]] = []
    for entry in entries:
        path = one.root / entry.path
        file = _open(path)
        if file is None:
            continue
        with file:
            head, size = file.read(HEAD_BYTES), os.fstat(file.fileno()).st_size
            kind = sniff(head, size)
            if kind is not None and not _harmless(kind, size) and not _owned(file, owned.get(entry.path)):
                places.append((entry.path, kind))
                continue
        if verify and archive(head) is not None and not path.is_symlink():
            inner = [item for item in walk(path) if len(item.names) > 1 and item.kind is not None]
            places += [(i.where, i.kind or "") for i in inner if not _harmless(i.kind or "", i.size)]
    if places:
        yield weights_finding(places)


def _harmless(kind: str, size: int) -> bool:
    """Small arrays, pickles and scripts: numpy and torch ship dozens for their tests."""
    return kind in (*GENERAL, "torch-zip") and size < LARGE_BYTES


def _owned(file: IO[bytes], sha256: str | None) -> bool:
    if sha256 is None:
        return False
    file.seek(0)
    return digest_of("sha256", file) == sha256


def _open(path: Path) -> IO[bytes] | None:
    """A regular file to read, or None. Links are followed: some installers link a whole package into their store."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        return None
    return file
