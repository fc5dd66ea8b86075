"""The mixture of experts: each row goes to the few experts that its router scores highest, and to a shared one.

p = sigmoid(router x); the experts of the highest p + bias are chosen; a chosen one counts p / (sum of the chosen p)
* routed scale. The bias balances the load and takes no part in the weights. Everything here is float32: the biases lie
near 7 and differ by 0.2, so in 16 bits they would all but be one number. Formulas: DeepSeek-V3's report, section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from glmserve.api import CheckpointError, Linear, LinearSpec

from ..activations import sigmoid, swiglu
from .layout import BIAS, at, expert_linears, router_linear, shared_linears
from .source import Source


class SwigluMlp:
    """down(silu(gate x) * up x), summed over this rank's part of the intermediate columns."""

    def __init__(self, source: Source, specs: tuple[LinearSpec, LinearSpec]) -> None:
        gate_up, down = specs
        own = source.own(down.in_features)
        self._gate_up, self._down = source.linear(gate_up, rows=own), source.linear(down, columns=own)
        self.linears = (self._gate_up, self._down)

    def __call__(self, x: torch.Tensor, chunk: bool) -> torch.Tensor:
        return self._down(swiglu(self._gate_up(x), chunk))


class Mixture:
    """Rows stay independent: they are grouped by expert, and an expert's linear layers do not mix their rows.

    Every rank routes every row, and has its part of all experts.
    """

    def __init__(self, source: Source, index: int) -> None:
        self._config = config = source.config
        self._router: Linear = source.linear(router_linear(config, index))
        self._bias = self._load_bias(source, f"{at(index)}.mlp.gate.{BIAS}")
        self._shared = SwigluMlp(source, shared_linears(config, index))
        self._experts = [SwigluMlp(source, expert_linears(config, index, e)) for e in range(config.experts)]

    @property
    def linears(self) -> Iterator[Linear]:
        yield self._router
        for mlp in (self._shared, *self._experts):
            yield from mlp.linears

    @staticmethod
    def _load_bias(source: Source, name: str) -> torch.Tensor:
        stored = source.checkpoint.require(name).dtype
        if stored != "F32":
            raise CheckpointError(
                f"{source.checkpoint.path}: tensor {name!r} is stored as {stored}, which is too coarse to choose "
                "experts by; convert the checkpoint again and keep it in F32."
            )
        return source.vector(name)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [rows, hidden]. Returns int64 and float32 [rows, experts per token]: the experts and their weights."""
        scores = sigmoid(self._router(x))
        # A stable sort: of equal scores the expert of the lower number, as with no other company.
        order = (scores + self._bias).sort(dim=-1, descending=True, stable=True).indices
        chosen = order[:, : self._config.experts_per_token]
        weights = scores.gather(1, chosen)
        total = weights[:, 0]
        for column in weights.unbind(1)[1:]:  # in this order in every call, which torch's sum does not promise
            total = total + column
        return chosen, weights / (total + 1e-20)[:, None] * self._config.routed_scale

    def __call__(self, x: torch.Tensor, chunk: bool) -> torch.Tensor:
        """x: [rows, hidden], normalised. A row's experts are added in the order of their numbers."""
        chosen, weights = self.route(x)
        y = self._shared(x, chunk)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, column = (chosen == expert).nonzero(as_tuple=True)
            y[rows] += weights[rows, column, None] * self._experts[expert](x[rows], chunk)
        return y
