"""The licence that a model card claims: the front matter of a README.md, as model hubs write it.

A card is a claim of whoever uploaded the files, no more; it is compared with what the manifest declares.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

MAX_FRONT_MATTER = 64 * 1024
"""Bytes; a card's own front matter has a few hundred."""


class CardError(ValueError):
    """The front matter cannot be trusted; the message is a phrase that says why."""


class _Loader(yaml.SafeLoader):
    """Plain YAML without tags for Python objects, and with one value a key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise CardError(f"it gives {key!r} twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def claimed_license(card: Path) -> str | None:
    """The expression that the card of a model claims, or None when it claims none.

    Raises CardError for front matter that is broken or that gives the licence as anything but one name.
    """
    front = _front_matter(card)
    if front is None:
        return None
    try:
        data = yaml.load(front, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError) as error:
        # The loader lets through what it trips over in a tag that does not fit its value, such as !!int "".
        if isinstance(error, CardError):
            raise
        raise CardError("its front matter is not plain YAML") from None
    if not isinstance(data, dict) or data.get("license") is None:
        return None
    name = data["license"]
    if not isinstance(name, str):
        raise CardError("it does not give the licence as one name")
    if name.strip().casefold() != "other":
        return name.strip()
    named = data.get("license_name")
    if not isinstance(named, str) or not named.strip():
        raise CardError("it says other and does not name the licence")
    return f"LicenseRef-{named.strip()}"


def _front_matter(card: Path) -> str | None:
    try:
        with open(os.open(card, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            head = file.read(MAX_FRONT_MATTER)
    except OSError:
        return None
    # Blank lines before it are the hub's to skip, so what stands after them is read there.
    lines = head.decode("utf-8", "replace").removeprefix("\ufeff").lstrip().splitlines()
    if not lines or lines[0].strip() != "---":
        return None
    for number, line in enumerate(lines[1:], 1):
        if line.strip() == "---":
            return "\n".join(lines[1:number])
    raise CardError("its front matter does not end")
