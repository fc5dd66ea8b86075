"""Muon for the matrices, Adam for the rest: a small model learns from about half the tokens that Adam alone needs.

Muon (Keller Jordan, 2024) replaces the momentum of a matrix by the nearest orthogonal one, found with a few Newton-
Schulz steps: X <- a X + (b A + c A A) X with A = X X'.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor, nn

COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
STEPS: Final = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """[count, rows, columns] -> the same, each with all its singular values near 1."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.transpose(-1, -2) if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(STEPS):
        square = x @ x.transpose(-1, -2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(-1, -2) if tall else x


class Muon(torch.optim.Optimizer):
    """Of parameters [rows, columns] and stacks [count, rows, columns] of them."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape[-2:], []).append(parameter)
            for shape, parameters in by_shape.items():
                updates = [self._momentum(p, group["momentum"]).reshape(-1, *shape) for p in parameters]
                # One batch for all matrices of a shape.
                flat = orthogonal(torch.cat(updates)) * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, flat.split([len(u) for u in updates]), strict=True):
                    parameter.add_(update.view_as(parameter), alpha=-group["lr"])

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        """With Nesterov's look ahead."""
        assert parameter.grad is not None
        state = self.state[parameter]
        buffer: Tensor = state.setdefault("momentum", torch.zeros_like(parameter))
        buffer.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum)


def optimizers(model: nn.Module, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Over the parameters that require a gradient. Embedding, head, router and vectors are Adam's."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.dim() < 2 or any(part in name for part in ("embed_tokens", "lm_head", "gate.weight"))
            (rest if plain else matrices).append(parameter)
    return [Muon(matrices, muon_lr), torch.optim.Adam(rest, adam_lr, betas=(0.9, 0.95))]
