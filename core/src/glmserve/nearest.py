"""The nearest right name, for errors about a wrong one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MANY = 40
"""Nobody reads a longer list."""


def nearest(wrong: str, right: Iterable[str], prefix: str = "") -> str:
    """A clause to put before the full stop: the nearest of `right`, or all of them when none is near and they are few.

    `prefix` is put before each name that is shown, and plays no part in the comparison: what two names share says
    nothing about which is meant.
    """
    names = list(right)
    near = get_close_matches(wrong, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {prefix + near[0]!r}"
    return f"; there is {', '.join(prefix + name for name in names)}" if 0 < len(names) <= MANY else ""
