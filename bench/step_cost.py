"""What a step of the engine costs on 1, 2 and 4 ranks, split into plan, collectives and compute, seen from rank 0.

Tiny GLM in the shape of profile tiny-four-spark, without a drafter: real engines, whose other ranks are processes of
this machine with one thread each. They take turns, so that whatever else the machine does meets all of them; the table
holds medians over steps.

- compute: what rank 0 computes itself;
- collectives: what passes in its exchanges, the wait for ranks that compute longer included. Where there are more ranks
  than cores, ranks wait for a core, and that shows here;
- plan: the rest of the turn: scheduling, the message to the other ranks and their reports, sampling and delivery.

Beside it stand the sums of one step, all of one size, alone and one after the other: by one-shot exchanges and by
Gloo's all_reduce, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from collectives import on_ranks
from glmserve.cluster.mesh import Mesh
from glmserve.deployment import build
from glmserve.engine.engine import Engine
from glmserve.engine.plan import StepPlan
from glmserve.engine.request import Request, SamplingParams
from glmserve.plugins import load_plugins
from glmserve.profiles import Profile, load_profile
from glmserve.store.checkpoint import open_checkpoint
from glmserve_model_tiny_glm import CHECKPOINT

RANKS = (1, 2, 4)
CHUNK = 256
"""Tokens of a prefill chunk, as in the profile."""
PROMPT = 1024
"""Tokens: decode rows select among so many, and four chunks are computed."""
DECODED = 24
"""Tokens of an answer."""
WARM_ROUNDS = 1
SUMS = ("attention", "mlp")
"""The exchanges in which every rank sums rows of the model's width."""
Kind = tuple[int, int]
"""Decode rows and chunk rows of a step."""
KINDS: dict[Kind, str] = {(1, 0): "decode, 1 sequence", (4, 0): "decode, 4 sequences", (0, CHUNK): "prefill, 256 rows"}


@dataclass(frozen=True)
class Step:
    """Of one turn, in seconds; `sums` are the sums of all ranks in it."""

    kind: Kind
    whole: float
    execute: float
    collectives: float
    exchanges: int
    sums: int

    @property
    def parts(self) -> tuple[float, float, float, float]:
        """Whole, plan, collectives, compute."""
        return self.whole, self.whole - self.execute, self.collectives, self.execute - self.collectives


class Recorder:
    """Stands in for an engine's turn, and writes down each that ran a step."""

    def __init__(self, engine: Engine) -> None:
        self.steps: list[Step] = []
        self._worker = engine._ranks.worker
        self._turn = engine._turn
        self._execute = self._worker.execute
        self._step: tuple[Kind, float] = (0, 0), 0.0
        engine._turn = self.turn  # type: ignore[method-assign]
        self._worker.execute = self.execute  # type: ignore[method-assign]

    def execute(self, plan: StepPlan) -> Any:
        begin = time.perf_counter()
        results = self._execute(plan)
        rows = [sum(len(one.tokens) for one in plan.rows if one.chunk == chunk) for chunk in (False, True)]
        self._step = (rows[0], rows[1]), time.perf_counter() - begin
        return results

    def counters(self) -> tuple[float, int, int]:
        """Seconds in exchanges, exchanges, and sums among them."""
        group = self._worker.group
        if not isinstance(group, Mesh):
            return 0.0, 0, 0
        return sum(group.seconds.values()), group.exchanges, sum(group.counts[name] for name in SUMS)

    def turn(self) -> bool:
        before, begin = self.counters(), time.perf_counter()
        worked = self._turn()
        whole = time.perf_counter() - begin
        if worked:
            seconds, exchanges, sums = (now - then for now, then in zip(self.counters(), before, strict=True))
            kind, execute = self._step
            self.steps.append(Step(kind, whole, execute, seconds, int(exchanges), int(sums)))
        return worked


def profile_of(size: int) -> Profile:
    hosts = ", ".join(["'localhost'"] * size)
    return load_profile(
        "tiny-four-spark",
        [
            f"parallel.tensor={size}",
            f"parallel.context={size}",
            f"transport.hosts=[{hosts}]",
            "drafter.name=none",
            "engine.threads=1",
            "engine.max_context=8192",
            "engine.kv_tokens=32768",
        ],
    )


async def answer(engine: Engine, prompt: Sequence[int]) -> None:
    request = Request(prompt=tuple(prompt), max_tokens=DECODED, sampling=SamplingParams(temperature=0), ignore_eos=True)
    async for _ in engine.submit(request):
        pass


async def round_of(engine: Engine, number: int) -> None:
    """One sequence, then four together."""
    width = engine.num_tokens - 10
    prompts = [[10 + (number + i * (2 * j + 3)) % width for i in range(PROMPT)] for j in range(5)]
    await answer(engine, prompts[0])
    await asyncio.gather(*(answer(engine, prompt) for prompt in prompts[1:]))


def measure(sizes: Sequence[int], rounds: int) -> dict[int, list[Step]]:
    """Steps by ranks."""
    plugins = load_plugins()
    engines = {size: build(profile_of(size), plugins).engine for size in sizes}
    try:
        recorders = {size: Recorder(engine) for size, engine in engines.items()}
        for engine in engines.values():
            engine.start()
        for number in range(WARM_ROUNDS + rounds):
            for size, engine in engines.items():
                if number == WARM_ROUNDS:
                    recorders[size].steps.clear()
                asyncio.run(round_of(engine, number))
        return {size: recorder.steps for size, recorder in recorders.items()}
    finally:
        for engine in engines.values():
            engine.stop()


def row(size: int, kind: Kind, steps: Sequence[Step], sums: Callable[[int], tuple[float, float]]) -> str:
    """In Markdown. `sums`: seconds of one sum of so many rows, by an exchange and by all_reduce."""
    found = [step for step in steps if step.kind == kind]
    whole, plan, collectives, compute = (
        f"{1e3 * median(part):.2f}" for part in zip(*(s.parts for s in found), strict=True)
    )
    exchanges, count = found[0].exchanges, found[0].sums
    beside = ["-"] * 3
    if count:
        exchange, all_reduce = (1e3 * count * seconds for seconds in sums(max(kind)))
        beside = [str(count), f"{exchange:.2f}", f"{all_reduce:.2f}"]
    cells = [str(size), KINDS[kind], whole, plan, collectives, compute, str(exchanges), *beside, str(len(found))]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    row_bytes = 4 * open_checkpoint(CHECKPOINT).config["hidden_size"]
    rows = [max(kind) for kind in KINDS]
    # First, because it forks.
    alone = {
        size: dict(zip(rows, on_ranks(size, [row_bytes * count for count in rows], 40), strict=True))
        for size in arguments.ranks
        if size > 1
    }
    steps = measure(arguments.ranks, arguments.rounds)
    titles = ["ranks", "step", "whole (ms)", "plan", "collectives", "compute", "exchanges", "sums among them"]
    titles += ["the sums one-shot (ms)", "by all_reduce (ms)", "steps measured"]
    print("| " + " | ".join(titles) + " |", "|---:|---|" + "---:|" * (len(titles) - 2), sep="\n")
    for size in arguments.ranks:
        for kind in KINDS:
            print(row(size, kind, steps[size], lambda count, size=size: tuple(alone[size][count][:2])))  # type: ignore[misc]


if __name__ == "__main__":
    main()
