"""What goes into a bundle: which components travel, which a stub stands for, and why there can be no bundle at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glmserve.api.errors import GlmserveError, IntegrityError

from ..outputs.plain import one_line
from ..report import INTEGRITY, Finding, Reason, Report, Row, Ruling, Use, Verdict
from .stub import not_fetchable


class BundleRefused(GlmserveError):
    """There is no bundle: the licences, a policy or the files do not allow one."""

    def __init__(self, message: str, findings: Sequence[Finding]) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class BundleDamaged(IntegrityError, BundleRefused):
    """There is no bundle, because files are not what is on record."""


@dataclass(frozen=True)
class Selection:
    """The components of a bundle."""

    included: tuple[Row, ...]
    stubs: tuple[tuple[Row, Finding | None], ...]
    """With the reason; None when its user fetches it anyway."""

    @property
    def restricted(self) -> tuple[Row, ...]:
        """Those of the stubs whose bytes must not travel."""
        return tuple(row for row, reason in self.stubs if reason is not None)


def select(report: Report, use: Use, *, strict: bool) -> Selection:
    """Decide for every component. Raises BundleRefused with every reason why not, BundleDamaged for damaged files."""
    included: list[Row] = []
    stubs: list[tuple[Row, Finding | None]] = []
    refused: list[tuple[Row, Finding]] = []
    for row in report.rows:
        ruling = row.rulings[use]
        broken = [f for f in row.component.findings if f.code in INTEGRITY]
        if broken:
            refused += [(row, finding) for finding in broken]
        elif row.component.environment and not ruling.counted:
            # Nobody asked about it, so it does not travel.
            continue
        elif ruling.verdict in (Verdict.ACTION, Verdict.UNKNOWN):
            refused += [(row, finding) for finding in _worst(ruling, use)]
        elif ruling.verdict is Verdict.DENY or row.component.manifest.policy.redistribute == "never":
            reasons = _worst(ruling, use) if ruling.verdict is Verdict.DENY else [_PROJECT]
            way_out = not_fetchable(row)
            if strict:
                refused += [(row, _advised(finding, way_out)) for finding in reasons]
            elif way_out:
                refused += [
                    (row, replace(f, message=f"{f.message}; no stub can stand for it: {way_out}")) for f in reasons
                ]
            else:
                stubs.append((row, reasons[0]))
        elif not ruling.counted:
            if way_out := not_fetchable(row):
                refused.append(
                    (row, Finding(Reason.REVISION_UNPINNED, Verdict.DENY, f"{way_out}, and its user has to"))
                )
            else:
                stubs.append((row, None))
        else:
            included.append(row)
    refuse(use, refused)
    return Selection(tuple(included), tuple(stubs))


def refuse(use: Use, found: Sequence[tuple[Row | None, Finding]]) -> None:
    """Raise BundleRefused or BundleDamaged when anything was found. A row of None is the bundle itself."""
    if not found:
        return
    lines = [_line(row, finding) for row, finding in found]
    findings = [finding for _, finding in found]
    # What was never fetched is missing too, but nothing happened to it.
    damaged = any(f.code in INTEGRITY and f.verdict is Verdict.DENY for f in findings)
    kind = BundleDamaged if damaged else BundleRefused
    if len(lines) == 1:
        raise kind(f"No bundle for {use} was made: {lines[0]}.", findings)
    listed = "".join(f"\n  - {line}." for line in dict.fromkeys(lines))
    raise kind(f"No bundle for {use} was made, for {len(dict.fromkeys(lines))} reasons:{listed}", findings)


def narrowed(report: Report, selection: Selection, use: Use) -> Report:
    """The report as it travels: this use, and what is in the bundle or named by a stub.

    The answers to other questions hold for who asked them, and so do the warnings about a policy.
    """
    shown = {row.component.id for row in selection.included} | {row.component.id for row, _ in selection.stubs}
    rows = tuple(replace(row, rulings={use: row.rulings[use]}) for row in report.rows if row.component.id in shown)
    worst = max((row.rulings[use].verdict for row in selection.included), default=Verdict.ALLOW)
    return replace(report, uses=(use,), rows=rows, verdicts={use: worst}, warnings=())


_PROJECT = Finding(Reason.PROJECT_POLICY, Verdict.DENY, "never redistributed by this project; the licence may allow it")


def _worst(ruling: Ruling, use: Use) -> list[Finding]:
    found = [f for f in ruling.findings if f.verdict is ruling.verdict and f.bears_on(use)]
    return found or [Finding(Reason.TERMS_UNREVIEWED, ruling.verdict, f"its verdict is {ruling.verdict.slug}")]


def _advised(finding: Finding, way_out: str) -> Finding:
    if way_out:
        return finding
    others = tuple(remedy for remedy in finding.remedies if "stub" not in remedy)
    remedy = "bundle with --stub, which leaves it to be fetched from its publisher"
    return replace(finding, remedies=(*others, remedy))


def _line(row: Row | None, finding: Finding) -> str:
    clause = f" [{finding.clause}]" if finding.clause else ""
    options = f"; options: {', or '.join(finding.remedies)}" if finding.remedies else ""
    text = f"{finding.code}{clause}: {finding.message.rstrip('.')}{options}"
    if row is not None:
        text = f"{row.component.id} ({row.concluded or row.declared or 'no licence'}): {text}"
    return one_line(text)
