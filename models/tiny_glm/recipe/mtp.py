"""The next-token layer: drafts the token after next from a token and the hidden state before it, and chains.

A row of the first draft, at position p, takes token p + 1 and the trunk's normalised hidden state of p. A row of draft
d > 0 takes the layer's own normalised output of draft d - 1 at p - 1 instead. All predict token p + 2. In a chain the
layer's cache holds rows of the first draft up to p - d, and then the one row of each later draft.

`python -m recipe.mtp --out DIR` trains it on the frozen trunk.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import Batch, batches
from .model import CONFIG, Config, Layer, Model, RmsNorm, linear
from .optimizer import optimizers
from .train import ADAM_LR, BALANCE, MUON_LR, balance, loss_of, rate, save, weight_of

DEPTH: Final = 3
"""Drafts in a row that are trained."""
DECAY: Final = 0.6
"""Weight of a draft's loss against that of the one before it: it is only used when that one was right."""
SEED: Final = 21


class Mtp(nn.Module):
    def __init__(self, c: Config = CONFIG) -> None:
        super().__init__()
        self.enorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.hnorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.eh_proj = linear(c.hidden_size, 2 * c.hidden_size)
        self.layer = Layer(c, dense=False, full=True)
        self.shared_head_norm = RmsNorm(c.hidden_size, c.rms_norm_eps)

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """What goes into the layer; the embedding at position 0 counts as zero."""
        embedded = torch.cat((torch.zeros_like(embedded[:, :1]), embedded[:, 1:]), 1)
        return torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1) @ self.eh_proj.T

    def forward(self, embedded: Tensor, hidden: Tensor, depth: int) -> list[Tensor]:
        """Normalised output of each draft, [batch, tokens, hidden], as if every draft before it had been right.

        `embedded` is the embedding of token p + 1 at p, `hidden` the trunk's state of p. Of draft d the first d rows
        mean nothing. Attention is dense.
        """
        layer, attention = self.layer, self.layer.self_attn
        positions = torch.arange(embedded.shape[1])
        keys: list[Tensor] = []
        values: list[Tensor] = []
        outputs: list[Tensor] = []
        for _ in range(depth):
            x = self.joined(embedded, hidden)
            _latent, q, k, v = attention.project(layer.input_layernorm(x), positions)
            keys.append(k)
            values.append(v)
            x = x + attention.output(_chained(q, keys, values))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            outputs.append(self.shared_head_norm(x))
            hidden = later(outputs[-1], 1)
        return outputs


def later(x: Tensor, by: int) -> Tensor:
    """x [batch, ..., tokens, width], moved `by` tokens to the right."""
    return F.pad(x, (0, 0, by, 0))[..., : x.shape[-2], :]


def _chained(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of draft d = len(keys) - 1: to rows of the first draft up to p - d, and one row of each after it."""
    draft = len(keys) - 1
    if draft == 0:
        return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
    scale = q.shape[-1] ** -0.5
    ahead = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1 - draft)
    scores = [(q @ keys[0].transpose(-1, -2) * scale).masked_fill(ahead, -torch.inf)]
    scores += [(q * later(keys[s], draft - s)).sum(-1, keepdim=True) * scale for s in range(1, draft + 1)]
    weights = torch.cat(scores, -1).softmax(-1)
    attended = weights[..., : q.shape[-2]] @ values[0]
    for s in range(1, draft + 1):
        attended = attended + weights[..., q.shape[-2] + s - 1, None] * later(values[s], draft - s)
    return attended


def accumulate(trunk: Model, mtp: Mtp, parts: list[Batch]) -> list[float]:
    """Add up the gradients of one step. The mean loss of each draft."""
    sums = [0.0] * DEPTH
    for part in parts:
        part.weights[:, : DEPTH + 1] = 0.0  # what rows that mean nothing would predict
    weight = weight_of(parts, ahead=2)
    for part in parts:
        with torch.no_grad():
            hidden = trunk(part.ids[:, :-2])
        outputs = mtp(trunk.embed_tokens[part.ids[:, 1:-1]], hidden, DEPTH)
        losses = [loss_of(trunk.logits(output), part, ahead=2) / weight for output in outputs]
        torch.autograd.backward(torch.stack([loss * DECAY**draft for draft, loss in enumerate(losses)]).sum())
        sums = [so_far + loss.item() for so_far, loss in zip(sums, losses, strict=True)]
    return sums


def train(out: Path, steps: int, save_every: int) -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    trunk = Model(CONFIG)
    trunk.load_state_dict(torch.load(out / "trunk.pt")["model"])
    trunk.requires_grad_(False)
    mtp, state, first = Mtp(CONFIG), out / "mtp.pt", 0
    assert mtp.layer.self_attn.indexer is not None
    mtp.layer.self_attn.indexer.requires_grad_(False)
    optims = optimizers(mtp, MUON_LR, ADAM_LR)
    full = [group["lr"] for optim in optims for group in optim.param_groups]
    if state.exists():
        saved = torch.load(state)
        mtp.load_state_dict(saved["model"])
        for optim, kept in zip(optims, saved["optimizers"], strict=True):
            optim.load_state_dict(kept)
        first = saved["step"]
    started = time.monotonic()
    for step, parts in enumerate(islice(batches(SEED), first, steps), first):
        now = rate(step, steps)
        for group, lr in zip((g for optim in optims for g in optim.param_groups), full, strict=True):
            group["lr"] = lr * now
        losses = accumulate(trunk, mtp, parts)
        for optim in optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        balance(mtp, BALANCE * now)
        if step % 20 == 0:
            shown = " ".join(f"{loss:.4f}" for loss in losses)
            print(f"step {step} losses {shown} {time.monotonic() - started:.0f} s", flush=True)
        if (step + 1) % save_every == 0 or step + 1 == steps:
            done = [optim.state_dict() for optim in optims]
            save(state, {"model": mtp.state_dict(), "optimizers": done, "step": step + 1})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where recipe.train left the trunk")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=100)
    arguments = parser.parse_args()
    train(arguments.out, arguments.steps, arguments.save_every)


if __name__ == "__main__":
    main()
