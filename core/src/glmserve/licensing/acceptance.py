"""Which licence texts the user has read and accepted: an append-only file, one JSON line each, chained by digest.

A record counts only while the digest of the text and the revision of the component are still those that were accepted.
The chain (`prev` is the sha256 of the line before) shows lines that were cut, changed or reordered; it is evidence for
the user, not a lock against them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glmserve.api import ConfigError
from glmserve.api.components import Manifest, Sha256

from .report import LicenseText

START = "0" * 64
"""`prev` of the first line."""
CLOCK_SLACK = timedelta(minutes=5)
FILE = "acceptances.jsonl"


class Acceptance(BaseModel):
    """One line."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    component: str
    revision: str
    license: str
    text_sha256: Sha256
    uses: Annotated[tuple[str, ...], Field(strict=False)]
    """The uses that the user was shown."""
    facts: dict[str, bool | str]
    """What was declared then."""
    time: str
    """UTC, ISO 8601."""
    tool: str
    catalogue: str
    actor: str
    prev: Sha256


@dataclass(frozen=True)
class Ledger:
    """The records that hold, and what is wrong with the file."""

    records: tuple[Acceptance, ...] = ()
    problems: tuple[str, ...] = ()

    def state(self, manifest: Manifest, license: str, text_sha256: str | None) -> Literal["valid", "stale", "missing"]:
        """Of a component's licence. `text_sha256` is that of the text as it is today, None when there is none."""
        mine = [r for r in self.records if r.component == manifest.id and r.license.casefold() == license.casefold()]
        if not mine:
            return "missing"
        same = [r for r in mine if r.text_sha256 == text_sha256 and r.revision == revision_of(manifest)]
        return "valid" if same else "stale"


def revision_of(manifest: Manifest) -> str:
    """What an acceptance or a grant is bound to."""
    return (manifest.origin.revision if manifest.origin else "") or manifest.version


def default_file(environ: Mapping[str, str] = os.environ) -> Path:
    """In $GLMSERVE_HOME, or glmserve in the user's data directory: not in a cache, which people delete."""
    if home := environ.get("GLMSERVE_HOME"):
        return Path(home) / FILE
    data = environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "glmserve" / FILE


def read_ledger(path: Path, now: datetime | None = None) -> Ledger:
    """The records before the first line that does not fit. Never raises for what the file holds."""
    try:
        status = path.stat()
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        return Ledger(problems=(f"{path.name} cannot be read ({error.strerror}), so that no acceptance counts",))
    if status.st_uid != os.getuid():
        return Ledger(problems=(f"{path.name} belongs to another user, so that no acceptance in it counts",))
    if stat.S_IMODE(status.st_mode) & 0o022:
        return Ledger(problems=(f"{path.name} can be written by other users, so that no acceptance in it counts",))
    latest = (now or datetime.now(UTC)) + CLOCK_SLACK
    records: list[Acceptance] = []
    prev = START
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line:
            break
        problem = None
        try:
            record = Acceptance.model_validate(json.loads(line))
            time = datetime.fromisoformat(record.time)
            if number == len(lines):
                problem = "is cut off"
            elif record.prev != prev:
                problem = "does not follow from the line before"
            elif time.tzinfo is None or time > latest:
                problem = "has a time in the future"
        except (ValidationError, ValueError, RecursionError):
            problem = "is no acceptance record"
        if problem is not None:
            return Ledger(tuple(records), (f"{path.name}, line {number} {problem}; it and all after it do not count",))
        records.append(record)
        prev = hashlib.sha256(line).hexdigest()
    return Ledger(tuple(records))


def check_token(token: str, license: str, text: LicenseText) -> None:
    """Check "LICENSE@sha256:HEX", at least 12 digits, by which a script accepts. Raises ConfigError."""
    name, separator, digits = token.partition("@sha256:")
    wanted = f"{license}@sha256:{text.sha256[:12]}"
    if not separator or len(digits) < 12:
        raise ConfigError(f"--accept {token!r} does not name the text that is accepted; read it, then give {wanted}.")
    if name.casefold() != license.casefold() or not text.sha256.startswith(digits.lower()):
        raise ConfigError(f"--accept {token!r} is not the licence and text shown, {wanted}; nothing was recorded.")


def accept(
    path: Path,
    manifest: Manifest,
    license: str,
    text: LicenseText,
    *,
    uses: Sequence[str],
    facts: Mapping[str, bool | str],
    tool: str,
    catalogue: str,
    actor: str,
    now: datetime | None = None,
) -> Acceptance:
    """Append a record. Raises ConfigError when the file is damaged or cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"The acceptance cannot be recorded in {path}: {error.strerror}.") from None
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ledger = read_ledger(path, now)
        if ledger.problems:
            raise ConfigError(f"{ledger.problems[0]}; move {path} away and accept again.")
        last = file.read().splitlines()
        record = Acceptance(
            component=manifest.id,
            revision=revision_of(manifest),
            license=license,
            text_sha256=text.sha256,
            uses=tuple(uses),
            facts=dict(facts),
            time=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
            tool=tool,
            catalogue=catalogue,
            actor=actor,
            prev=hashlib.sha256(last[-1]).hexdigest() if last else START,
        )
        try:
            file.write(json.dumps(record.model_dump(mode="json"), sort_keys=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise ConfigError(f"The acceptance cannot be recorded in {path}: {error.strerror}.") from None
    return record
