"""What a decoded token costs up to a million tokens of context, on rank processes that keep the cache between them.

Tiny GLM decodes one token over pages that hold random entries: nobody waits for a prefill of a million tokens. The
ranks are processes of this machine with one thread each, connected by transport `local`, and each plants its own pages
before it follows. Steps at the different lengths take turns, the rank counts take turns in several passes, and the
tables hold medians.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil
import torch
from context_cost import Clock
from glmserve.api import GlmserveError, Link, Parallel, Topology
from glmserve.cluster.child import inherit
from glmserve.cluster.local import LocalTransport
from glmserve.cluster.mesh import Mesh
from glmserve.engine.follower import follow
from glmserve.engine.kv import PageMemory
from glmserve.engine.plan import Rows, StepPlan
from glmserve.engine.ranks import Ranks
from glmserve.engine.worker import Worker, encode
from glmserve.models.dense import Dense
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.store.checkpoint import open_checkpoint
from glmserve_model_tiny_glm import CHECKPOINT
from log_plot import svg

LENGTHS = (4096, 16_384, 65_536, 262_144, 1_048_576)
RANKS = (1, 2, 4)
PASSES, STEPS = 3, 10
WARM_STEPS = 2
PAGE_TOKENS = 64
TOKEN = 5
"""Any: the costs of a step do not depend on it."""
FOLLOWER, LEAD = "--follower", "--lead"


@dataclass(frozen=True)
class Task:
    """What all ranks are told."""

    ranks: int
    lengths: Sequence[int]
    kv_dtype: str
    steps: int


@dataclass(frozen=True)
class Step:
    """Times in ms."""

    passed: float
    exchanges: float
    """Of it, in exchanges: mostly waiting for ranks that share the cores."""
    processor: float
    """Of rank 0's thread, and of that in the indexers and in the rest of the attentions."""
    indexer: float
    attention: float
    count: int
    """Exchanges."""
    sent_bytes: int
    """In them, by rank 0."""


@dataclass(frozen=True)
class Memory:
    """In bytes, of the rank that has most of each."""

    latents: int
    keys: int
    resident: int


def new_worker(link: Link, task: Task) -> Worker:
    """A rank's part of Tiny GLM, its positions dealt out over all ranks, and pages that nothing was written to yet."""
    checkpoint, family = open_checkpoint(CHECKPOINT), GlmMoeDsa()
    parallel = Parallel(link.group, link.world_size)
    model = family.load(checkpoint, Dense(), family.describe(checkpoint.config, task.kv_dtype), parallel)
    pages = -(-max(task.lengths) // PAGE_TOKENS)
    return Worker(model, PageMemory(model.info, pages, PAGE_TOKENS, parallel.share), None, link.group)


def plant(worker: Worker, first: int, tokens: int) -> int:
    """Fill the pages of the positions from `first` on with entries of the size of real ones. Returns resident bytes."""
    generator = torch.Generator().manual_seed(worker.group.rank * 100 + 1)
    for name, pool in worker.memory.tensors.items():
        part = pool[first // PAGE_TOKENS : -(-tokens // PAGE_TOKENS)]
        for page in part.split(256):
            values = torch.randn(page.shape, generator=generator)
            page.copy_(values.abs() / 448 if name.endswith("_scale") else values)
    return int(psutil.Process().memory_info().rss)


def planted(worker: Worker, task: Task) -> list[int]:
    return [plant(worker, before, tokens) for before, tokens in zip((0, *task.lengths), task.lengths, strict=False)]


def other_rank() -> None:
    """The program of ranks other than 0."""
    inherited = inherit()
    link = LocalTransport().open(inherited.topology, inherited.rank)
    try:
        worker = new_worker(link, task := Task(**json.loads(link.receive(starting=True))))
        link.report(encode(planted(worker, task)))
        follow(worker, link)
    except GlmserveError as error:
        print(error, file=sys.stderr)
    finally:
        link.close()


class Transport(LocalTransport):
    argv = (sys.executable, __file__, FOLLOWER)


class Lead:
    """Rank 0."""

    def __init__(self, task: Task) -> None:
        self.link = Transport().open(Topology(("localhost",) * task.ranks), 0)
        self.link.publish(encode(asdict(task)))
        self.worker = worker = new_worker(self.link, task)
        self.attentions, self.indexers = [], []
        for layer in worker.model.layers:
            if layer.attention.indexer is not None:
                self.indexers.append(Clock(layer.attention.indexer.select))
                layer.attention.indexer.select = self.indexers[-1]
            self.attentions.append(Clock(layer.attention))
            layer.attention = self.attentions[-1]
        own = planted(worker, task)
        resident = zip(own, *map(json.loads, self.link.collect(starting=True)), strict=True)
        self.memory = {
            tokens: Memory(self._cache(tokens, "latent"), self._cache(tokens, "index"), max(each))
            for tokens, each in zip(task.lengths, resident, strict=True)
        }
        self.ranks = Ranks(worker, self.link)
        self._told: set[int] = set()

    def _cache(self, tokens: int, kind: str) -> int:
        memory = self.worker.memory
        pools = [pool for name, pool in memory.tensors.items() if (kind == "index") == ("index" in name)]
        return sum(pool[0].nbytes for pool in pools) * -(-tokens // PAGE_TOKENS)

    def _exchanges(self) -> tuple[int, float, int]:
        """So far: how many, the seconds that passed in them, the bytes sent."""
        group = self.link.group
        if not isinstance(group, Mesh):
            return 0, 0.0, 0
        return group.exchanges, sum(group.seconds.values()), sum(group.sent_bytes.values())

    def step(self, tokens: int) -> Step:
        """Decode the last position of the sequence of that length, whose pages the ranks are told of once."""
        count = -(-tokens // PAGE_TOKENS)
        first, pages = (count, ()) if tokens in self._told else (0, tuple(range(count)))
        self._told.add(tokens)
        rows = Rows(tokens, tokens - 1, (TOKEN,), first, pages, 1, chunk=False)
        for clock in (*self.attentions, *self.indexers):
            clock.spent = 0.0
        before = self._exchanges()
        begin, processor = time.monotonic(), time.thread_time()
        (result,) = self.ranks.execute(StepPlan(0, (rows,)))
        passed, processor = time.monotonic() - begin, time.thread_time() - processor
        if not result.logits.isfinite().all():
            raise SystemExit(f"The logits at {tokens} tokens are not finite.")
        count, waited, sent = (after - before for before, after in zip(before, self._exchanges(), strict=True))
        indexer, attention = (sum(clock.spent for clock in clocks) for clocks in (self.indexers, self.attentions))
        times = (passed, waited, processor, indexer, attention - indexer)
        return Step(*(1e3 * seconds for seconds in times), int(count), int(sent))


def lead() -> None:
    """The program of rank 0, which starts the others: a task comes in, and steps and memory by length go out."""
    task = Task(**json.load(sys.stdin))
    leading = Lead(task)
    try:
        rounds = [[leading.step(tokens) for tokens in task.lengths] for _ in range(WARM_STEPS + task.steps)]
    finally:
        leading.ranks.close()
    found = zip(task.lengths, *rounds[WARM_STEPS:], strict=True)
    print(encode([[asdict(leading.memory[tokens]), *map(asdict, each)] for tokens, *each in found]).decode())


@dataclass(frozen=True)
class Cost:
    """Of steps at one length on so many ranks: medians, and the memory."""

    ranks: int
    tokens: int
    step: Step
    memory: Memory


def measure(sizes: Sequence[int], lengths: Sequence[int], kv_dtype: str, passes: int, steps: int) -> list[Cost]:
    found: dict[tuple[int, int], list[dict[str, float]]] = {}
    memory: dict[tuple[int, int], Memory] = {}
    for _ in range(passes):
        for size in sizes:
            task = Task(size, lengths, kv_dtype, steps)
            # A process of its own, whose memory is that of this task alone.
            argv = [sys.executable, __file__, LEAD]
            done = subprocess.run(argv, input=encode(asdict(task)), stdout=subprocess.PIPE, check=True)
            for tokens, (held, *each) in zip(lengths, json.loads(done.stdout), strict=True):
                found.setdefault((size, tokens), []).extend(each)
                memory[size, tokens] = Memory(**held)
    return [
        Cost(*key, Step(**{name: median(step[name] for step in each) for name in each[0]}), memory[key])
        for key, each in found.items()
    ]


def table(costs: Sequence[Cost]) -> str:
    """In Markdown."""
    columns = ("ranks", "context", "step (ms)", "in exchanges", "processor", "indexer", "attention", "rest")
    columns += ("latents (MiB)", "index keys (MiB)", "resident (MiB)")
    lines = ["| " + " | ".join(columns) + " |", "|---:" * len(columns) + "|"]
    for cost in costs:
        step, memory = cost.step, cost.memory
        rest = step.processor - step.indexer - step.attention
        times = (step.passed, step.exchanges, step.processor, step.indexer, step.attention, rest)
        sizes = (nbytes / (1 << 20) for nbytes in (memory.latents, memory.keys, memory.resident))
        cells = [f"{cell:.1f}" for cell in (*times, *sizes)]
        lines.append(f"| {cost.ranks} | {cost.tokens:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def exchanges(costs: Sequence[Cost]) -> str:
    """A line for each rank count: what a step exchanges, at the shortest and at the longest context."""
    lines = []
    for size in sorted({cost.ranks for cost in costs}):
        short, *_, long = [cost.step for cost in costs if cost.ranks == size] * 2
        each = [f"{step.count:g} exchanges, {step.sent_bytes / 1024:.1f} KiB sent" for step in (short, long)]
        lines.append(f"{size} ranks, shortest and longest context: {each[0]}; {each[1]}.")
    return "\n".join(lines)


def lines_of(costs: Sequence[Cost]) -> dict[str, list[tuple[float, float]]]:
    sizes = sorted({cost.ranks for cost in costs})
    found: dict[str, list[tuple[float, float]]] = {}
    for size in sizes:
        name = f"{size} rank" + "s" * (size > 1)
        found[name] = [(cost.tokens, cost.step.passed) for cost in costs if cost.ranks == size]
    for size in {sizes[0], sizes[-1]}:
        found[f"indexer of {size}"] = [(cost.tokens, cost.step.indexer) for cost in costs if cost.ranks == size]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="rank counts, each in turn")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of context, ascending")
    parser.add_argument("--kv-dtype", default="float32", help="type of the cache")
    parser.add_argument("--passes", type=int, default=PASSES, help="how often each rank count is started")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps at each length and pass")
    parser.add_argument("--svg", type=Path, help="file for a plot")
    arguments = parser.parse_args()
    sizes, lengths = sorted(arguments.ranks), sorted(arguments.lengths)
    costs = measure(sizes, lengths, arguments.kv_dtype, arguments.passes, arguments.steps)
    print(table(costs))
    print()
    print(exchanges(costs))
    if arguments.svg:
        title = "Decode step of Tiny GLM on rank processes"
        arguments.svg.write_text(svg(lines_of(costs), title, "tokens of context", "ms"), "utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {(FOLLOWER,): other_rank, (LEAD,): lead}.get(tuple(sys.argv[1:]), main)()
