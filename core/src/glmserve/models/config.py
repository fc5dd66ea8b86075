"""Reading a model's configuration strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from glmserve.api import CheckpointError


class Keys:
    """Typed access to a `config.json`; a missing or odd value is an error that names the key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def positive(self, key: str, default: int | None = None) -> int:
        """A positive integer; `default` stands for a missing or null one."""
        value = self._config.get(key)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise CheckpointError(f"The model's configuration has {key} = {value!r}; a positive integer is needed.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; `default` stands for a missing or null one."""
        value = self._config.get(key)
        if value is None:
            value = default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise CheckpointError(f"The model's configuration has {key} = {value!r}; a positive number is needed.")
        return float(value)

    def only(self, key: str, allowed: Any, family: str) -> None:
        """Raise CheckpointError unless the value is `allowed`, or missing or null."""
        value = self._config.get(key)
        if value is not None and (value != allowed or isinstance(value, bool) != isinstance(allowed, bool)):
            raise CheckpointError(
                f"The model's configuration has {key} = {value!r}; family {family!r} computes {allowed!r} only."
            )

    def names(self, key: str) -> tuple[str, ...]:
        """A list of names; a missing or null one is empty."""
        value = self._config.get(key)
        names = [] if value is None else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise CheckpointError(f"The model's configuration has {key} = {value!r}; a list of names is needed.")
        return tuple(names)

    def section(self, key: str) -> Mapping[str, Any]:
        """A configuration within this one; a missing or null one is empty."""
        value = self._config.get(key)
        section = {} if value is None else value
        if not isinstance(section, Mapping):
            raise CheckpointError(f"The model's configuration has {key} = {value!r}; keys with values are needed.")
        return section

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id, a list of them, or none."""
        value = self._config.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise CheckpointError(f"The model's configuration has {key} = {value!r}; token ids are needed.")
        return tuple(ids)
