"""The tool's schema decides whether a value is a text or JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from glmserve.server.parsing.arguments import ANY, escaped, types_of, types_of_argument, value_json
from hypothesis import given
from hypothesis import strategies as st

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
TYPES = (type(None), bool, int, float, str, list, dict)
NAMES = dict(zip(TYPES, ("null", "boolean", "integer", "number", "string", "array", "object"), strict=True))


def written(value: Any) -> str:
    """A value as the model writes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@given(values)
def test_a_value_of_the_declared_type_comes_back(value: Any) -> None:
    types = types_of({"type": NAMES[type(value)]}, {})
    assert json.loads(value_json(written(value), types)) == value


@given(values, st.lists(st.sampled_from(sorted(ANY)), max_size=4))
def test_the_result_is_always_json(value: Any, names: list[str]) -> None:
    json.loads(value_json(written(value), frozenset(names) or ANY))


@given(st.text(), st.lists(st.sampled_from(sorted(ANY)), max_size=3))
def test_any_text_at_all_becomes_json(text: str, names: list[str]) -> None:
    json.loads(value_json(text, frozenset(names) or ANY))


@given(st.text(max_size=20), st.integers(0, 20))
def test_a_text_can_be_escaped_in_parts(text: str, cut: int) -> None:
    assert json.loads(f'"{escaped(text[:cut])}{escaped(text[cut:])}"') == text


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("true", {"type": "string"}, "true"),
        ('"x"', {"type": "string"}, '"x"'),
        (" x\n", {"type": "string"}, " x\n"),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("5", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "5"),
        ("5", {"type": ["string", "integer"]}, 5),
        ("5.5", {"type": ["string", "integer"]}, "5.5"),
        ("5.0", {"type": "integer"}, 5.0),
        ("five", {"type": "integer"}, "five"),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ("NaN", {"type": "number"}, "NaN"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("[" * 5000, {"type": "array"}, "[" * 5000),
        ("red", {"enum": ["red", "green"]}, "red"),
        ("2", {"enum": [1, 2]}, 2),
        ("x", {"const": "x"}, "x"),
        ("{}", {}, {}),
        ("hello", {}, "hello"),
        ("hello", True, "hello"),
        ("7", {"$ref": "#/$defs/count"}, 7),
        ("7", {"$ref": "#/$defs/word"}, "7"),
        ("7", {"allOf": [{"$ref": "#/$defs/word"}, {"maxLength": 3}]}, "7"),
        ("7", {"$ref": "#/$defs/circle"}, 7),
        ("7", {"$ref": "elsewhere.json"}, 7),
        ("7", {"type": "strange"}, 7),
    ],
)
def test_cases(text: str, schema: Any, expected: Any) -> None:
    root = {"$defs": {"count": {"type": "integer"}, "word": {"type": "string"}, "circle": {"$ref": "#/$defs/circle"}}}
    assert json.loads(value_json(text, types_of(schema, root))) == expected


def test_a_number_keeps_the_spelling_of_the_model() -> None:
    assert value_json("1e400", frozenset({"number"})) == "1e400"
    assert value_json(" 1.10\n", frozenset({"number"})) == "1.10"


def test_an_argument_that_the_schema_does_not_name() -> None:
    assert types_of_argument({}, "x") == ANY
    assert types_of_argument({"properties": {"y": {"type": "string"}}}, "x") == ANY
    assert types_of_argument({"additionalProperties": {"type": "string"}}, "x") == {"string"}
    assert types_of_argument({"additionalProperties": False}, "x") == ANY
