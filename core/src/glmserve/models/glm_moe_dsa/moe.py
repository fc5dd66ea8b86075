"""The mixture of experts: each row goes to the few experts that its router scores highest, and to a shared one.

p = sigmoid(router x); the experts of the highest p + bias are chosen; a chosen one counts p / (sum of the chosen p)
* routed scale. The bias balances the load and takes no part in the weights. Everything here is float32: the biases lie
near 7 and differ by 0.2, so in 16 bits they would all but be one number. Formulas: DeepSeek-V3's report, section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from glmserve.api import Checkpoint, CheckpointError, Linear, LinearSpec, Quantization

from ..activations import sigmoid, swiglu
from .config import GlmConfig
from .layout import BIAS, at, expert_linears, router_linear, shared_linears


class SwigluMlp:
    """down(silu(gate x) * up x)"""

    def __init__(
        self, checkpoint: Checkpoint, quantization: Quantization, specs: tuple[LinearSpec, LinearSpec]
    ) -> None:
        self._gate_up, self._down = (quantization.load_linear(checkpoint, spec) for spec in specs)
        self.linears = (self._gate_up, self._down)

    def __call__(self, x: torch.Tensor, chunk: bool) -> torch.Tensor:
        return self._down(swiglu(self._gate_up(x), chunk))


class Mixture:
    """Rows stay independent: they are grouped by expert, and an expert's linear layers do not mix their rows."""

    def __init__(self, checkpoint: Checkpoint, quantization: Quantization, config: GlmConfig, index: int) -> None:
        self._config = config
        self._router: Linear = quantization.load_linear(checkpoint, router_linear(config, index))
        self._bias = self._load_bias(checkpoint, quantization, f"{at(index)}.mlp.gate.{BIAS}")
        self._shared = SwigluMlp(checkpoint, quantization, shared_linears(config, index))
        self._experts = [
            SwigluMlp(checkpoint, quantization, expert_linears(config, index, e)) for e in range(config.experts)
        ]

    @property
    def linears(self) -> Iterator[Linear]:
        yield self._router
        for mlp in (self._shared, *self._experts):
            yield from mlp.linears

    @staticmethod
    def _load_bias(checkpoint: Checkpoint, quantization: Quantization, name: str) -> torch.Tensor:
        stored = checkpoint.require(name).dtype
        if stored != "F32":
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name!r} is stored as {stored}, which is too coarse to choose experts by; "
                "convert the checkpoint again and keep it in F32."
            )
        return quantization.load_vector(checkpoint, name)

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
