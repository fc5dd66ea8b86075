"""What the terms of one licence say to one use: a leaf of the verdict.

`use`, `commercial`, `redistribute` and the other permissions are "yes", "no" or "unknown" in the reviewed catalogue;
this module turns them, the gates and the duties into findings. No finding means: allowed, and nothing to do for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from .expressions import License
from .policy import Document, Facts
from .report import Finding, Reason, Use, Verdict

if TYPE_CHECKING:
    from .catalogue import Gate, Terms


class Change(Enum):
    """What happened to a work on its way into a component."""

    NONE = "verbatim"
    LOSSLESS = "re-sharded or in another container"
    MODIFIED = "modified"


@dataclass(frozen=True)
class Purpose:
    """What the terms are asked about."""

    use: Use
    commercial: bool
    """For shares; run-commercial is commercial by itself."""
    service: bool
    """Third parties reach the model over an API."""
    change: Change

    @property
    def earns(self) -> bool:
        return self.use is Use.RUN_COMMERCIAL or (self.use.shares and self.commercial)


_DENIED = {
    "use": (Reason.POLICY_DENIED, "it may not be used"),
    "commercial": (Reason.NC_PURPOSE, "the licence is for non-commercial purposes only"),
    "hosted_service": (Reason.NO_REDISTRIBUTE, "it may not be offered to third parties as a service"),
    "redistribute": (Reason.NO_REDISTRIBUTE, "copies may not be passed on"),
    "modify": (Reason.ND_DERIVATIVE, "it may not be modified"),
    "share_modified": (Reason.ND_DERIVATIVE, "a modified copy may not be passed on"),
}
_DUTIES = {
    "license_text": "carry the licence text",
    "copyright_notice": "keep the copyright notice",
    "notice_file": "carry the upstream NOTICE",
    "attribution_link": "name the creator, link the material and the licence",
    "source_offer": "offer the complete corresponding source",
    "same_licence": "pass modified copies on under the same licence",
}


def judge_terms(license: License, terms: Terms | None, purpose: Purpose) -> list[Finding]:
    """The findings of the licence itself, gates left out."""
    if terms is None:
        return [
            Finding(
                Reason.UNCATALOGUED,
                Verdict.UNKNOWN,
                f"{license} is not in the reviewed catalogue, so nobody has said what it permits",
                remedies=("add its terms to a file named under [licenses] catalogue", "record an exception"),
            )
        ]
    findings = [f for permission in _asked(purpose) for f in _permission(license, terms, permission)]
    if purpose.use.shares and purpose.change is Change.LOSSLESS and terms.share_modified != "yes":
        findings.append(
            Finding(
                Reason.ND_UNCERTAIN,
                Verdict.UNKNOWN,
                f"{license} forbids sharing modified copies, and whether a copy that is {Change.LOSSLESS.value} is one "
                "is not settled",
                terms.clauses.get("share_modified", ""),
                ("share the publisher's own files", "record a written exception"),
            )
        )
    return findings + list(_duties(license, terms, purpose))


def _asked(purpose: Purpose) -> Iterator[str]:
    """The permissions that the purpose needs."""
    yield "redistribute" if purpose.use.shares else "use"
    if purpose.earns:
        yield "commercial"
    if purpose.service and not purpose.use.shares:
        yield "hosted_service"
    if purpose.change is Change.MODIFIED:
        yield "share_modified" if purpose.use.shares else "modify"


def _permission(license: License, terms: Terms, name: str) -> Iterator[Finding]:
    answer = getattr(terms, name)
    clause = terms.clauses.get(name, "")
    code, refusal = _DENIED[name]
    if answer == "no":
        yield Finding(
            code, Verdict.DENY, refusal, clause, ("obtain a written grant and record it in [[licenses.grants]]",)
        )
    elif answer == "unknown":
        asked = name.replace("_", " ")
        yield Finding(
            Reason.TERMS_UNREVIEWED,
            Verdict.UNKNOWN,
            f"what {license} says about {asked!r} has not been settled by a reviewer",
            clause,
            ("have a person read the licence and record an exception",),
        )


def _duties(license: License, terms: Terms, purpose: Purpose) -> Iterator[Finding]:
    if "network_source" in terms.obligations and purpose.service and not purpose.use.shares:
        message = f"{license}: offer the source to everybody who reaches the service"
        yield Finding(Reason.NETWORK_SOURCE, Verdict.CONDITIONS, message, terms.clauses.get("network_source", ""))
    if not purpose.use.shares:
        return
    for duty, text in _DUTIES.items():
        if duty in terms.obligations:
            code = Reason.COPYLEFT_SOURCE if duty == "source_offer" else Reason.CONDITION
            yield Finding(code, Verdict.CONDITIONS, f"{license}: {text}", terms.clauses.get(duty, ""))
    if "state_changes" in terms.obligations and purpose.change is not Change.NONE:
        message = f"{license}: say that the work was changed"
        yield Finding(Reason.CONDITION, Verdict.CONDITIONS, message, terms.clauses.get("state_changes", ""))


def judge_gate(gate: Gate, facts: Facts, purpose: Purpose, verified: Callable[[Document], bool]) -> list[Finding]:
    """The findings of a condition that depends on who the user is.

    A gate closes when all of its facts are true, opens when one is false, and asks otherwise.
    """
    if not purpose.earns:
        return []
    if not gate.facts:
        return [Finding(Reason.CONDITION, Verdict.CONDITIONS, gate.summary, gate.clause)]
    answers = {name: facts.get(name) for name in gate.facts}
    if False in answers.values():
        return []
    missing = [name for name, answer in answers.items() if answer is None]
    if missing:
        return [
            Finding(
                Reason.GATE_FACTS_MISSING,
                Verdict.ACTION,
                f"{gate.summary}; not declared: {', '.join(missing)}",
                gate.clause,
                tuple(f"declare {name} = true or false under [licenses.facts]" for name in missing),
            )
        ]
    paper = facts.get(gate.lifted_by) if gate.lifted_by else None
    if isinstance(paper, Document):
        if verified(paper):
            message = f"{gate.summary}; passed, on record in {Path(paper.document).name}"
            return [Finding(Reason.CONDITION, Verdict.CONDITIONS, message, gate.clause)]
        message = f"the document {Path(paper.document).name} is missing or does not have the digest on record"
        return [Finding(Reason.HASH_MISMATCH, Verdict.DENY, message, gate.clause)]
    ways = (f"record {gate.lifted_by} with its document and sha256 under [licenses.facts]",) if gate.lifted_by else ()
    return [Finding(Reason.GATE_TRIGGERED, Verdict.DENY, f"{gate.summary}; it applies to you", gate.clause, ways)]
