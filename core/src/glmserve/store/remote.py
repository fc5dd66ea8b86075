"""The headers of a safetensors model on a hub, read by range requests: a few megabytes instead of its weights."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from glmserve.api import Checkpoint, CheckpointError, IntegrityError, SourceError, TensorInfo

from .download import TIMEOUT_S, Progress, Remote, check, content_range, persist
from .hub import remotes
from .safetensors_reader import INDEX, SINGLE, header_length, parse_header, parse_json, shards_of
from .sources import HubSource

if TYPE_CHECKING:
    import torch

DEADLINE_S = 60.0
"""For one request, from the first byte asked for to the last; a server that sends nothing is left after TIMEOUT_S."""
FIRST_BYTES = 1 << 17
"""Most headers are shorter, and cost one request."""
AT_ONCE = 8
"""Shards whose headers are read at the same time."""


class RemoteCheckpoint(Checkpoint):
    """Configuration and tensor headers of a model on a hub. Reading a tensor is an error."""

    format = "safetensors"

    def __init__(self, source: HubSource, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> None:
        self.path = Path(str(source))
        self.config = config
        self.tensors = tensors
        # The commit pins every byte.
        self.fingerprint = sha256(str(source).encode()).hexdigest()

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> torch.Tensor:
        raise CheckpointError(f"{self.path} is not here: only its headers were read; fetch it with `glmserve pull`.")

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return self.read(name)


def read_headers(source: HubSource, progress: Progress | None = None) -> RemoteCheckpoint:
    """Ask the hub for a model's configuration and headers. Nothing is written to disk.

    Raises SourceError when the hub cannot be reached or has no safetensors model there, IntegrityError for headers that
    are damaged and for files that are not those of the commit.
    """
    files = remotes(source, progress)
    if "config.json" not in files:
        raise SourceError(f"{source} has no config.json, so that its headers tell nothing; use another repository.")
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT_S) as client:
        config = parse_json(f"config.json of {source}", _whole(client, files["config.json"], source, "config.json"))
        index = None
        if SINGLE not in files and INDEX in files:
            index = shards_of(f"{INDEX} of {source}", parse_json(INDEX, _whole(client, files[INDEX], source, INDEX)))
        shards = [_single(files, source)] if index is None else sorted(set(index.values()))
        lacking = [shard for shard in shards if shard not in files]
        if lacking:
            raise SourceError(f"{source} lacks {len(lacking)} shard(s), first {lacking[0]}; use another repository.")
        tensors: dict[str, TensorInfo] = {}
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            headers = pool.map(lambda shard: _header(client, files[shard], source, shard), shards)
            for done, (shard, infos) in enumerate(zip(shards, headers, strict=True), 1):
                if progress is not None:
                    progress(f"headers of {source.repo}", done, len(shards))
                for info in infos:
                    if index is None or index.get(info.name) == shard:
                        tensors[info.name] = info
        finally:
            pool.shutdown(cancel_futures=True)
    absent = sorted((index or {}).keys() - tensors.keys())
    if absent:
        raise IntegrityError(f"The index of {source} names {absent[0]!r}, which its shard does not hold.")
    return RemoteCheckpoint(source, config, tensors)


def _single(files: Mapping[str, Remote], source: HubSource) -> str:
    found = sorted(name for name in files if name.endswith(".safetensors") and "/" not in name)
    if SINGLE in found or len(found) == 1:
        return SINGLE if SINGLE in found else found[0]
    what = f"{len(found)} safetensors files and no {INDEX}" if found else "no safetensors file"
    raise SourceError(f"{source} holds {what}, so that its headers cannot be read; fetch it with `glmserve pull`.")


def _header(client: httpx.Client, remote: Remote, source: HubSource, name: str) -> list[TensorInfo]:
    where = f"{name} of {source}"
    start, size = _range(client, remote, where, 0, FIRST_BYTES)
    length = header_length(where, start[:8], size)
    rest = b""
    if 8 + length > len(start):
        rest, _ = _range(client, remote, where, len(start), 8 + length - len(start))
    return parse_header(where, (start + rest)[8 : 8 + length], size)


def _whole(client: httpx.Client, remote: Remote, source: HubSource, name: str) -> bytes:
    """A small file, checked against its digest."""
    content, size = _range(client, remote, f"{name} of {source}", 0, FIRST_BYTES)
    if size > len(content):
        content += _range(client, remote, f"{name} of {source}", len(content), size - len(content))[0]
    if not remote.is_content(content):
        raise IntegrityError(f"{name} of {source} does not have the digest that the hub gives for it; try again.")
    return content


def _range(client: httpx.Client, remote: Remote, where: str, first: int, count: int) -> tuple[bytes, int]:
    """At most `count` bytes from `first` on, fewer only at the end of the file; and the file's size."""

    def ask() -> tuple[bytes, int]:
        ends_s = time.monotonic() + DEADLINE_S
        asked = {"Accept-Encoding": "identity", "Range": f"bytes={first}-{first + count - 1}", **remote.headers}
        with client.stream("GET", remote.url, headers=asked) as response:
            check(response)
            start, size = _extent(response, remote)
            if start not in (0, first):
                raise httpx.RemoteProtocolError("it sent another range than asked", request=response.request)
            # A server without ranges sends the file from its beginning: what is wanted is read, and the rest is not.
            stop = min(first + count, size) - start
            got = bytearray()
            for piece in response.iter_bytes():
                got += piece
                if len(got) >= stop:
                    break
                if time.monotonic() > ends_s:
                    raise httpx.ReadTimeout(f"no answer within {DEADLINE_S:.0f} s", request=response.request)
            if len(got) < stop:
                raise httpx.RemoteProtocolError(f"it ended after {len(got)} bytes", request=response.request)
        return bytes(got[first - start : stop]), size

    content, size = persist(where, ask)
    if remote.size is not None and size != remote.size:
        raise IntegrityError(f"{where} has {size} bytes on the server, and {remote.size} by the hub's list; try again.")
    return content, size


def _extent(response: httpx.Response, remote: Remote) -> tuple[int, int]:
    """(first byte that follows, bytes of the whole file)."""
    if response.status_code == 206:
        first, total = content_range(response)
        size = remote.size if total is None else total
    else:
        length = response.headers.get("Content-Length", "")
        first, size = 0, int(length) if length.isdigit() else remote.size
    if first is None or size is None:
        raise httpx.RemoteProtocolError("it does not say which bytes it sends", request=response.request)
    return first, size
