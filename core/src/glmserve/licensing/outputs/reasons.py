"""Why a report is not all good: its findings, gathered so that each distinct reason is told once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..report import Finding, Report, Row, Use, Verdict
from .plain import listed, one_line

MAX_LICENCE = 240
"""Characters of a licence that people are shown; JSON has it whole."""


@dataclass(frozen=True)
class Told:
    """One finding, with every component and use that it bears on."""

    components: tuple[str, ...]
    licence: str
    counted: tuple[Use, ...]
    uncounted: tuple[Use, ...]
    """Uses for which the component stays out of the profile's verdict, though the finding is true of it."""
    finding: Finding

    @property
    def subject(self) -> str:
        return f"{listed(self.components)} ({self.licence})"

    @property
    def reason(self) -> str:
        clause = f" [{one_line(self.finding.clause)}]" if self.finding.clause else ""
        message = one_line(self.finding.message).rstrip(".")
        return f"{self._outcome()}: {self.finding.code}{clause}: {message}."

    @property
    def options(self) -> tuple[str, ...]:
        """ "(a) ...", "(b) ...", or the only one. None for what is not counted: to leave it out is the way."""
        if not self.counted:
            return ()
        if len(self.finding.remedies) == 1:
            return (one_line(self.finding.remedies[0]),)
        return tuple(f"({_letter(i)}) {one_line(remedy)}" for i, remedy in enumerate(self.finding.remedies))

    def _outcome(self) -> str:
        uses = self.counted or self.uncounted
        needs = "needs action" if len(uses) == 1 else "need action"
        outcome = {Verdict.ACTION: needs, Verdict.UNKNOWN: "unknown", Verdict.DENY: "denied"}[self.finding.verdict]
        if not self.counted:
            return f"{listed(uses)} {outcome} (not counted)"
        rest = f" (not counted: {listed(self.uncounted)})" if self.uncounted else ""
        return f"{listed(uses)} {outcome}{rest}"


def told(report: Report, rows: Sequence[Row]) -> list[Told]:
    """The findings of `rows` that are worse than conditions, those that count and are worst first.

    Components share one when licence, finding and uses are the same.
    """
    shared: dict[tuple[object, ...], list[str]] = {}
    order: dict[tuple[object, ...], Told] = {}
    for row in rows:
        for finding, uses in _bearing(row, report.uses).items():
            counted = tuple(use for use in uses if row.rulings[use].counted)
            uncounted = tuple(use for use in uses if not row.rulings[use].counted)
            one = Told((), licence(row), counted, uncounted, finding)
            key = (one.licence, counted, uncounted, *_said(finding))
            order.setdefault(key, one)
            shared.setdefault(key, []).append(row.component.id)
    gathered = [
        Told(tuple(names), order[key].licence, order[key].counted, order[key].uncounted, order[key].finding)
        for key, names in shared.items()
    ]
    return sorted(gathered, key=lambda one: (not one.counted, -one.finding.verdict))


def licence(row: Row) -> str:
    """ "declared", or "declared -> concluded" where they differ; "none" when nothing is declared."""
    declared = one_line(row.declared, MAX_LICENCE) or "none"
    if row.concluded == row.declared:
        return declared
    return f"{declared} -> {one_line(row.concluded, MAX_LICENCE) or '?'}" if row.declared else declared


def _bearing(row: Row, uses: Sequence[Use]) -> dict[Finding, list[Use]]:
    """Finding -> the uses in which it stands, whatever uses each copy of it names."""
    first: dict[tuple[object, ...], Finding] = {}
    bearing: dict[Finding, list[Use]] = {}
    for use in uses:
        for finding in row.rulings[use].findings:
            if finding.verdict > Verdict.CONDITIONS:
                bearing.setdefault(first.setdefault(_said(finding), finding), []).append(use)
    return {finding: list(dict.fromkeys(found)) for finding, found in bearing.items()}


def _said(finding: Finding) -> tuple[object, ...]:
    return finding.code, finding.verdict, finding.message, finding.clause, finding.remedies


def _letter(index: int) -> str:
    return chr(ord("a") + index) if index < 26 else str(index + 1)
