"""Text of unknown authors, made safe for a terminal, a table and a document.

Names, licences and messages come from manifests and from the metadata of every installed distribution: they can hold
control sequences, right-to-left overrides, line breaks and lone surrogates.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def one_line(text: str, limit: int | None = None) -> str:
    """`text` on one line, with what cannot be seen shown as U+FFFD, and cut to `limit` characters with "..."."""
    line = "".join(c if c.isprintable() else REPLACEMENT for c in " ".join(text.split()))
    return line if limit is None or len(line) <= limit else f"{line[: limit - 3]}..."


def well_formed(value: Any) -> Any:
    """A JSON value whose strings can be encoded: lone surrogates become U+FFFD."""
    if isinstance(value, str):
        return "".join(REPLACEMENT if "\ud800" <= c <= "\udfff" else c for c in value)
    if isinstance(value, dict):
        return {well_formed(key): well_formed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [well_formed(item) for item in value]
    return value


def columns(text: str) -> int:
    """How many columns of a terminal `text` takes: East Asian wide characters two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `width` columns, the first begun with `first` and the others with `rest`.

    Breaks at spaces only: a word that is wider has a line of its own, so that an identifier can always be searched
    for and copied.
    """
    lines = []
    line = first
    empty = True
    for word in text.split():
        if not empty and columns(line) + 1 + columns(word) > width:
            lines.append(line)
            line, empty = rest, True
        line += word if empty else f" {word}"
        empty = False
    return [*lines, line.rstrip()]


def listed(items: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def in_markdown(text: str) -> str:
    """`text` on one line of Markdown, a table's cell included, where it stands for itself only."""
    return re.sub(r"([\\`*\[\]<|])", r"\\\1", one_line(text))


def fenced(text: str) -> str:
    """`text`, word for word, as a block of Markdown that it cannot end."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}"
