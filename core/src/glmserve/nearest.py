"""The nearest right name, for errors about a wrong one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(wrong: str, right: Iterable[str]) -> str:
    """A clause to put before the full stop: the nearest of `right`, or all of them when none is near."""
    names = list(right)
    near = get_close_matches(wrong, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}"
    return f"; there is {', '.join(names)}" if names else ""
