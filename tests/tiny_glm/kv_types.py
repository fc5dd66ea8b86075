"""What a smaller type of the context costs: `python -m tests.tiny_glm.kv_types` prints the table of docs/glm-5.3.md."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from glmserve_model_tiny_glm import CHECKPOINT
from recipe.batches import Encoder
from recipe.corpus import examples

from ..core.models.glm import load, new_pools, recorded_sets
from ..core.models.paged import PAGE_TOKENS, forward

SEED = 43
TOPK = 256
SHORT, LONG = 10, 4
"""Texts that were never trained on: up to the selection, and longer."""
TYPES = ("float32", "bfloat16", "float16", "float8_e4m3")


@dataclass(frozen=True)
class Run:
    logits: torch.Tensor
    """float32 [rows of all texts, vocabulary]"""
    selected: list[set[tuple[int, int]]]
    """By text: (layer * rows + row, position) of rows past the selection."""


@dataclass(frozen=True)
class Error:
    largest: float
    """Of a logit."""
    usual: float
    """What the largest error of a row's logits stays below in 99 of 100 rows."""
    agreement: float
    """Rows whose best token is the same, of all rows."""
    selection: float
    """Of the tokens that rows past the selection attend to: how many are the same."""
    token_bytes: int
    """Of context, in all layers."""


@cache
def texts() -> list[list[int]]:
    encoder = Encoder()
    lengths = ((lambda n: 64 <= n <= TOPK, SHORT), (lambda n: TOPK + 40 <= n <= 800, LONG))
    found = []
    for fits, count in lengths:
        encoded = (encoder.encode(one).ids for one in examples(SEED, held_out=True))
        found += list(islice((ids for ids in encoded if fits(len(ids))), count))
    return found


@cache
def run(kv_dtype: str) -> Run:
    model = load(CHECKPOINT, kv_dtype)
    logits, selected = [], []
    for ids in texts():
        pages = -(-len(ids) // PAGE_TOKENS)
        with recorded_sets(model, len(ids)) as sets:
            logits.append(forward(model, new_pools(model, pages), (ids, 0, list(range(pages)), True)))
        past = [(i * len(ids) + row, sets[i][row]) for i in range(len(sets)) for row in range(TOPK, len(ids))]
        selected.append({(at, position) for at, positions in past for position in positions})
    return Run(torch.cat(logits), selected)


@cache
def error(kv_dtype: str) -> Error:
    """Against the same model with its context in float32."""
    exact, found = run("float32"), run(kv_dtype)
    apart = (found.logits - exact.logits).abs()
    same = sum(len(a & b) for a, b in zip(found.selected, exact.selected, strict=True))
    pools = new_pools(load(CHECKPOINT, kv_dtype), 1)
    return Error(
        float(apart.max()),
        float(apart.amax(1).quantile(0.99)),
        float((found.logits.argmax(1) == exact.logits.argmax(1)).double().mean()),
        same / sum(len(a) for a in exact.selected),
        sum(pool.nbytes for pool in pools.values()) // PAGE_TOKENS,
    )


def table() -> str:
    rows = run("float32").logits
    heads = ("`engine.kv_dtype`", "bytes a token", "largest error of a logit", "in 99 of 100 rows below")
    lines = [row(*heads, "same best token", "same selection"), row(*["---"] * 6)]
    for kv_dtype in TYPES:
        e = error(kv_dtype)
        figures = (
            f"{e.token_bytes:,}",
            f"{e.largest:.2g}",
            f"{e.usual:.2g}",
            f"{e.agreement:.2%}",
            f"{e.selection:.2%}",
        )
        lines.append(row(f"`{kv_dtype}`", *figures))
    return "\n".join([*lines, "", f"{len(rows):,} rows; logits reach {rows.abs().max():.0f}."])


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table())
