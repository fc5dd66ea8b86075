"""SPDX licence expressions as trees. `packaging.licenses` is the judge of what is well-formed; the tree is ours.

Grammar: SPDX specification 2.3, annex D. WITH binds tighter than AND, AND tighter than OR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

MAX_BYTES = 64 * 1024
"""Longer expressions are malformed: an honest one has a few hundred bytes."""

ADDITIONS = ("OpenMDW-1.0",)
"""Identifiers of the SPDX list 3.29 that `packaging` may not know yet."""

ABSENT = frozenset({"", "noassertion", "none", "unknown"})
"""What publishers and SBOMs write where they say nothing."""


class MalformedExpression(ValueError):
    """The text is no SPDX expression; the message is a phrase that says why."""


@dataclass(frozen=True)
class License:
    """A leaf: an identifier, with the exception that WITH adds."""

    id: str
    exception: str = ""

    def __str__(self) -> str:
        return f"{self.id} WITH {self.exception}" if self.exception else self.id

    @property
    def key(self) -> str:
        """For comparison: identifiers differ by more than case."""
        return str(self).casefold()


@dataclass(frozen=True)
class And:
    terms: tuple[Expression, ...]

    def __str__(self) -> str:
        return " AND ".join(f"({term})" if isinstance(term, Or) else str(term) for term in self.terms)


@dataclass(frozen=True)
class Or:
    terms: tuple[Expression, ...]

    def __str__(self) -> str:
        return " OR ".join(str(term) for term in self.terms)


Expression = License | And | Or


def parse(text: str) -> Expression:
    """The tree of an expression, its list identifiers in their official spelling. Raises MalformedExpression."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise MalformedExpression(f"it is longer than {MAX_BYTES // 1024} KiB")
    if not text.isascii() or not all(c.isprintable() or c in "\t\r\n" for c in text):
        raise MalformedExpression("it has characters that no identifier has")
    # Additions pass as LicenseRefs, under a prefix that the text itself does not have: nobody can write one of those.
    prefix = "LicenseRef-addition-"
    while prefix.casefold() in text.casefold():
        prefix += "x-"
    for addition in ADDITIONS:
        text = re.sub(
            rf"(?<![^\s()]){re.escape(addition)}(?![^\s()])", f"{prefix}{addition}", text, flags=re.IGNORECASE
        )
    try:
        canonical = canonicalize_license_expression(text).replace(prefix, "")
    except (InvalidLicenseExpression, ValueError, RecursionError, MemoryError, SyntaxError) as error:
        message = re.sub(re.escape(prefix), "", _shortened(str(error)), flags=re.IGNORECASE)
        raise MalformedExpression(message or "it does not parse") from None
    tokens = re.findall(r"[()]|[^\s()]+", canonical)
    tree, rest = _disjunction(tokens, 0)
    assert rest == len(tokens), canonical  # packaging accepted it
    return tree


def licenses(tree: Expression) -> Iterator[License]:
    """The leaves, from left to right."""
    if isinstance(tree, License):
        yield tree
    else:
        for term in tree.terms:
            yield from licenses(term)


def is_branch(choice: Expression, tree: Expression) -> bool:
    """Whether `choice` is one of the branches of an OR somewhere in `tree`."""
    if isinstance(tree, License):
        return False
    if isinstance(tree, Or) and _key(choice) in {_key(term) for term in tree.terms}:
        return True
    return any(is_branch(choice, term) for term in tree.terms)


def same(one: Expression, other: Expression) -> bool:
    return _key(one) == _key(other)


def _key(tree: Expression) -> str:
    return str(tree).casefold()


def _shortened(message: str) -> str:
    message = " ".join(message.split())
    return message if len(message) <= 120 else f"{message[:117]}..."


def _disjunction(tokens: list[str], at: int) -> tuple[Expression, int]:
    terms, at = _operands(tokens, at, "OR")
    return (terms[0] if len(terms) == 1 else Or(terms)), at


def _conjunction(tokens: list[str], at: int) -> tuple[Expression, int]:
    terms, at = _operands(tokens, at, "AND")
    return (terms[0] if len(terms) == 1 else And(terms)), at


def _operands(tokens: list[str], at: int, operator: str) -> tuple[tuple[Expression, ...], int]:
    operand = _conjunction if operator == "OR" else _leaf
    kind = Or if operator == "OR" else And
    terms: list[Expression] = []
    while True:
        term, at = operand(tokens, at)
        # (a OR b) OR c is one choice among three.
        terms += term.terms if isinstance(term, kind) else (term,)
        if at == len(tokens) or tokens[at].upper() != operator:
            return tuple(terms), at
        at += 1


def _leaf(tokens: list[str], at: int) -> tuple[Expression, int]:
    if tokens[at] == "(":
        tree, at = _disjunction(tokens, at + 1)
        return tree, at + 1
    if at + 2 < len(tokens) and tokens[at + 1].upper() == "WITH":
        return License(tokens[at], tokens[at + 2]), at + 3
    return License(tokens[at]), at + 1
