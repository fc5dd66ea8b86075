"""Text of unknown authors on one line, in a column, and in Markdown."""

from __future__ import annotations

import json

import pytest
from glmserve.licensing.outputs.plain import (
    columns,
    fenced,
    in_markdown,
    listed,
    one_line,
    padded,
    well_formed,
    wrapped,
)
from hypothesis import given
from hypothesis import strategies as st

ANY = st.text(st.characters(exclude_categories=()))


@given(ANY)
def test_one_line_can_be_printed_anywhere(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    line.encode("utf-8")
    assert one_line(line) == line


def test_a_limit_shows_that_something_is_missing() -> None:
    assert one_line("abcdefgh", 8) == "abcdefgh"
    assert one_line("abcdefghi", 8) == "abcde..."


@given(st.recursive(ANY | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(ANY, inner)))
def test_what_is_well_formed_can_be_encoded(value: object) -> None:
    json.dumps(well_formed(value), ensure_ascii=False).encode("utf-8")


def test_what_was_well_formed_stays_as_it_is() -> None:
    value = {"a": ["\x1b", 1, None, {"\u202e": "\U0001f600"}]}
    assert well_formed(value) == value


@given(st.text("ab \u6f22\u0301", max_size=60), st.integers(1, 20))
def test_wrapped_lines_hold_every_word_and_no_more_than_fits(text: str, width: int) -> None:
    lines = wrapped(text, width, "- ", "    ")
    assert " ".join(lines).split()[1:] == text.split()
    for line in lines:
        assert columns(line) <= width or len(line.removeprefix("- ").split()) <= 1


@given(st.text("a\u6f22\u0301", max_size=10))
def test_padding_fills_the_columns_that_a_terminal_shows(text: str) -> None:
    assert columns(padded(text, 20)) == 20


@pytest.mark.parametrize(
    ("items", "expected"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_items_are_listed_as_people_do(items: list[str], expected: str) -> None:
    assert listed(items) == expected


@given(ANY)
def test_a_cell_of_markdown_has_no_end_of_its_own(text: str) -> None:
    cell = in_markdown(text)
    assert "\n" not in cell
    assert cell.replace("\\\\", "").replace("\\|", "").count("|") == 0


@given(st.text("`a\n~"))
def test_a_block_of_markdown_ends_where_it_should(text: str) -> None:
    first, *body, last = fenced(text).split("\n")
    assert last == first.removesuffix("text")
    assert last not in [line.strip() for line in body]
    assert "\n".join([*body, ""]) == (text if text.endswith("\n") else f"{text}\n")
