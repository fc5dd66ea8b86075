"""A follower for tests: does what rank 0 tells it, without a model. Run as a program."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from glmserve.api import GlmserveError
from glmserve.cluster.child import inherit
from glmserve.cluster.local import LocalTransport
from glmserve.cluster.mesh import Mesh

if TYPE_CHECKING:
    from glmserve.api import Link


def sums(link: Link) -> None:
    import torch

    torch.set_num_threads(1)
    link.report(b"loaded")
    assert isinstance(link.group, Mesh)
    link.group.sum_slices("sum", torch.ones(3001))
    while True:
        link.group.sum("sum", torch.ones(3000))


def do(link: Link, command: str) -> None:
    if command == "pid":
        link.report(str(os.getpid()).encode())
    elif command.startswith("say "):
        os.write(1, command[4:].encode())
        link.report(b"said")
    elif command.startswith("exit ") and link.rank == 1:
        os._exit(int(command[5:]))
    elif command == "sums":
        sums(link)
    elif command == "nap":
        link.report(b"asleep")
        time.sleep(0.3)
    elif command == "sleep":
        time.sleep(600)
    elif command == "fail" and link.rank == 1:
        link.abandon("the disk is full")
    else:
        link.report(f"{link.rank}:{command}".encode())


def main() -> None:
    inheritance = inherit()
    link = LocalTransport().open(inheritance.topology, inheritance.rank)
    try:
        while (command := link.receive().decode()) != "leave":
            do(link, command)
        print("left")
    except GlmserveError as error:
        print(error, file=sys.stderr)
    finally:
        link.close()


if __name__ == "__main__":
    main()
