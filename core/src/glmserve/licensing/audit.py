"""From components and the user's section to a report."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from glmserve.api import ConfigError
from glmserve.api.components import ComponentKind

from .acceptance import Ledger
from .ancestry import check_circles
from .case import Case
from .expressions import MalformedExpression
from .found import declared_tree
from .policy import Document, LicensesSection, OrganisationPolicy
from .report import Component, Report, Row, Ruling, Use, Verdict
from .verdict import check_choice, conclude, judge, worst

if TYPE_CHECKING:
    from .catalogue import Catalogue


KINDS: tuple[str, ...] = get_args(ComponentKind)


@dataclass(frozen=True)
class Question:
    """What is asked of an assembly."""

    uses: tuple[Use, ...] = tuple(Use)
    commercial: bool = False
    """Shares are for a commercial purpose; declaring that purpose as a fact means the same."""
    strict: bool = False
    """Count fetched components in shares as if their bytes travelled."""
    environment: bool = False
    """Count installed distributions in the run uses too, not in the redistributing ones alone."""
    starting: bool = False
    """The model is about to be fetched or loaded."""


def audit(
    profile: str,
    components: Sequence[Component],
    section: LicensesSection,
    catalogue: Catalogue,
    question: Question = Question(),
    *,
    ancestors: Iterable[Component] = (),
    policies: Sequence[OrganisationPolicy] = (),
    drafters: Sequence[str] = (),
    ledger: Ledger = Ledger(),  # noqa: B008 - frozen
    today: date | None = None,
    versions: Mapping[str, str] | None = None,
) -> Report:
    """Judge every component under every use that is asked about.

    `ancestors` are components that others are made from and that are no part of the assembly. `policies` hold besides
    that of the section. `drafters` are ways out of a drafter's terms. Raises ConfigError when the section or the
    manifests contradict themselves.
    """
    known = _by_id(components)
    known = {**{c.id: c for c in ancestors}, **known}
    check_circles(known)
    policies = (section.policy, *policies)
    check_section(section, catalogue, policies)
    for component in components:
        if (problem := check_choice(component)) is not None:
            raise ConfigError(f"{component.source}: {component.id}: {problem}.")
    case = Case(
        catalogue=catalogue,
        section=section,
        known=known,
        verified=_verifier(),
        today=today or date.today(),
        policies=policies,
        ledger=ledger,
        drafters=tuple(drafters),
        commercial=question.commercial or section.facts.purpose == "commercial",
        service=section.service,
        starting=question.starting,
    )
    rows = tuple(sorted((_row(case, c, question) for c in components), key=_order))
    verdicts = {
        use: max((row.rulings[use].verdict for row in rows if row.rulings[use].counted), default=Verdict.ALLOW)
        for use in question.uses
    }
    warnings = (*ledger.problems, *_warnings(case, question))
    return Report(
        profile=profile,
        uses=question.uses,
        rows=rows,
        verdicts=verdicts,
        commercial=case.commercial,
        strict=question.strict,
        versions={**(versions or {}), "catalogue": catalogue.version, "spdx-list": catalogue.spdx_version},
        warnings=warnings,
        records_intact=not ledger.problems,
    )


def check_section(section: LicensesSection, catalogue: Catalogue, policies: Sequence[OrganisationPolicy]) -> None:
    """Raises ConfigError for a fact, an entry or a kind that does not exist: it would silently disable a rule."""
    facts, lifting = catalogue.facts, catalogue.documents
    for name in section.facts.names:
        value = section.facts.get(name)
        if name not in facts | lifting:
            raise ConfigError(f"[licenses.facts] {name} is no fact; there is {', '.join(sorted(facts | lifting))}.")
        if isinstance(value, Document) == (name in facts):
            wanted = "true or false" if name in facts else 'a document, { document = "...", sha256 = "..." }'
            raise ConfigError(f"[licenses.facts] {name} has to be {wanted}.")
    for policy in policies:
        for entry in (*(policy.allow or ()), *policy.deny):
            catalogue.check_entry(entry, "[licenses.policy]")
        for kind, allowed in policy.by_kind.items():
            if kind not in KINDS:
                raise ConfigError(f"[licenses.policy] by_kind.{kind} is no kind; use {', '.join(KINDS)}.")
            for entry in allowed.allow:
                catalogue.check_entry(entry, f"[licenses.policy] by_kind.{kind}")


def _by_id(components: Sequence[Component]) -> dict[str, Component]:
    twice = [id for id, count in Counter(c.id for c in components).items() if count > 1]
    if twice:
        sources = " and ".join(sorted(c.source for c in components if c.id == twice[0]))
        raise ConfigError(f"The component {twice[0]} is declared twice, by {sources}; remove one.")
    return {component.id: component for component in components}


def _row(case: Case, component: Component, question: Question) -> Row:
    try:
        tree = declared_tree(component)
        declared = str(tree) if tree is not None else component.manifest.license.expression.strip()
    except MalformedExpression:
        declared = component.manifest.license.expression
    concluded = conclude(case, component)
    rulings = {}
    for use in question.uses:
        findings = judge(case, component, use)
        rulings[use] = Ruling(worst(findings), tuple(findings), _counts(component, use, question))
    return Row(component, declared, str(concluded) if concluded is not None else "", rulings)


def _counts(component: Component, use: Use, question: Question) -> bool:
    if component.environment:
        return question.environment or use in (Use.REDISTRIBUTE_SOURCE, Use.REDISTRIBUTE_IMAGE)
    # What its user fetches from its publisher is not passed on by whoever passes the rest on.
    return not use.shares or question.strict or component.manifest.delivery != "fetch"


def _order(row: Row) -> tuple[bool, str, str]:
    return row.component.environment, row.component.manifest.kind, row.component.id


def _verifier() -> Callable[[Document], bool]:
    answers: dict[Document, bool] = {}

    def verified(document: Document) -> bool:
        if document not in answers:
            try:
                digest = hashlib.sha256(_regular(Path(document.document))).hexdigest()
            except (OSError, ValueError):
                digest = ""
            answers[document] = digest == document.sha256
        return answers[document]

    return verified


def _regular(path: Path) -> bytes:
    """A pipe or a device would never end. Raises OSError or ValueError."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return path.read_bytes()


def _warnings(case: Case, question: Question) -> list[str]:
    """About entries of the section that do nothing: they mislead whoever reads it."""
    warnings = []
    for number, exception in enumerate(case.section.exceptions, 1):
        name = f"exception {number} for {exception.component}"
        if exception.expires is not None and exception.expires < case.today:
            warnings.append(f"EXCEPTION_EXPIRED: {name} expired on {exception.expires}")
        elif id(exception) not in case.lifted and set(exception.uses) & set(question.uses):
            warnings.append(f"EXCEPTION_UNUSED: {name} lifts nothing")
    for number, grant in enumerate(case.section.grants, 1):
        name = f"grant {number} for {grant.component}"
        if grant.expires is not None and grant.expires < case.today:
            warnings.append(f"EXCEPTION_EXPIRED: {name} expired on {grant.expires}")
        elif id(grant) not in case.lifted and set(grant.uses) & set(question.uses):
            warnings.append(f"EXCEPTION_UNUSED: {name} lifts nothing")
    local = sorted(case.catalogue.local)
    return [*warnings, *(f"the terms of {id} are your own, not reviewed by the project" for id in local)]
