"""Trains the trunk on the CPU, in fp32. Interrupt it as you like: it goes on from its last state.

`python -m recipe.train --out DIR` takes about an hour on one core.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from .batches import Batch, batches
from .model import CONFIG, Model, Moe
from .optimizer import optimizers

WARM_UP = 50
"""Steps."""
COOL_DOWN = 0.4
"""Share of the steps over which the rate falls to 0."""
MUON_LR, ADAM_LR = 0.015, 0.01
BALANCE = 0.003
"""How far the choice bias of an expert moves in a step."""
SEED = 11


def rate(step: int, steps: int) -> float:
    """Of the full learning rate: rises, stays, falls."""
    return min(1.0, (step + 1) / WARM_UP, (steps - step) / (COOL_DOWN * steps))


def loss_of(logits: Tensor, batch: Batch, ahead: int = 1) -> Tensor:
    """Weighted sum. Row t of logits [rows, tokens - ahead, vocabulary] predicts token t + ahead."""
    weights = batch.weights[:, ahead:].flatten()
    losses = F.cross_entropy(logits.flatten(0, 1), batch.ids[:, ahead:].flatten(), reduction="none")
    return (losses * weights).sum()


def weight_of(parts: list[Batch], ahead: int = 1) -> float:
    return sum(part.weights[:, ahead:].sum().item() for part in parts)


def mean_loss(model: Model, parts: list[Batch], backward: bool) -> float:
    """Over the parts of one step; `backward` adds up the gradients."""
    total, weight = 0.0, weight_of(parts)
    for part in parts:
        with torch.set_grad_enabled(backward):
            loss = loss_of(model.logits(model(part.ids[:, :-1])), part) / weight
        if backward:
            torch.autograd.backward(loss)
        total += loss.item()
    return total


def balance(model: torch.nn.Module, step: float) -> None:
    """Make experts with little load more likely to be chosen (DeepSeek-V3's balancing without a loss)."""
    for module in model.modules():
        if isinstance(module, Moe):
            module.gate.e_score_correction_bias += step * torch.sign(module.load.mean() - module.load)
            module.load = torch.zeros_like(module.load)


def save(path: Path, state: object) -> None:
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def train(out: Path, steps: int, save_every: int) -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = Model(CONFIG)
    for module in model.modules():
        if hasattr(module, "indexer") and module.indexer is not None:
            # Trained later, on what the attention has learnt.
            module.indexer.requires_grad_(False)
    optims = optimizers(model, MUON_LR, ADAM_LR)
    full = [group["lr"] for optim in optims for group in optim.param_groups]
    first, state = 0, out / "trunk.pt"
    if state.exists():
        saved = torch.load(state)
        model.load_state_dict(saved["model"])
        for optim, kept in zip(optims, saved["optimizers"], strict=True):
            optim.load_state_dict(kept)
        first = saved["step"]
    held = list(islice(batches(SEED + 1, held_out=True), 8))
    started = time.monotonic()
    for step, parts in enumerate(islice(batches(SEED), first, steps), first):
        now = rate(step, steps)
        for group, lr in zip((g for optim in optims for g in optim.param_groups), full, strict=True):
            group["lr"] = lr * now
        loss = mean_loss(model, parts, backward=True)
        for optim in optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        balance(model, BALANCE * now)
        if step % 20 == 0:
            print(f"step {step} loss {loss:.4f} {time.monotonic() - started:.0f} s", flush=True)
        if (step + 1) % save_every == 0 or step + 1 == steps:
            losses = [mean_loss(model, parts, backward=False) for parts in held]
            print(f"step {step + 1} held-out loss {sum(losses) / len(losses):.4f}", flush=True)
            done = [optim.state_dict() for optim in optims]
            save(state, {"model": model.state_dict(), "optimizers": done, "step": step + 1})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where states and results go")
    parser.add_argument("--steps", type=int, default=1700)
    parser.add_argument("--save-every", type=int, default=200)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    train(arguments.out, arguments.steps, arguments.save_every)


if __name__ == "__main__":
    main()
