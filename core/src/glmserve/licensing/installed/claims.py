"""Whether the licence texts that travel with something bear out the licence that it declares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..expressions import MalformedExpression, licenses, parse
from ..report import Finding, Reason, Verdict
from ..texts import contained

_COPYRIGHT = re.compile(
    r"^[ \t]*(?:portions )?(?:copyright:?[ \t]+(?:\(c\)|\u00a9|[0-9]{4})|(?:\(c\)|\u00a9)[ \t]*[0-9]{4})[^\n]{0,100}\n",
    re.IGNORECASE | re.MULTILINE,
)
"""A holder's line; clauses have "(c)" and "copyright" at the beginning of a line, too."""


@dataclass(frozen=True)
class FoundText:
    """A licence text that lies in a distribution."""

    path: str
    text: str
    """Normalised."""
    main: bool
    """It is about the whole distribution, and not about a part of it that lies deeper."""


def compare(expression: str, texts: Sequence[FoundText]) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """(further readings of the licence, findings) for a declared expression that parses.

    When the main texts are those of other licences, that is TEXT_MISMATCH, and no reading settles it. When further
    texts are there besides, of vendored parts for instance, the reading with all of them counts too.
    """
    try:
        claimed = {_base(license.id) for license in licenses(parse(expression))}
    except MalformedExpression:
        return (), ()
    found = {text.path: recognised(text.text) for text in texts}
    main = {text.path: found[text.path] for text in texts if text.main and found[text.path]}
    if main and not any(claimed & _bases(ids) for ids in main.values()):
        path, ids = next(iter(main.items()))
        message = f"it declares {expression}, and its {path} is the text of {_names(ids)}"
        ways = ("read the text and record what it is under [[licenses.clarify]]", "ask its publisher")
        return (), (Finding(Reason.TEXT_MISMATCH, Verdict.UNKNOWN, message, remedies=ways),)
    extra: dict[str, str] = {}
    for path, ids in found.items():
        for id in sorted(ids):
            if _base(id) not in claimed and _base(id) not in {_base(other) for other in extra}:
                extra[id] = path
    if not extra:
        return (), ()
    where = ", ".join(f"{id} ({path})" for id, path in sorted(extra.items()))
    message = f"it carries texts of licences that it does not declare, and they count as well: {where}"
    tree = f"({expression})" if " OR " in expression else expression
    reading = " AND ".join((tree, *sorted(extra)))
    return (reading,), (Finding(Reason.METADATA_CONFLICT, Verdict.ALLOW, message),)


def recognised(text: str) -> frozenset[str]:
    """The licences whose wording stands complete in a normalised text. Exceptions are left out: they only add."""
    # Most distributions differ from the next one in the copyright line only.
    return frozenset(id for id in _recognised(_COPYRIGHT.sub("", text)) if " WITH " not in id)


@lru_cache(maxsize=4096)
def _recognised(text: str) -> frozenset[str]:
    return contained(text)


def _bases(ids: frozenset[str]) -> set[str]:
    return {_base(id) for id in ids}


def _base(id: str) -> str:
    """Without what a text cannot tell: "or later" stands in a notice, not in the licence."""
    return re.sub(r"(-only|-or-later|\+)$", "", id).casefold()


def _names(ids: frozenset[str]) -> str:
    return " and ".join(sorted(ids))
