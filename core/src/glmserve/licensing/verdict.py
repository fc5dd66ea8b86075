"""The verdict algebra: one component under one use.

AND takes the worst of its terms, OR the best of its branches unless one was chosen. A component is as bad as the worst
of its licence, its own policy, its integrity, and each of its ancestors. A grant of the licensor lifts what the licence
denies; an exception of the organisation lifts its own policy and what is unknown; nothing lifts an integrity failure or
the project's own decision not to redistribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .ancestry import CHANGE, conflict
from .case import Case
from .expressions import ABSENT, And, Expression, License, MalformedExpression, Or, is_branch, licenses, parse, same
from .found import declared_tree, license_text
from .lifting import document_of, lift
from .pins import unpinned
from .report import INTEGRITY, Component, Finding, Reason, Use, Verdict
from .terms import Change, Purpose, judge_gate, judge_terms

INHERITED = "from "
"""How the message of a finding begins that an ancestor's terms make."""


def worst(findings: Sequence[Finding]) -> Verdict:
    return max((finding.verdict for finding in findings), default=Verdict.ALLOW)


def judge(case: Case, component: Component, use: Use) -> list[Finding]:
    """All findings of a component under a use, worst first; the verdict is `worst` of them."""
    found = _judge(case, component, use, Change.NONE, ())
    if component.manifest.kind == "drafter" and not use.shares:
        found = [_with_ways_out(f, case.drafters) for f in found]
    unique = {(f.code, f.message): f for f in sorted(found, key=lambda f: f.verdict)}
    return sorted(unique.values(), key=lambda f: (-f.verdict, f.code, f.message))


def _with_ways_out(finding: Finding, drafters: tuple[str, ...]) -> Finding:
    """Ways out that need nobody's consent come first. What the target's own terms ask, no other drafter answers."""
    if finding.verdict <= Verdict.CONDITIONS or finding.message.startswith(INHERITED):
        return finding
    return replace(finding, remedies=(*drafters, *finding.remedies))


def conclude(case: Case, component: Component) -> Expression | None:
    """The declared expression with every OR decided, or None when it cannot be."""
    try:
        tree = declared_tree(component)
        choice = _choice(component)
    except MalformedExpression:
        return None
    if tree is None:
        return None

    def cost(branch: Expression) -> tuple[int, int, str]:
        per_use = [_tree(case, component, branch, use, Change.NONE, (component,), choice) for use in Use]
        return sum(worst(f) for f in per_use), sum(map(len, per_use)), str(branch)

    def decide(tree: Expression) -> Expression:
        if isinstance(tree, Or):
            chosen = [term for term in tree.terms if choice is not None and same(term, choice)]
            return decide(min(chosen or tree.terms, key=cost))
        if isinstance(tree, And):
            return And(tuple(decide(term) for term in tree.terms))
        return tree

    return decide(tree)


def check_choice(component: Component) -> str | None:
    """A phrase that says what is wrong with the chosen branch, or None."""
    choice = component.manifest.license.choice
    if not choice:
        return None
    try:
        tree, chosen = declared_tree(component), parse(choice)
    except MalformedExpression as error:
        return f"license.choice {choice!r} or the expression does not parse ({error})"
    if tree is None or not is_branch(chosen, tree):
        return f"license.choice {choice!r} is no branch of {component.manifest.license.expression!r}"
    return None


def _judge(case: Case, component: Component, use: Use, change: Change, heirs: tuple[Component, ...]) -> list[Finding]:
    """`change` is what happened to the component on its way into the last of `heirs`, components made from it."""
    if component in heirs:
        return []  # a circle; the audit refuses it before it gets here
    findings = [f for f in component.findings if f.bears_on(use)]
    findings += _readings(case, component, use, change, (*heirs, component))
    findings += _own_policy(component, use)
    findings += _papers(case, component, use)
    if not heirs:
        findings += _acceptance(case, component, use)
    if (what := unpinned(component.manifest.origin)) is not None:
        findings.append(Finding(Reason.REVISION_UNPINNED, Verdict.UNKNOWN, what, remedies=("pin the revision",)))
    own = {(f.code, f.message) for f in findings}
    for ancestor in component.manifest.derived_from:
        inherited = _ancestor(case, component, ancestor.id, ancestor.relation, use, change, (*heirs, component))
        # A duty that the component has itself is not told again for what it was made from.
        findings += [f for f in inherited if (f.code, f.message.partition(": ")[2]) not in own]
    return findings


def _ancestor(
    case: Case, component: Component, id: str, relation: str, use: Use, change: Change, heirs: tuple[Component, ...]
) -> list[Finding]:
    ancestor = case.known.get(id)
    if ancestor is None:
        message = f"it is made from {id} ({relation}), which no manifest describes"
        return [Finding(Reason.ANCESTOR_UNRESOLVED, Verdict.UNKNOWN, message, remedies=("install its manifest",))]
    if relation == "distill":
        # Whether a model trained on another's outputs derives from it is not settled: its gates and notices come along.
        found = _judge(case, ancestor, use, Change.NONE, heirs)
        return [_of(ancestor, f) for f in found if f.code in (Reason.GATE_FACTS_MISSING, Reason.GATE_TRIGGERED)]
    both = max(change, CHANGE[relation], key=list(Change).index)
    inherited = [_of(ancestor, f) for f in _judge(case, ancestor, use, both, heirs) if f.code not in INTEGRITY]
    laxer = conflict(case.catalogue, component, ancestor)
    if laxer is not None:
        verdict = Verdict.DENY if use.shares else Verdict.CONDITIONS
        ways = (f"declare the terms of {ancestor.id}", "obtain a written grant from its licensor")
        inherited.append(Finding(Reason.ANCESTOR_CONFLICT, verdict, laxer, remedies=ways))
    return inherited


def _of(ancestor: Component, finding: Finding) -> Finding:
    already = finding.message.startswith(INHERITED)
    return finding if already else replace(finding, message=f"{INHERITED}{ancestor.id}: {finding.message}")


def _choice(component: Component) -> Expression | None:
    choice = component.manifest.license.choice
    return parse(choice) if choice else None


def _readings(
    case: Case, component: Component, use: Use, change: Change, chain: tuple[Component, ...]
) -> list[Finding]:
    """The worst over everything that the component's sources say its licence is."""
    every: list[list[Finding]] = []
    for text in dict.fromkeys((component.manifest.license.expression, *component.readings)):
        every.append(_reading(case, component, text, use, change, chain))
    return max(every, key=lambda findings: (worst(findings), len(findings)))


def _reading(
    case: Case, component: Component, text: str, use: Use, change: Change, chain: tuple[Component, ...]
) -> list[Finding]:
    if text.strip().casefold() in ABSENT:
        said = f"its publisher says {text.strip()}, which is no licence" if text.strip() else "no licence is declared"
        found = [
            Finding(
                Reason.NO_LICENSE,
                Verdict.UNKNOWN,
                said,
                remedies=("ask its publisher", "declare the licence where the part is named", "record an exception"),
            )
        ]
        return lift(case, found, None, text, use, chain)
    try:
        tree, choice = parse(text), _choice(component)
    except MalformedExpression as error:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        message = f"{shown!r} is not an SPDX expression: {error}"
        ways = ("record what it means as a clarification or an exception",)
        found = [Finding(Reason.MALFORMED_EXPRESSION, Verdict.UNKNOWN, message, remedies=ways)]
        return lift(case, found, None, text, use, chain)
    return _tree(case, component, tree, use, change, chain, choice)


def _tree(
    case: Case,
    component: Component,
    tree: Expression,
    use: Use,
    change: Change,
    chain: tuple[Component, ...],
    choice: Expression | None,
    alone: bool | None = None,
) -> list[Finding]:
    if alone is None:
        alone = len({license.key for license in licenses(tree)}) == 1
    if isinstance(tree, License):
        return lift(case, _leaf(case, component, tree, use, change, alone), tree, str(tree), use, chain)
    branches = [_tree(case, component, term, use, change, chain, choice, alone) for term in tree.terms]
    if isinstance(tree, And):
        return [finding for branch in branches for finding in branch]
    if choice is not None and any(same(term, choice) for term in tree.terms):
        branches = [b for b, term in zip(branches, tree.terms, strict=True) if same(term, choice)]
    return min(branches, key=lambda findings: (worst(findings), len(findings)))


def _leaf(case: Case, component: Component, license: License, use: Use, change: Change, alone: bool) -> list[Finding]:
    terms = case.catalogue.find(license)
    purpose = Purpose(use, case.commercial, case.service, change)
    findings = judge_terms(license, terms, purpose)
    for gate in terms.gates if terms is not None else ():
        findings += judge_gate(gate, case.section.facts, purpose, case.verified)
    if use.shares and terms is not None and terms.redistribute != "no" and "license_text" in terms.obligations:
        findings += _text(case, component, license, alone)
    if not use.shares and terms is not None and "accept_required" in terms.obligations:
        findings += _accepted(case, component, license, alone)
    return findings + _organisation(case, component, license)


def _text(case: Case, component: Component, license: License, alone: bool) -> list[Finding]:
    if license_text(case.catalogue, component, license, alone) is None:
        terms = case.catalogue.find(license)
        where = f"fetch it from {terms.canonical_url}" if terms and terms.canonical_url else "ask its publisher"
        message = f"the text of {license} has to travel with every copy, and it is not here"
        if terms is not None and not terms.text_sha256:
            message += "; this project ships none until a person has compared it with its publisher's"
        return [Finding(Reason.TEXT_MISSING, Verdict.DENY, message, remedies=(f"{where} and lay it beside the files",))]
    lines = component.manifest.attribution.copyright
    if lines:
        return [Finding(Reason.CONDITION, Verdict.CONDITIONS, f"keep: {'; '.join(lines)}")]
    if not component.texts:
        message = f"no copyright line is known that the text of {license} needs"
        return [Finding(Reason.NOTICE_MISSING, Verdict.CONDITIONS, message)]
    return []


def _organisation(case: Case, component: Component, license: License) -> list[Finding]:
    matches = case.catalogue.matches
    ways = ("use another component", "record an exception in [[licenses.exceptions]]")
    for policy in case.policies:
        if any(matches(entry, license) for entry in policy.deny):
            message = f"{license} is on the organisation's deny list"
            return [Finding(Reason.POLICY_DENIED, Verdict.DENY, message, remedies=ways)]
        kind = policy.by_kind.get(component.manifest.kind)
        for allow in (policy.allow, kind.allow if kind else None):
            if allow is not None and not any(matches(entry, license) for entry in allow):
                message = f"{license} is not on the organisation's allow list"
                return [Finding(Reason.POLICY_NOT_ALLOWED, Verdict.DENY, message, remedies=ways)]
    return []


def _own_policy(component: Component, use: Use) -> list[Finding]:
    policy = component.manifest.policy
    if policy.redistribute == "never" and use.shares:
        message = (
            f"never redistributed by this project ({policy.reason or 'its own decision'}); the licence may allow it"
        )
        ways = ("leave a stub that fetches it from its publisher",)
        return [Finding(Reason.PROJECT_POLICY, Verdict.DENY, message, remedies=ways)]
    return []


def _papers(case: Case, component: Component, use: Use) -> list[Finding]:
    """Grants whose document is not the one on record."""
    return [
        Finding(
            Reason.HASH_MISMATCH,
            Verdict.ACTION,
            f"the grant document {Path(grant.document).name} is missing or does not have the digest on record",
            remedies=("put the document back", "remove the grant"),
        )
        for grant in case.section.grants
        if grant.component == component.id and use in grant.uses and not case.verified(document_of(grant))
    ]


def _acceptance(case: Case, component: Component, use: Use) -> list[Finding]:
    """Of the project's own rule: accept before the files are fetched or loaded."""
    if use.shares:
        return []
    try:
        tree = declared_tree(component)
    except MalformedExpression:
        return []
    leaves = {license.key: license for license in licenses(tree)} if tree is not None else {}
    needed = case.starting and component.manifest.policy.accept_before_fetch
    findings: list[Finding] = []
    for license in leaves.values():
        findings += _accepted(case, component, license, len(leaves) == 1, needed)
    return findings


def _accepted(case: Case, component: Component, license: License, alone: bool, needed: bool = True) -> list[Finding]:
    text = license_text(case.catalogue, component, license, alone)
    state = case.ledger.state(component.manifest, str(license), text.sha256 if text else None)
    ways = (f"read and accept it: glmserve licenses accept {component.id}",)
    if state == "stale":
        message = f"the text or revision of {license} is not the one that was accepted"
        return [Finding(Reason.ACCEPTANCE_STALE, Verdict.ACTION, message, remedies=ways)]
    if state == "missing" and needed:
        message = f"{license} has to be accepted before the files are fetched or loaded"
        return [Finding(Reason.ACCEPTANCE_MISSING, Verdict.ACTION, message, remedies=ways)]
    return []
