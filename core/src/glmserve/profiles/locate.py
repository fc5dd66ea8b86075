"""Where a setting was made: the line of a key in TOML text, an environment variable, or a flag."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Key = tuple[str, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_DOTTED})[ \t]*\]")
_ASSIGNMENT = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")
# What a value is made of, as far as finding its end goes.
_PIECE = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|' + r"'''.*?'''|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'|" + r"#[^\n]*|[\[{]|[\]}]|\n|.",
    re.DOTALL,
)


@dataclass
class Origins:
    """What set each key of a profile."""

    path: Path = Path("profile.toml")
    lines: dict[Key, int] = field(default_factory=dict)
    overrides: dict[Key, str] = field(default_factory=dict)

    def where(self, key: Key) -> str:
        """The override that set `key`, or file:line of it, of the first thing set inside it, or of what encloses it."""
        upwards = [key[:length] for length in range(len(key), 0, -1)]
        for outer in upwards:
            if outer in self.overrides:
                return self.overrides[outer]
        if key not in self.lines:
            inside = [origin for inner, origin in self.overrides.items() if inner[: len(key)] == key]
            inside += [f"{self.path}:{line}" for inner, line in self.lines.items() if inner[: len(key)] == key]
            if inside:
                return inside[0]
        for outer in upwards:
            if outer in self.lines:
                return f"{self.path}:{self.lines[outer]}"
        return f"{self.path}:1"


def key_lines(text: str) -> dict[Key, int]:
    """The line (from 1) of each table header and assignment. `text` is valid TOML."""
    lines: dict[Key, int] = {}
    table: Key = ()
    for line, statement in _statements(text):
        header = _HEADER.match(statement)
        if header:
            table = _split(header[1])
            lines.setdefault(table, line)
        elif assignment := _ASSIGNMENT.match(statement):
            lines.setdefault(table + _split(assignment[1]), line)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each logical line: a value in brackets or triple quotes may span several."""
    start = line = 1
    depth = 0
    pieces: list[str] = []
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece == "\n" and depth == 0:
            yield start, "".join(pieces)
            pieces.clear()
            start = line + 1
        else:
            depth += (piece in ("[", "{")) - (piece in ("]", "}"))
            pieces.append(piece)
        line += piece.count("\n")
    yield start, "".join(pieces)


def _split(dotted: str) -> Key:
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in re.findall(_PART, dotted))
