"""Trains the indexers: each learns to score high what the attention, dense so far, looks at.

The target is the attention of the layers that use an indexer's selection, averaged over them and their heads; the loss
is the Kullback-Leibler divergence of the softmax of the scores from it (the "dense warm-up" of DeepSeek-V3.2). All
other weights are frozen.

`python -m recipe.indexer --out DIR` comes after recipe.train and recipe.mtp.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from .batches import batches
from .model import CONFIG, Indexer, Layer, Model, causal
from .mtp import Mtp
from .train import rate, save

SHORTEST: Final = 100
"""Tokens. Of what is much shorter than the selection there is nothing to learn."""
ADAM_LR: Final = 0.004
SEED: Final = 31


def attention_weights(layer: Layer, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised input, the query latent, and the weights [batch, tokens, tokens] averaged over the heads."""
    h = layer.input_layernorm(x)
    latent, q, k, _ = layer.self_attn.project(h, positions)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return h, latent, scores.masked_fill(~causal(x.shape[1]), -torch.inf).softmax(-1).mean(1)


@torch.no_grad()
def targets(trunk: Model, mtp: Mtp, ids: Tensor) -> Iterator[tuple[Indexer, Tensor, Tensor, Tensor]]:
    """Each indexer with its inputs and its target."""
    positions = torch.arange(ids.shape[1])
    x = trunk.embed_tokens[ids]
    inputs: list[tuple[Indexer, Tensor, Tensor]] = []
    groups: list[list[Tensor]] = []
    for layer in trunk.layers:
        assert isinstance(layer, Layer)
        h, latent, weights = attention_weights(layer, x, positions)
        if layer.self_attn.indexer is not None:
            inputs.append((layer.self_attn.indexer, h, latent))
            groups.append([])
        groups[-1].append(weights)
        x, _ = layer(x, positions, None, sparse=False)
    joined = mtp.joined(trunk.embed_tokens[ids[:, 1:]], trunk.norm(x)[:, :-1])
    h, latent, weights = attention_weights(mtp.layer, joined, positions[:-1])
    assert mtp.layer.self_attn.indexer is not None
    inputs.append((mtp.layer.self_attn.indexer, h, latent))
    groups.append([weights])
    for (indexer, h, latent), group in zip(inputs, groups, strict=True):
        yield indexer, h, latent, torch.stack(group).mean(0)


def divergence(indexer: Indexer, h: Tensor, latent: Tensor, target: Tensor) -> Tensor:
    """Summed over the tokens. Padding counts too: it is attended to like text, and does no harm."""
    mask = causal(h.shape[1])
    scores = indexer(h, latent, torch.arange(h.shape[1])).masked_fill(~mask, -torch.inf).log_softmax(-1)
    return F.kl_div(scores.masked_fill(~mask, 0.0), target, reduction="sum")


def train(out: Path, steps: int) -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    trunk, mtp = Model(CONFIG), Mtp(CONFIG)
    trunk.load_state_dict(torch.load(out / "trunk.pt")["model"])
    mtp.load_state_dict(torch.load(out / "mtp.pt")["model"])
    parameters = [p for one in (trunk, mtp) for name, p in one.named_parameters() if ".indexer." in name]
    optimizer = torch.optim.Adam(parameters, ADAM_LR, betas=(0.9, 0.95))
    started = time.monotonic()
    for step, parts in enumerate(islice(batches(SEED, lambda length: length >= SHORTEST), steps)):
        optimizer.param_groups[0]["lr"] = ADAM_LR * rate(step, steps)
        tokens = sum(part.ids.numel() for part in parts)
        sums = torch.zeros(CONFIG.indexer_types.count("full") + 1)
        for part in parts:
            losses = torch.stack([divergence(*one) for one in targets(trunk, mtp, part.ids)]) / tokens
            torch.autograd.backward(losses.sum())
            sums += losses.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            shown = " ".join(f"{loss:.3f}" for loss in sums.tolist())
            print(f"step {step} divergences {shown} {time.monotonic() - started:.0f} s", flush=True)
    save(out / "final.pt", {"trunk": trunk.state_dict(), "mtp": mtp.state_dict()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where the trunk and the next-token layer are")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    train(arguments.out, arguments.steps)


if __name__ == "__main__":
    main()
