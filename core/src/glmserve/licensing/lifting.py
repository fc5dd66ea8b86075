"""Who can lift what: a grant of the licensor, what the licence denies; an exception of the organisation, its own policy
and what is unknown. Nothing lifts an integrity failure or the project's own decision not to redistribute.
"""

from __future__ import annotations

from pathlib import Path

from .case import Case
from .expressions import License
from .policy import Document, Exception_, Grant
from .report import Component, Finding, Reason, Use, Verdict

LICENCE_DENIALS = frozenset({Reason.NC_PURPOSE, Reason.ND_DERIVATIVE, Reason.NO_REDISTRIBUTE, Reason.GATE_TRIGGERED})
"""What a grant can lift, with ND_UNCERTAIN and TERMS_UNREVIEWED: the licensor may permit it, nobody else."""
GRANTABLE = LICENCE_DENIALS | {Reason.ND_UNCERTAIN, Reason.TERMS_UNREVIEWED, Reason.GATE_FACTS_MISSING}
ORGANISATION = frozenset({Reason.POLICY_NOT_ALLOWED, Reason.POLICY_DENIED})


def document_of(grant: Grant) -> Document:
    return Document(document=grant.document, sha256=grant.sha256)


def lift(
    case: Case, findings: list[Finding], license: License | None, said: str, use: Use, chain: tuple[Component, ...]
) -> list[Finding]:
    """Apply the grants and exceptions of the component and of those made from it."""
    return [_lifted(case, finding, license, said, use, chain) for finding in findings]


def _lifted(
    case: Case, finding: Finding, license: License | None, said: str, use: Use, chain: tuple[Component, ...]
) -> Finding:
    if finding.code in GRANTABLE:
        for grant in case.section.grants:
            if _grants(case, grant, use, chain):
                case.lifted.add(id(grant))
                message = (
                    f"granted in writing by {grant.licensor} ({Path(grant.document).name}), against: {finding.message}"
                )
                return Finding(Reason.GRANTED, Verdict.CONDITIONS, message, finding.clause)
    if finding.code in ORGANISATION or finding.verdict is Verdict.UNKNOWN:
        for exception in case.section.exceptions:
            if _excepts(case, exception, license, said, use, chain):
                case.lifted.add(id(exception))
                message = f"exception by {exception.approved_by} ({exception.reason}), against: {finding.message}"
                return Finding(Reason.GRANTED, Verdict.CONDITIONS, message, finding.clause)
    return finding


def _grants(case: Case, grant: Grant, use: Use, chain: tuple[Component, ...]) -> bool:
    """A grant reaches a component at its revision; or, through a component made from it, when the licensor is the
    publisher of the component whose licence denies."""
    *_, origin = chain  # the component whose licence speaks; the earlier ones were made from it
    if use not in grant.uses or (grant.expires is not None and grant.expires < case.today):
        return False
    heir = next((c for c in chain if c.id == grant.component), None)
    if heir is None or (heir is origin and len(chain) > 1):
        return False
    publisher = origin.manifest.origin.publisher if origin.manifest.origin else ""
    if heir is not origin and publisher.casefold() != grant.licensor.casefold():
        return False
    revision = heir.manifest.origin.revision if heir.manifest.origin else heir.manifest.version
    return revision in grant.revisions and case.verified(document_of(grant))


def _excepts(
    case: Case, exception: Exception_, license: License | None, said: str, use: Use, chain: tuple[Component, ...]
) -> bool:
    if use not in exception.uses or (exception.expires is not None and exception.expires < case.today):
        return False
    if exception.component not in {component.id for component in chain}:
        return False
    names = {name.strip().casefold() for name in exception.licenses}
    return (license.key if license is not None else said.strip().casefold() or "none") in names
