"""What a sum over ranks costs at each size: by one exchange, by Gloo's all_reduce, and by slices over Gloo.

Ranks are processes of this machine, with one thread of torch each. Every round makes each sum once, one kind after the
other, so that whatever else the machine does meets all of them; the table holds the medians over rounds of rank 0.
Sums by one exchange and by slices must have the same bits, or the run fails.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from glmserve.api import Group
from glmserve.cluster.mesh import Mesh

RANKS = (2, 3, 4)
SIZES = (512, 12 << 10, 48 << 10, 192 << 10, 768 << 10, *(mib << 20 for mib in (2, 4, 8, 12, 16, 24, 32, 48, 96)))
"""Bytes. A row of 3,072 numbers is 12 KB."""
ROUNDS = 40
WARM_ROUNDS = 3
DEADLINE_S = 60.0
Sum = Callable[[torch.Tensor], torch.Tensor]


def kinds(mesh: Mesh) -> tuple[Sum, Sum, Sum]:
    """One exchange, Gloo's own all_reduce, slices over Gloo."""
    mesh.sum_slices("form", torch.ones(mesh.size))
    assert mesh._bulk is not None
    gloo = mesh._bulk._group

    def all_reduce(x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        gloo.allreduce([total]).wait()
        return total

    # Not Mesh.sum, which chooses.
    return lambda x: Group.sum(mesh, "sum", x), all_reduce, lambda x: mesh.sum_slices("sum", x)


def measure(mesh: Mesh, sizes: Sequence[int], rounds: int) -> list[list[float]]:
    """For each size the median seconds of each kind, at this rank."""
    torch.set_num_threads(1)
    sums = kinds(mesh)
    generator = torch.Generator().manual_seed(mesh.rank)
    terms = [torch.randn(size // 4, generator=generator) for size in sizes]
    spent: list[list[list[float]]] = [[[] for _ in sums] for _ in sizes]
    for number in range(WARM_ROUNDS + rounds):
        for term, of_size in zip(terms, spent, strict=True):
            totals = []
            for add, of_kind in zip(sums, of_size, strict=True):
                mesh.sum("start", torch.zeros(1))
                begin = time.perf_counter()
                totals.append(add(term))
                if number >= WARM_ROUNDS:
                    of_kind.append(time.perf_counter() - begin)
            if not torch.equal(totals[0], totals[2]):
                raise SystemExit("The sums differ.")
    return [[median(of_kind) for of_kind in of_size] for of_size in spent]


def on_ranks(size: int, sizes: Sequence[int], rounds: int) -> list[list[float]]:
    """What rank 0 measures with `size` - 1 others."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for a, b in itertools.combinations(range(size), 2):
        ends[a][b], ends[b][a] = socket.socketpair()
    file = os.memfd_create("store")
    store = f"/proc/{os.getpid()}/fd/{file}"
    others = []
    for rank in range(1, size):
        pid = os.fork()
        if not pid:
            measure(Mesh(rank, ends[rank], DEADLINE_S, store=store), sizes, rounds)
            os._exit(0)
        others.append(pid)
    try:
        return measure(Mesh(0, ends[0], DEADLINE_S, store=store), sizes, rounds)
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(file)


def table(size: int, sizes: Sequence[int], costs: Sequence[Sequence[float]]) -> list[str]:
    """Rows in Markdown."""
    rows = []
    for count, (exchange, all_reduce, bulk) in zip(sizes, costs, strict=True):
        name = f"{count} B" if count < 1 << 10 else f"{count >> 10} KB" if count < 1 << 20 else f"{count >> 20} MB"
        times = " | ".join(f"{1e3 * seconds:.3f}" for seconds in (exchange, all_reduce, bulk))
        rows.append(f"| {size} | {name} | {times} | {all_reduce / exchange:.1f} | {bulk / exchange:.2f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes of the tensor, a multiple of 4")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of all kinds and sizes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("ranks", "tensor", "one exchange (ms)", "all_reduce (ms)", "slices (ms)")
    print(
        "| " + " | ".join((*columns, "all_reduce / exchange", "slices / exchange")) + " |", "|---:" * 7 + "|", sep="\n"
    )
    for size in arguments.ranks:
        costs = on_ranks(size, arguments.sizes, arguments.rounds)
        print("\n".join(table(size, arguments.sizes, costs)), flush=True)


if __name__ == "__main__":
    main()
