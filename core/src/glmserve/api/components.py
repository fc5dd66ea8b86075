"""What a part is, who made it and under which licence: the facts an audit reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Component:
    """One part of an assembly."""

    name: str
    kind: str
    """"runtime", "plugin", "model" or "drafter"."""
    license: str
    """SPDX expression, or "unknown"."""
    source: str
    """Where it comes from: a distribution with its version, or a model source."""
