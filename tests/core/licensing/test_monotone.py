"""The laws of the verdict algebra, over generated assemblies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glmserve.licensing.report import Component, Use, Verdict
from hypothesis import given, settings
from hypothesis import strategies as st

from .parts import CATALOGUE, judged, part

IDS = [row.id for row in CATALOGUE.rows]
ids = st.sampled_from([*IDS, "LicenseRef-Nobody-Knows", "OFL-1.1"])
broken = st.sampled_from(["MIT OR", "", "NOASSERTION", "MIT/X11"])
well_formed = st.recursive(
    ids, lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner), max_leaves=4
)
expressions = st.one_of(well_formed, broken)
RELATIONS = ("verbatim", "reshard", "format", "quantize", "finetune", "distill", "vendored")


@st.composite
def assemblies(draw: st.DrawFn) -> list[Component]:
    """Up to five components, each perhaps made from an earlier one."""
    parts: list[Component] = []
    for index in range(draw(st.integers(1, 5))):
        made_from = []
        if parts and draw(st.booleans()):
            made_from = [(draw(st.sampled_from(parts)).id, draw(st.sampled_from(RELATIONS)))]
        parts.append(
            part(
                f"part-{index}",
                draw(expressions),
                delivery=draw(st.sampled_from(["bundled", "fetch", "user-supplied"])),
                never=draw(st.booleans()),
                made_from=made_from,
                text=draw(st.sampled_from([None, "A licence."])),
                revision=draw(st.sampled_from(["main", "4" * 40])),
            )
        )
    return parts


facts = st.fixed_dictionaries(
    {}, optional={name: st.booleans() for name in sorted(CATALOGUE.facts)} | {"purpose": st.just("noncommercial")}
)


def verdicts(components: Sequence[Component], **options: Any) -> list[Verdict]:
    report = judged(components, **options)
    return [report.verdicts[use] for use in Use]


def no_better(one: Sequence[Verdict], other: Sequence[Verdict]) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True))


@given(assemblies(), facts, st.booleans())
@settings(max_examples=60, deadline=None)
def test_adding_a_component_never_improves_and_removing_one_never_worsens(
    parts: list[Component], facts: dict[str, Any], strict: bool
) -> None:
    rest = parts[:-1]
    # What is left out of the assembly stays known as an ancestor, as an installed manifest would.
    less = verdicts(rest, facts=facts, strict=strict, ancestors=parts) if rest else [Verdict.ALLOW] * len(Use)
    assert no_better(verdicts(parts, facts=facts, strict=strict), less)


@given(assemblies(), facts)
@settings(max_examples=60, deadline=None)
def test_a_commercial_purpose_never_improves_sharing(parts: list[Component], facts: dict[str, Any]) -> None:
    assert no_better(verdicts(parts, facts=facts, commercial=True), verdicts(parts, facts=facts))


@given(assemblies(), facts)
@settings(max_examples=60, deadline=None)
def test_counting_what_is_fetched_never_improves(parts: list[Component], facts: dict[str, Any]) -> None:
    assert no_better(verdicts(parts, facts=facts, strict=True), verdicts(parts, facts=facts))


@given(well_formed, well_formed, facts)
@settings(max_examples=100, deadline=None)
def test_one_more_branch_never_worsens_and_one_more_term_never_improves(
    one: str, other: str, facts: dict[str, Any]
) -> None:
    alone = verdicts([part("x", one)], facts=facts)
    assert no_better(alone, verdicts([part("x", f"({one}) OR ({other})")], facts=facts))
    assert no_better(verdicts([part("x", f"({one}) AND ({other})")], facts=facts), alone)


@given(assemblies(), st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_order_of_components_does_not_matter(parts: list[Component], random: Any) -> None:
    mixed = list(parts)
    random.shuffle(mixed)
    assert judged(parts) == judged(mixed)


@given(assemblies(), st.lists(st.sampled_from(IDS), max_size=6), st.lists(st.sampled_from(IDS), max_size=3))
@settings(max_examples=60, deadline=None)
def test_a_policy_of_the_organisation_only_tightens(parts: list[Component], allow: list[str], deny: list[str]) -> None:
    policy = {"policy": {"allow": allow, "deny": deny}}
    assert no_better(verdicts(parts, section=policy), verdicts(parts))


@given(assemblies())
@settings(max_examples=60, deadline=None)
def test_a_commercial_run_is_never_better_than_a_local_one(parts: list[Component]) -> None:
    report = judged(parts)
    assert report.verdicts[Use.RUN_COMMERCIAL] >= report.verdicts[Use.RUN_LOCAL]


@given(expressions, facts)
@settings(max_examples=100, deadline=None)
def test_a_conclusion_is_no_worse_than_the_declaration(expression: str, facts: dict[str, Any]) -> None:
    report = judged([part("x", expression)], facts=facts)
    concluded = report.find("x").concluded
    if concluded:
        again = judged([part("x", concluded)], facts=facts)
        # One branch is decided for all uses together, so single uses may lose; the sum may not gain.
        assert sum(again.verdicts.values()) >= sum(report.verdicts.values())
