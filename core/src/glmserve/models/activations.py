"""Elementwise functions whose rows do not influence each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F

GRAIN = 32768
"""Elements from which torch spreads an elementwise operation over threads."""


def swiglu(gate_up: torch.Tensor, chunk: bool) -> torch.Tensor:
    """silu(gate) * up for [rows, 2 * inner].

    Decode rows go in groups below torch's threading grain: above it, threads may cut a row where the vector loop leaves
    a remainder, and a row's bits would depend on the number of rows. A prefill chunk always has the same rows.
    """
    if chunk:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up
    groups = torch.split(gate_up, max(1, GRAIN // gate_up.shape[1]))
    return torch.cat([F.silu(gate) * up for gate, up in (group.chunk(2, -1) for group in groups)])


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)) for [rows, columns], each row in a call of its own.

    Torch computes what its vectors leave over with another exponential, and what is left over depends on the number
    of rows: a row's scores would change with its company, and with them the experts that it goes to.
    """
    return torch.cat([row.sigmoid() for row in torch.split(x, 1)])
