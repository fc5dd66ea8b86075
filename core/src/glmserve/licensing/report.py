"""The vocabulary of an audit: uses, verdicts, reason codes, and the report that every output is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path

from glmserve.api.components import Manifest


class Use(StrEnum):
    """What somebody wants to do with the assembly."""

    RUN_LOCAL = "run-local"
    RUN_COMMERCIAL = "run-commercial"
    REDISTRIBUTE_SOURCE = "redistribute-source"
    REDISTRIBUTE_IMAGE = "redistribute-image"
    PUBLISH_WEIGHTS = "publish-weights"

    @property
    def shares(self) -> bool:
        """Copies leave the organisation."""
        return self not in (Use.RUN_LOCAL, Use.RUN_COMMERCIAL)


class Verdict(IntEnum):
    """From good to bad; AND takes the worst, OR the best."""

    ALLOW = 0
    CONDITIONS = 1
    ACTION = 2
    """A fact or an acceptance is missing."""
    UNKNOWN = 3
    DENY = 4

    @property
    def short(self) -> str:
        """As a table shows it."""
        return ("ok", "cond", "act", "?", "NO")[self]

    @property
    def slug(self) -> str:
        """As JSON and SBOM properties spell it."""
        return ("allow", "allow-with-conditions", "needs-action", "unknown", "deny")[self]


class Reason(StrEnum):
    """Stable codes: other programs may rely on them."""

    NC_PURPOSE = "NC_PURPOSE"
    ND_DERIVATIVE = "ND_DERIVATIVE"
    ND_UNCERTAIN = "ND_UNCERTAIN"
    POLICY_NOT_ALLOWED = "POLICY_NOT_ALLOWED"
    POLICY_DENIED = "POLICY_DENIED"
    NO_REDISTRIBUTE = "NO_REDISTRIBUTE"
    PROJECT_POLICY = "PROJECT_POLICY"
    GATE_FACTS_MISSING = "GATE_FACTS_MISSING"
    GATE_TRIGGERED = "GATE_TRIGGERED"
    ACCEPTANCE_MISSING = "ACCEPTANCE_MISSING"
    ACCEPTANCE_STALE = "ACCEPTANCE_STALE"
    TEXT_MISSING = "TEXT_MISSING"
    TEXT_MISMATCH = "TEXT_MISMATCH"
    NOTICE_MISSING = "NOTICE_MISSING"
    UNCATALOGUED = "UNCATALOGUED"
    TERMS_UNREVIEWED = "TERMS_UNREVIEWED"
    """The catalogue knows the licence, but nobody has settled what it says of this use."""
    NO_LICENSE = "NO_LICENSE"
    MALFORMED_EXPRESSION = "MALFORMED_EXPRESSION"
    MALFORMED = "MALFORMED"
    """A file or header is not what its format demands, or names what it must not; it was not followed."""
    METADATA_CONFLICT = "METADATA_CONFLICT"
    ANCESTOR_CONFLICT = "ANCESTOR_CONFLICT"
    ANCESTOR_UNRESOLVED = "ANCESTOR_UNRESOLVED"
    HASH_MISMATCH = "HASH_MISMATCH"
    FILE_MISSING = "FILE_MISSING"
    INTEGRITY_UNKNOWN = "INTEGRITY_UNKNOWN"
    """Nothing records what the files should be, as with editable installs: neither a sign of tampering nor proof."""
    UNOWNED_FILE = "UNOWNED_FILE"
    WEIGHTS_IN_WHEEL = "WEIGHTS_IN_WHEEL"
    RESTRICTED_CONTENT = "RESTRICTED_CONTENT"
    REVISION_UNPINNED = "REVISION_UNPINNED"
    EXCEPTION_EXPIRED = "EXCEPTION_EXPIRED"
    EXCEPTION_UNUSED = "EXCEPTION_UNUSED"
    CLARIFY_STALE = "CLARIFY_STALE"
    COPYLEFT_SOURCE = "COPYLEFT_SOURCE"
    NETWORK_SOURCE = "NETWORK_SOURCE"
    CONDITION = "CONDITION"
    """A duty that comes with a permission, such as carrying the notice."""
    GRANTED = "GRANTED"
    """A grant or an exception lifted another finding, which stands in the message."""


INTEGRITY = frozenset({Reason.HASH_MISMATCH, Reason.FILE_MISSING})
"""Findings that end every command with exit code 3."""


@dataclass(frozen=True)
class Finding:
    """One reason for a verdict."""

    code: Reason
    verdict: Verdict
    """The least that the component's verdict is because of this."""
    message: str
    """A sentence without the component's name."""
    clause: str = ""
    """Of the licence, as in "2(a)(1)"."""
    remedies: tuple[str, ...] = ()
    """Ways out, each a phrase."""
    uses: frozenset[Use] | None = None
    """The uses it bears on; None means all of them."""

    def bears_on(self, use: Use) -> bool:
        return self.uses is None or use in self.uses


@dataclass(frozen=True)
class LicenseText:
    """A licence text that was found."""

    path: str
    """Relative to the component; "" for a text of the catalogue."""
    sha256: str
    """Of the normalised text."""
    text: str


@dataclass(frozen=True)
class Component:
    """A manifest, and what was found on this machine about it."""

    manifest: Manifest
    source: str
    """What declares it, for people: "profile four-spark", "glmserve_x/components/x.toml of glmserve-x 0.1"."""
    texts: tuple[LicenseText, ...] = ()
    """Those found beside the component, not those of the catalogue."""
    notices: tuple[str, ...] = ()
    """Contents of its NOTICE files."""
    root: Path | None = None
    """The directory its files are relative to, when they are on this machine."""
    readings: tuple[str, ...] = ()
    """Further licence expressions, when its sources disagree; the verdict is the worst over all of them."""
    findings: tuple[Finding, ...] = ()
    """Of reading it: integrity, metadata, texts."""
    environment: bool = False
    """An installed Python distribution that is there because another needs it."""
    distribution: str = ""
    """Name of the Python distribution that carries it, or ""."""

    @property
    def id(self) -> str:
        return self.manifest.id


@dataclass(frozen=True)
class Ruling:
    """One component under one use."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    """Worst first; conditions are findings too."""
    counted: bool = True
    """False when the component stays out of the profile's verdict for this use: it is fetched by its user from its
    publisher (a stub), or it is part of the environment and was not asked about."""


@dataclass(frozen=True)
class Row:
    """One component in a report."""

    component: Component
    declared: str
    """Canonical where it parses; otherwise as found; "" when there is none."""
    concluded: str
    """The declared expression with the OR branches decided; "" when it cannot be concluded."""
    rulings: Mapping[Use, Ruling]


@dataclass(frozen=True)
class Report:
    """An audit. Rows are sorted by (environment, kind, id), so that it does not depend on the order of its input."""

    profile: str
    uses: tuple[Use, ...]
    rows: tuple[Row, ...]
    verdicts: Mapping[Use, Verdict]
    """Over all components that count."""
    commercial: bool
    """Shares are judged as made for a commercial purpose."""
    strict: bool
    """Fetched components count in shares too, as if their bytes travelled."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """"glmserve", "catalogue" and "spdx-list"."""
    warnings: tuple[str, ...] = ()
    """What is wrong with the policy rather than with a component: unused or expired entries, local terms."""

    records_intact: bool = True
    """The file of acceptances is as it was written."""

    @property
    def intact(self) -> bool:
        rulings = (ruling for row in self.rows for ruling in row.rulings.values())
        found = [f for row in self.rows for f in row.component.findings] + [f for r in rulings for f in r.findings]
        return not any(f.code in INTEGRITY for f in found)

    def find(self, component_id: str) -> Row:
        """Raises KeyError."""
        for row in self.rows:
            if row.component.id == component_id:
                return row
        raise KeyError(component_id)
