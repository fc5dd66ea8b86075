"""The licence that a model card claims: the front matter of a README.md, as model hubs write it.

A card is a claim of whoever uploaded the files, no more; it is compared with what the manifest declares.
"""

from __future__ import annotations

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
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise CardError(f"it gives {key!r} twice")
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
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
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
        with card.open("rb") as file:
            head = file.read(MAX_FRONT_MATTER)
    except OSError:
        return None
    lines = head.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
    if not lines or lines[0].strip() != "---":
        return None
    for number, line in enumerate(lines[1:], 1):
        if line.strip() == "---":
            return "\n".join(lines[1:number])
    raise CardError("its front matter does not end")
