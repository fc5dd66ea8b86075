"""What a decoded token costs at each length of its context, and which part of it grows.

Tiny GLM decodes one token over pages that hold random entries: its forward pass reads as many of them as it would of
a real conversation, and nobody has to wait for a prefill of 128K tokens. A step is repeated at one position, in turn
with those of the other lengths, and the table holds medians. Times are the processor's, of the one thread that
computes: on an idle machine the time that passes, and on a busy one still the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from glmserve.engine.kv import PageMemory
from glmserve.engine.plan import Rows, StepPlan
from glmserve.engine.runner import Runner
from glmserve.models.dense import Dense
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.models.glm_moe_dsa.model import GlmMoeDsaModel
from glmserve.store.checkpoint import open_checkpoint
from glmserve_model_tiny_glm import CHECKPOINT
from log_plot import svg

LENGTHS = tuple(1024 << n for n in range(8))
"""1K to 128K; bench/million.py goes on from there, on several ranks."""
STEPS = 40
PAGE_TOKENS = 32
WARM_STEPS = 3
TOKEN = 5
"""Any: the costs of a step do not depend on it."""


@dataclass(frozen=True)
class Cost:
    """Of one step, in ms. What is left of `step` are experts, head and the runner."""

    tokens: int
    step: float
    indexer: float
    """Its projections, the scores of all keys, and the choice of the best."""
    attention: float
    """Its projections, and the sum over the tokens that were chosen."""


class Clock:
    """Adds up the seconds that are spent in a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.spent = 0.0

    def __call__(self, *arguments: Any) -> Any:
        begin = time.thread_time()
        try:
            return self._function(*arguments)
        finally:
            self.spent += time.thread_time() - begin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def load(selected: int | None = None) -> GlmMoeDsaModel:
    """Tiny GLM, which attends to as many tokens as it was made for, or to `selected`."""
    checkpoint, family = open_checkpoint(CHECKPOINT), GlmMoeDsa()
    if selected is not None:
        checkpoint.config = {**checkpoint.config, "index_topk": selected}
    model = family.load(checkpoint, Dense(), family.describe(checkpoint.config, "float32"))
    assert isinstance(model, GlmMoeDsaModel)
    return model


def planted(model: GlmMoeDsaModel, tokens: int) -> PageMemory:
    """Pages for `tokens`, with entries of the size of real ones, whose latents and keys are normalised."""
    memory = PageMemory(model.info, -(-tokens // PAGE_TOKENS), PAGE_TOKENS)
    generator = torch.Generator().manual_seed(1)
    for tensor in memory.tensors.values():
        tensor.normal_(generator=generator)
    return memory


def measure(model: GlmMoeDsaModel, lengths: Sequence[int], steps: int) -> list[Cost]:
    memory = planted(model, max(lengths))
    attentions, indexers = [], []
    for layer in model.layers:
        if layer.attention.indexer is not None:
            indexers.append(Clock(layer.attention.indexer.select))
            layer.attention.indexer.select = indexers[-1]  # type: ignore[method-assign]
        attentions.append(Clock(layer.attention))
        layer.attention = attentions[-1]  # type: ignore[assignment]
    runner = Runner(model, memory)

    def step(tokens: int) -> Cost:
        for clock in (*attentions, *indexers):
            clock.spent = 0.0
        pages = tuple(range(-(-tokens // PAGE_TOKENS)))
        runner.execute(StepPlan(0, (), ended=(0,)))
        rows = Rows(sequence=0, start=tokens - 1, tokens=(TOKEN,), first_page=0, pages=pages, logits=1, chunk=False)
        begin = time.thread_time()
        (result,) = runner.execute(StepPlan(0, (rows,)))
        whole = time.thread_time() - begin
        if not result.logits.isfinite().all():
            raise SystemExit(f"The logits at {tokens} tokens are not finite.")
        indexer, attention = (sum(clock.spent for clock in clocks) for clocks in (indexers, attentions))
        return Cost(tokens, 1e3 * whole, 1e3 * indexer, 1e3 * (attention - indexer))

    rounds = [[step(tokens) for tokens in lengths] for _ in range(WARM_STEPS + steps)][WARM_STEPS:]
    return [
        Cost(
            tokens,
            median(costs[i].step for costs in rounds),
            median(costs[i].indexer for costs in rounds),
            median(costs[i].attention for costs in rounds),
        )
        for i, tokens in enumerate(lengths)
    ]


def table(costs: Sequence[Cost], dense: Sequence[Cost]) -> str:
    """In Markdown."""
    columns = ("context", "step (ms)", "indexer (ms)", "attention (ms)", "rest (ms)", "step if dense (ms)")
    lines = ["| " + " | ".join(columns) + " |", "|---:" * len(columns) + "|"]
    for cost, whole in zip(costs, dense, strict=True):
        rest = cost.step - cost.indexer - cost.attention
        cells = (cost.step, cost.indexer, cost.attention, rest, whole.step)
        lines.append(f"| {cost.tokens:,} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of context, this step's too")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps at each length")
    parser.add_argument("--svg", type=Path, help="file for a plot of the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load()
    longest = max(arguments.lengths)
    if not model.config.index_topk < min(arguments.lengths) <= longest <= model.info.max_context:
        raise SystemExit(f"A length must be above {model.config.index_topk}, up to {model.info.max_context} tokens.")
    costs = measure(model, arguments.lengths, arguments.steps)
    dense = measure(load(selected=longest), arguments.lengths, arguments.steps)
    print(table(costs, dense))
    if arguments.svg:
        lines = {name: [(c.tokens, getattr(c, name)) for c in costs] for name in ("step", "indexer", "attention")}
        lines["step if dense"] = [(cost.tokens, cost.step) for cost in dense]
        arguments.svg.write_text(svg(lines, "Decode step of Tiny GLM", "tokens of context", "ms"), "utf-8")


if __name__ == "__main__":
    main()
