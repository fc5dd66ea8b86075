"""What a rank other than 0 does, from loading its part to leaving."""

from __future__ import annotations

from contextlib import suppress

from glmserve.api import Link, UnavailableError

from .worker import LEAVE, Worker, encode


def follow(worker: Worker, link: Link) -> None:
    """Do what rank 0 says until it says to leave. Raises UnavailableError when the group comes apart."""
    while worker.perform(link.receive()) != LEAVE:
        link.report(encode(worker.report()))
    with suppress(UnavailableError):
        link.report(encode(worker.report()))
        link.receive()  # rank 0 ends the link, once all have answered
