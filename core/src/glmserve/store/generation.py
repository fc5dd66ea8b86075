"""What a checkpoint's authors recommend for sampling: generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmserve.api import IntegrityError


@dataclass(frozen=True)
class SamplingDefaults:
    """For requests that do not say otherwise."""

    temperature: float = 1.0
    top_k: int = 0
    """0: no limit."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 2**31),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}
"""Those of a request."""


def sampling_defaults(generation: Mapping[str, Any], path: Path) -> SamplingDefaults:
    """The defaults in the contents of generation_config.json, which lies in `path`.

    Raises IntegrityError for a value that no request may have.
    """
    found: dict[str, Any] = {}
    for key, (low, high) in _RANGES.items():
        value = generation.get(key)
        if value is None:
            continue
        kinds = int if key == "top_k" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            raise IntegrityError(
                f"{path / 'generation_config.json'} has a {key} of {str(value)[:40]!r}, which is not a number from "
                f"{low:g} to {high:g}; correct it or fetch it again."
            )
        found[key] = value
    return SamplingDefaults(**found)
