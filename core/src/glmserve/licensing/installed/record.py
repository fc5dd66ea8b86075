"""RECORD, the list of a distribution's files with their digests (the binary distribution format of PyPA)."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
from dataclasses import dataclass
from typing import IO

SECURE = frozenset({"sha256", "sha384", "sha512"})
"""The algorithms a RECORD may use; md5 and sha1 are forbidden by its specification."""

_CHUNK = 1 << 20


@dataclass(frozen=True)
class RecordEntry:
    """One line. `digest` is hex; "" where the file has none, as RECORD itself and compiled modules."""

    path: str
    algorithm: str
    digest: str
    size: int | None
    """Bytes; None where it is not recorded."""


@dataclass(frozen=True)
class Record:
    entries: tuple[RecordEntry, ...]
    problems: tuple[str, ...]
    """Phrases, one for every line that does not hold."""


def read_record(data: bytes) -> Record:
    """Read a RECORD; what is wrong with it is in `problems`, and nothing is raised."""
    entries: dict[str, RecordEntry] = {}
    problems: list[str] = []
    try:
        rows = list(csv.reader(data.decode("utf-8").splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        return Record((), (f"it cannot be read ({error})",))
    for row in rows:
        if not row:
            continue
        entry = _entry(row)
        if isinstance(entry, str):
            problems.append(entry)
        elif entry.path in entries:
            problems.append(f"it lists {entry.path} twice")
        else:
            entries[entry.path] = entry
    return Record(tuple(entries.values()), tuple(problems))


def digest_of(algorithm: str, file: IO[bytes]) -> str:
    """Hex digest of the rest of the file, read in pieces."""
    digest = hashlib.new(algorithm)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _entry(row: list[str]) -> RecordEntry | str:
    """The entry of one row, or a phrase that says what is wrong with it."""
    if len(row) != 3 or not row[0] or "\0" in row[0]:
        return f"it has the line {','.join(row)[:80]!r}, which is not a path, a digest and a size"
    path, digest, size = row
    if size and not (size.isascii() and size.isdigit() and len(size) < 20):
        return f"it gives {path} the size {size[:40]!r}"
    length = int(size) if size else None
    if not digest:
        return RecordEntry(path, "", "", length)
    algorithm, equals, value = digest.partition("=")
    if algorithm not in SECURE or not equals:
        return f"it gives {path} the digest {digest[:40]!r}, which is none of {', '.join(sorted(SECURE))}"
    try:
        raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != hashlib.new(algorithm).digest_size:
        return f"it gives {path} a digest that is no {algorithm}"
    return RecordEntry(path, algorithm, raw.hex(), length)
