"""docs/glm-5.3.md answers for 35 reported faults; what it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "glm-5.3.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| (\d+) \| .*? \| (.*) \|$", PAGE, re.MULTILINE))


@cache
def functions_of(path: str) -> set[str]:
    return {node.name for node in ast.parse((ROOT / path).read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_statement_has_a_row() -> None:
    assert list(ROWS) == [str(number) for number in range(1, 36)]


@pytest.mark.parametrize("number", ROWS)
def test_every_test_that_is_named_exists(number: str) -> None:
    named = re.findall(r"`([^`:]+)::([^`]+)`", ROWS[number])
    assert named
    for path, name in named:
        assert name in functions_of(path)


def test_every_page_and_module_that_is_named_exists() -> None:
    for target in [*re.findall(r"\]\(([^)]+)\)", PAGE), *re.findall(r"`(tests/[\w/.]+\.py)`", PAGE)]:
        assert (ROOT / target).is_file() or (ROOT / "docs" / target).is_file(), target
