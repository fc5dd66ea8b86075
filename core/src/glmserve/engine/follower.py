"""What a rank other than 0 does, from loading its part to leaving."""

from __future__ import annotations

from glmserve.api import Link

from .worker import LEAVE, Worker, encode


def follow(worker: Worker, link: Link) -> None:
    """Do what rank 0 says until it says to leave. Raises UnavailableError when the group comes apart."""
    while worker.perform(link.receive()) != LEAVE:
        link.report(encode(worker.report()))
