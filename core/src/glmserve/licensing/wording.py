"""Comparing wordings: is this the text of that licence, apart from names and layout?

Two copies of one licence differ in holders, years, list marks and addresses. Two licences that look alike differ in
words that permit, forbid or oblige. So a difference is forgiven when both sides of it have the same such words in the
same order, which mostly means none; one more condition, or one permission less, makes another licence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RUN = 4
"""Words in a row that have to agree for two texts to be in step again."""
GAP = 48
"""The longest difference, in words of both sides together, that is followed."""
MAX_STARTS = 64
"""Places at which one licence is looked for in one text."""
MAX_LEFTOVER = 150
"""Words around the licences: titles, holders, lists of authors."""

_WORD = re.compile(r"[^\W_]+")
_QUIET = re.compile(r"https?://(?:www\.)?|['`\u2019]")


def words(text: str) -> list[str]:
    """In lower case, without punctuation; British and American spelling are one."""
    return _WORD.findall(_QUIET.sub("", text.lower()).replace("licence", "license"))


_RESTRICTING = frozenset(
    words("""
        additional additionally addition amended amendment but cannot commercial commercially condition conditional
        conditioned conditions consent either except excepting exception exceptions exclude excluded excludes excluding
        exclusion exclusively fee fees forbid forbidden forbids however if instead limit limitation military modified
        modification must neither never no noncommercial nonprofit nor not notwithstanding only otherwise pay payment
        profit prohibit prohibited prohibits provided registration require required requires restrict restricted
        restriction restrictions revenue revoke royalties royalty shall should solely subject terminate terminates
        termination unlawful unless until
    """)
)
"""Words with which a text takes something back."""
_OPERATIVE = _RESTRICTING | frozenset(
    words("""
        charge copies copy copying deal derivative display distribute distributed distribution endorse free grant
        granted grants include included includes irrevocable liable may merge modifications modify notice notices object
        patent patents perform permission permissions permit permits permitted perpetual prepare promote publish purpose
        purposes redistribute redistribution redistributions reproduce retain sale sell share source sublicense use used
        using warranties warranty without worldwide
    """)
)
"""Words that decide what a licence permits and asks for."""


@dataclass(frozen=True)
class Body:
    """The words of a licence, and those around them in the published text."""

    words: tuple[str, ...]
    around: frozenset[tuple[str, ...]]
    """Every three words in a row of the title, the preamble and the appendix."""


def cut(text: Sequence[str], begins: Sequence[str], ends: Sequence[str]) -> Body:
    """The body from the first `begins` to the last `ends`. Raises ValueError when they do not stand in the text."""
    start = _index(text, begins, range(len(text)))
    end = _index(text, ends, reversed(range(len(text)))) + len(ends)
    if end - start < 4 * RUN:
        raise ValueError("the body of a licence text is too short to be recognised")
    return Body(tuple(text[start:end]), _triples(text[:start]) | _triples(text[end:]))


def locate(body: Body, said: Sequence[str], joined: str) -> list[tuple[int, int]]:
    """Every (start, end) in `said` at which the body stands. `joined` is " word word ... "."""
    if not _plausible(body, joined):
        return []
    spans: list[tuple[int, int]] = []
    head = f" {' '.join(body.words[:RUN])} "
    at, position, word = joined.find(head), 0, 0
    for _ in range(MAX_STARTS):
        if at < 0:
            break
        word += joined.count(" ", position, at)
        position = at
        end = _follow(body.words, said, word)
        if end is not None:
            spans.append((word, end))
        at = joined.find(head, at + 1)
    return spans


def leftover(said: Sequence[str], spans: Iterable[tuple[int, int]], bodies: Iterable[Body]) -> list[str]:
    """The words outside the spans that do not belong to the published texts around the bodies."""
    taken = bytearray(len(said))
    for start, end in spans:
        taken[start:end] = b"\1" * (end - start)
    if all(taken):
        return []
    around = frozenset[tuple[str, ...]]().union(*(body.around for body in bodies))
    for i in range(len(said) - 2):
        if tuple(said[i : i + 3]) in around:
            taken[i : i + 3] = b"\1\1\1"
    return [word for word, seen in zip(said, taken, strict=True) if not seen]


def restricts(rest: Sequence[str]) -> bool:
    """Whether words around a licence may change what it permits.

    Words in scripts that this module cannot read may say anything, and so may many words.
    """
    return len(rest) > MAX_LEFTOVER or any(word in _RESTRICTING or not _latin(word) for word in rest)


def _latin(word: str) -> bool:
    return word.isascii() or all(c < "\u0250" for c in word)


def _plausible(body: Body, joined: str) -> bool:
    """A cheap look at seven places, of which four have to be there."""
    step = max(1, (len(body.words) - RUN) // 7)
    samples = [" ".join(body.words[i : i + RUN]) for i in range(0, len(body.words) - RUN, step)][:7]
    return sum(f" {sample} " in joined for sample in samples) >= 4


def _follow(body: tuple[str, ...], said: Sequence[str], start: int) -> int | None:
    """Where the body ends in `said` when it begins at `start`; None when it is another text."""
    i, j, forgiven = 0, start, 0
    budget = max(24, len(body) // 12)
    while i < len(body):
        if j < len(said) and body[i] == said[j]:
            i, j = i + 1, j + 1
            continue
        step = _in_step(body, said, i, j)
        if step is None:
            return None
        left_out, put_in = body[i : i + step[0]], said[j : j + step[1]]
        forgiven += sum(step)
        if forgiven > budget or _operative(left_out) != _operative(put_in) or not all(map(_latin, put_in)):
            return None
        i, j = i + step[0], j + step[1]
    return j


def _operative(run: Iterable[str]) -> list[str]:
    return [word for word in run if word in _OPERATIVE]


def _in_step(body: tuple[str, ...], said: Sequence[str], i: int, j: int) -> tuple[int, int] | None:
    """The fewest words to skip on both sides so that the next ones agree."""
    for gap in range(1, GAP + 1):
        for a in range(min(gap, len(body) - i) + 1):
            b = gap - a
            ahead = body[i + a : i + a + RUN]
            if (
                ahead
                and said[j + b : j + b + 1] == [ahead[0]]
                and list(ahead) == list(said[j + b : j + b + len(ahead)])
            ):
                return a, b
    return None


def _index(text: Sequence[str], wanted: Sequence[str], order: Iterable[int]) -> int:
    for i in order:
        if list(text[i : i + len(wanted)]) == list(wanted):
            return i
    raise ValueError(f"{' '.join(wanted)!r} does not stand in the text")


def _triples(text: Sequence[str]) -> frozenset[tuple[str, ...]]:
    return frozenset(zip(text, text[1:], text[2:], strict=False))
