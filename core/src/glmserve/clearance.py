"""May this profile run, for the declared purpose, and may this source be fetched? Asked before either happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glmserve.api import LicenseError
from glmserve.assembly import HUB, assemble, audit_profile
from glmserve.licensing.acceptance import Ledger, default_file, read_ledger
from glmserve.licensing.audit import Question
from glmserve.licensing.catalogue import Catalogue, load_catalogue
from glmserve.licensing.expressions import licenses
from glmserve.licensing.found import declared_tree, texts_to_accept
from glmserve.licensing.installed.manifests import manifests
from glmserve.licensing.report import Component, Finding, Report, Row, Use, Verdict
from glmserve.profiles import Profile
from glmserve.store.sources import HubSource, Source

PURPOSES = {"noncommercial": Use.RUN_LOCAL, "commercial": Use.RUN_COMMERCIAL}


@dataclass(frozen=True)
class Clearance:
    """What licences say about a start."""

    report: Report
    use: Use
    """The use that was judged: that of the declared purpose. Undeclared counts as commercial, the stricter one."""
    drafter: str
    """The provider that may draft: the profile's, or its fallback."""
    announcement: str
    """Why the fallback drafts, as a sentence; "" when the profile's own drafter does."""
    refusal: str
    """Why it may not start, as sentences; "" when it may."""

    @property
    def verdict(self) -> Verdict:
        return self.report.verdicts[self.use]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the verdict, and one entry a component."""
        return {
            "use": self.use.value,
            "verdict": self.verdict.slug,
            "catalogue": self.report.versions["catalogue"],
            "drafter": self.drafter,
            "announcement": self.announcement,
            "refusal": self.refusal,
            "components": [_entry(row, self.use) for row in self.report.rows if not row.component.environment],
        }

    def require(self) -> None:
        """Raises LicenseError when the profile may not run."""
        if self.refusal:
            raise LicenseError(self.refusal)


def clear(profile: Profile) -> Clearance:
    """Judge a start of `profile`, with its drafter, and then with the fallback if that helps."""
    purpose = profile.licenses.facts.purpose
    use = PURPOSES[purpose] if purpose is not None else Use.RUN_COMMERCIAL
    first = _judge(profile, use, profile.drafter.name)
    reasons = _reasons(first, use)
    if not reasons:
        return Clearance(first, use, profile.drafter.name, "", "")
    fallback = profile.drafter.fallback
    if fallback:
        second = _judge(profile, use, fallback)
        if not _reasons(second, use):
            said = " ".join(reasons)
            announcement = f"The drafter {fallback} drafts instead of {profile.drafter.name}. {said}"
            return Clearance(second, use, fallback, announcement, "")
    if purpose is None and not _reasons(_judge(profile, Use.RUN_LOCAL, profile.drafter.name), Use.RUN_LOCAL):
        reasons.append("If the purpose is not commercial, say so: --purpose noncommercial.")
    refusal = f"The licences do not let {profile.profile.name} start for {use}. {' '.join(reasons)}"
    return Clearance(first, use, profile.drafter.name, "", refusal)


def _judge(profile: Profile, use: Use, drafter: str) -> Report:
    return audit_profile(assemble(profile, drafter=drafter), Question((use,), starting=True))


def _reasons(report: Report, use: Use) -> list[str]:
    """One sentence for every finding that stops a start, each with its ways out."""
    return [
        _sentence(row, finding)
        for row in report.rows
        if row.rulings[use].counted
        for finding in row.rulings[use].findings
        if finding.verdict > Verdict.CONDITIONS
    ]


def _sentence(row: Row, finding: Finding) -> str:
    clause = f" [{finding.clause}]" if finding.clause else ""
    ways = f" ({'; or '.join(finding.remedies)})" if finding.remedies else ""
    return f"{row.component.id} ({row.declared or 'no licence'}): {finding.code}{clause}: {finding.message}{ways}."


def _entry(row: Row, use: Use) -> dict[str, str]:
    return {"id": row.component.id, "license": row.declared, "verdict": row.rulings[use].verdict.slug}


def clear_fetch(source: Source) -> str:
    """What the licence of a source is, as a line to show before a byte is fetched; "" when no manifest describes it.

    Raises LicenseError when the component has to be accepted first and is not.
    """
    if not isinstance(source, HubSource):
        return ""
    catalogue, ledger = load_catalogue(), read_ledger(default_file())
    lines = []
    for found in manifests():
        manifest = found.manifest
        origin = manifest.origin
        if origin is None or (origin.url, origin.revision) != (f"{HUB}{source.repo}", source.revision):
            continue
        component = Component(manifest, found.source)
        tree = declared_tree(component)
        for license in licenses(tree) if tree is not None else ():
            terms = catalogue.find(license)
            lines.append(f"{manifest.id}: {license}. {terms.summary if terms is not None else 'Not in the catalogue.'}")
        if manifest.policy.accept_before_fetch and not _accepted(component, catalogue, ledger):
            raise LicenseError(
                f"{lines[-1]} It has to be accepted before it is fetched: glmserve licenses accept {manifest.id}."
            )
    return "\n".join(lines)


def _accepted(component: Component, catalogue: Catalogue, ledger: Ledger) -> bool:
    texts = texts_to_accept(component, catalogue)
    return all(ledger.state(component.manifest, str(license), text.sha256) == "valid" for license, text in texts)
