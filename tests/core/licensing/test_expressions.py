"""Licence expressions: precedence, spelling, and everything that people write instead of one."""

from __future__ import annotations

import time

import pytest
from glmserve.licensing.expressions import (
    And,
    Expression,
    License,
    MalformedExpression,
    Or,
    is_branch,
    licenses,
    parse,
    same,
)
from hypothesis import example, given
from hypothesis import strategies as st

MIT, APACHE, GPL = License("MIT"), License("Apache-2.0"), License("GPL-3.0-only")
LEAVES = [
    MIT,
    APACHE,
    GPL,
    License("Apache-2.0", "LLVM-exception"),
    License("GPL-2.0-or-later", "Classpath-exception-2.0"),
    License("Apache-2.0+"),
    License("OpenMDW-1.0"),
    License("LicenseRef-GLM-5.3"),
    License("LicenseRef-addition-MIT"),
]


def _or(terms: list[Expression]) -> Expression:
    return Or(tuple(part for term in terms for part in (term.terms if isinstance(term, Or) else (term,))))


def _and(terms: list[Expression]) -> Expression:
    return And(tuple(part for term in terms for part in (term.terms if isinstance(term, And) else (term,))))


def _larger(trees: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(trees, min_size=2, max_size=4)
    return several.map(_or) | several.map(_and)


TREES: st.SearchStrategy[Expression] = st.recursive(st.sampled_from(LEAVES), _larger, max_leaves=12)


@given(TREES)
def test_a_tree_written_and_read_is_the_same_tree(tree: Expression) -> None:
    assert parse(str(tree)) == tree


@given(TREES, st.sampled_from([" ", "  ", "\n", "\t"]))
def test_case_and_space_change_nothing(tree: Expression, space: str) -> None:
    written = str(tree).replace(" ", space)
    assert same(parse(written.upper()), tree)
    assert same(parse(f"{space}{written.lower()}{space}"), tree)


@given(st.text(alphabet=st.sampled_from("()+ \n\t\0") | st.characters(), max_size=60))
@example("MIT" + "\u202e" + " OR GPL-3.0-only")
def test_any_text_is_an_expression_or_malformed(text: str) -> None:
    try:
        tree = parse(text)
    except MalformedExpression:
        return
    assert parse(str(tree)) == tree


TOKENS = ["MIT", "OpenMDW-1.0", "and", "OR", "WITH", "LLVM-exception", "(", ")", "LicenseRef-addition-", "+", "None"]


@given(st.lists(st.sampled_from(TOKENS), max_size=12), st.sampled_from(["", " "]))
def test_any_row_of_tokens_is_an_expression_or_malformed(tokens: list[str], space: str) -> None:
    try:
        tree = parse(space.join(tokens))
    except MalformedExpression:
        return
    assert parse(str(tree)) == tree


def test_a_refusal_quotes_the_text_as_it_was_written() -> None:
    with pytest.raises(MalformedExpression, match=r"'OpenMDW-1\.0 OR'"):
        parse("openmdw-1.0 OR")


def test_and_binds_tighter_than_or() -> None:
    assert parse("MIT OR Apache-2.0 AND GPL-3.0-only") == Or((MIT, And((APACHE, GPL))))
    assert parse("(MIT OR Apache-2.0) AND GPL-3.0-only") == And((Or((MIT, APACHE)), GPL))


def test_list_identifiers_get_their_official_spelling() -> None:
    assert str(parse("mit or apache-2.0")) == "MIT OR Apache-2.0"
    assert str(parse("openmdw-1.0")) == "OpenMDW-1.0"


def test_licenserefs_that_differ_in_case_are_the_same() -> None:
    assert same(parse("licenseref-glm-5.3"), parse("LicenseRef-GLM-5.3"))


def test_a_licenseref_never_turns_into_an_identifier_of_the_list() -> None:
    assert parse("LicenseRef-addition-MIT") == License("LicenseRef-addition-MIT")
    assert parse("licenseref-ADDITION-OpenMDW-1.0 OR OpenMDW-1.0") == Or(
        (License("LicenseRef-ADDITION-OpenMDW-1.0"), License("OpenMDW-1.0"))
    )


@pytest.mark.parametrize(
    "text",
    [
        *(
            "MIT OR",
            "MIT/X11",
            "()",
            "",
            "Apache License 2.0",
            "NOASSERTION",
            "NONE",
            "MIT OR OR",
            "OR",
            "MIT Apache-2.0",
        ),
        *(
            "MIT\0",
            "\u041cIT",
            "MIT\u202e",
            "\ufeffMIT",
            "389-exception WITH MIT",
            "MIT WITH (LLVM-exception)",
            "MIT;ISC",
        ),
        *(
            "DocumentRef-a:MIT",
            "LicenseRef-",
            "LicenseRef-a_b",
            "LicenseRef-é",
            "MIT AND AND MIT",
            ")(",
            "MIT)",
            "\ud800",
        ),
    ],
)
def test_what_is_no_expression_is_malformed(text: str) -> None:
    with pytest.raises(MalformedExpression):
        parse(text)


@pytest.mark.parametrize(
    "text", ["(" * 300 + "MIT" + ")" * 300, " OR ".join(["MIT"] * 160_000), "M" * 1_000_000, "(" * 60_000]
)
def test_what_is_too_deep_or_too_long_is_malformed_within_a_second(text: str) -> None:
    start = time.monotonic()
    with pytest.raises(MalformedExpression) as caught:
        parse(text)
    assert time.monotonic() - start < 1
    assert len(str(caught.value)) < 200


def test_a_choice_is_a_branch_of_some_or() -> None:
    tree = parse("(MIT OR GPL-3.0-only) AND Apache-2.0")
    assert is_branch(MIT, tree)
    assert is_branch(License("gpl-3.0-ONLY"), tree)
    assert not is_branch(APACHE, tree)
    assert not is_branch(MIT, MIT)


@given(TREES)
def test_leaves_are_those_that_are_written(tree: Expression) -> None:
    leaves = list(licenses(tree))
    assert set(leaves) <= set(LEAVES)
    assert [str(leaf) for leaf in leaves] == str(tree).replace("(", "").replace(")", "").replace(" AND ", " OR ").split(
        " OR "
    )
