"""Rotary position embedding, half-split as in Hugging Face's llama or in interleaved pairs, and its scaling variants.

Formulas: RoFormer (Su et al. 2021); linear interpolation (Chen et al. 2023); YaRN (Peng et al. 2023); "llama3" as in
Meta's Llama 3.1 reference code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from glmserve.api import CheckpointError

from .config import Keys


def rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration's rotary keys, wherever it has them: rope_parameters, overlaid by rope_scaling, and beside
    both rope_theta. Raises CheckpointError when one of the two is no mapping.
    """
    found: dict[str, Any] = {}
    if config.get("rope_theta"):
        found["rope_theta"] = config["rope_theta"]
    for key in ("rope_parameters", "rope_scaling"):
        nested = Keys(config).section(key)
        found |= {name: value for name, value in nested.items() if name != "rope_theta" or value}
    return found


def inverse_frequencies(config: Mapping[str, Any], dim: int) -> tuple[torch.Tensor, float]:
    """(float32 [dim / 2], attention factor) for a configuration. Raises CheckpointError naming an unknown variant."""
    scaling = rope_settings(config)
    base = Keys(scaling).number("rope_theta", 10000.0)
    plain = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64).to(torch.float32) / dim)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", "none"):
        return plain, 1.0
    try:
        if kind == "linear":
            return plain / float(scaling["factor"]), 1.0
        if kind == "llama3":
            return _llama3(plain, scaling), 1.0
        if kind == "yarn":
            return _yarn(plain, scaling, config, base, dim)
    except KeyError as missing:
        raise CheckpointError(f"RoPE scaling {kind!r} needs the key {missing} in rope_scaling.") from None
    except (TypeError, ValueError):
        raise CheckpointError(f"RoPE scaling {kind!r} has a value in {scaling!r} that is no number.") from None
    raise CheckpointError(f"RoPE scaling {kind!r} is not supported; default, linear, llama3 and yarn are.")


def _llama3(plain: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / plain
    blend = (original / wavelength - low) / (high - low)
    between = (1 - blend) * plain / factor + blend * plain
    scaled = torch.where(wavelength > original / low, plain / factor, plain)
    middle = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(middle, between, scaled)


def _yarn(
    plain: torch.Tensor, scaling: Mapping[str, Any], config: Mapping[str, Any], base: float, dim: int
) -> tuple[torch.Tensor, float]:
    original = float(scaling.get("original_max_position_embeddings") or config["max_position_embeddings"])
    factor = float(scaling["factor"])
    fast, slow = float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(fast), dimension(slow)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    frequencies = plain / factor * ramp + plain * (1 - ramp)

    def magnitude(scale: float, m: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = magnitude(factor)
        if mscale and all_dim:
            attention = magnitude(factor, float(mscale)) / magnitude(factor, float(all_dim))
    return frequencies, float(attention)


class Rotary:
    """Rotates queries and keys by their absolute positions."""

    def __init__(self, frequencies: torch.Tensor, attention_factor: float = 1.0) -> None:
        """frequencies: float32 [dim / 2]."""
        self._frequencies = frequencies
        self._factor = attention_factor

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cosine, sine), each float32 [rows, 1, dim], for int64 positions [rows]."""
        angles = positions.to(torch.float32)[:, None] * self._frequencies
        angles = torch.cat((angles, angles), -1)[:, None]
        return angles.cos() * self._factor, angles.sin() * self._factor


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """x: [rows, heads, dim]."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def rotate_pairs(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """x: [rows, heads, dim], rotated in the pairs (x0, x1), (x2, x3), ...; the tables as for `rotate`.

    Returns first all rotated first members, then all second ones. That order is free as long as queries and keys
    share it, for only their products are used.
    """
    half = x.shape[-1] // 2
    cosine, sine = cosine[..., :half], sine[..., :half]
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
