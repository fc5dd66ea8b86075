"""What gives the files of restricted components away: digests, names and shapes of tensors, and pieces of weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ..content.magic import HEAD_BYTES, sniff
from ..report import Component
from .archive import Progress, open_regular
from .windows import Windows

MIN_BYTES = 64
"""Shorter files are alike by chance."""
MAX_READ_BYTES = 8 << 30
"""Per component: how much of what lies on this machine is read. Beyond that, the manifest's digests and the names of
tensors have to do."""
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""
_ANYWHERE = frozenset({".gitattributes", ".gitignore"})
"""Files that every repository of a publisher has, word for word."""
_PAPERS = frozenset({"LICENSE", "LICENCE", "COPYING", "NOTICE"})

Tensor = tuple[str, tuple[int, ...]]
"""Name and shape."""


@dataclass(frozen=True)
class Restricted:
    """The traits of all restricted components."""

    ids: frozenset[str]
    digests: dict[str, str] = field(default_factory=dict)
    """sha256 of a file -> "ID: PATH"."""
    tensors: dict[str, frozenset[Tensor]] = field(default_factory=dict)
    """Component id -> the tensors of its safetensors files."""
    windows: Windows = field(default_factory=lambda: Windows(0))

    def resembling(self, tensors: frozenset[Tensor]) -> str:
        """The id of a component whose tensors these are, or most of them; "" when there is none.

        Types are not compared: a copy that was saved again in another precision is still one.
        """
        for id, known in self.tensors.items():
            common = len(tensors & known)
            if common >= min(2, len(known)) and 2 * common >= len(tensors) > 0:
                return id
        return ""


def recognise(components: Sequence[Component], progress: Progress | None = None) -> Restricted:
    """Read what is known and what is here of components whose bytes must not leave.

    Licence texts and notices are no secret: they have to be passed on.
    """
    found = [(component, sorted(_files(component))) for component in components]
    total = sum(min(MAX_READ_BYTES, sum(path.stat().st_size for _, path in files)) for _, files in found)
    restricted = Restricted(frozenset(c.id for c in components), windows=Windows(total))
    for component, files in found:
        public = _public(component)
        for entry in component.manifest.files:
            if entry.size >= MIN_BYTES and not _is_public(entry.path, public):
                restricted.digests.setdefault(entry.sha256, f"{component.id}: {entry.path}")
        tensors: set[Tensor] = set()
        left = MAX_READ_BYTES
        for name, path in files:
            if not _is_public(name, public):
                with open_regular(path) as file:
                    tensors |= tensors_of(file)
                    file.seek(0)
                    left -= _read(file, component.id, name, left, restricted, progress)
        if tensors:
            restricted.tensors[component.id] = frozenset(tensors)
    return restricted


def tensors_of(file: BinaryIO) -> frozenset[Tensor]:
    """Names and shapes in the header of a safetensors file; empty for any other file, and for a damaged header."""
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
        return frozenset()
    start = file.read(1)
    return parse_tensors(start + _exactly(file, length - 1)) if start == b"{" else frozenset()


def parse_tensors(header: bytes) -> frozenset[Tensor]:
    """Names and shapes of a safetensors header, which is JSON. Empty for anything else."""
    try:
        value = json.loads(header)
        return frozenset(
            (name, tuple(int(extent) for extent in entry["shape"]))
            for name, entry in value.items()
            if name != "__metadata__"
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return frozenset()


def _files(component: Component) -> Iterator[tuple[str, Path]]:
    """What lies on this machine of a component: the path in the component, and the file."""
    if component.root is None:
        return
    if component.manifest.files:
        # Only what the manifest names: its root may be shared, as the directory of a Python package is.
        for entry in component.manifest.files:
            if (path := component.root / entry.path).is_file():
                yield entry.path, path
        return
    if component.root.is_file():
        yield component.root.name, component.root
    for directory, _, names in os.walk(component.root):
        for name in names:
            if (path := Path(directory, name)).is_file():
                yield path.relative_to(component.root).as_posix(), path


def _public(component: Component) -> frozenset[str]:
    manifest = component.manifest
    return frozenset(
        [
            *(t.path for t in manifest.license.texts),
            *manifest.attribution.notice_files,
            *(t.path for t in component.texts),
        ]
    )


def _is_public(path: str, public: frozenset[str]) -> bool:
    name = PurePosixPath(path).name
    return path in public or name in _ANYWHERE or PurePosixPath(name).stem.upper() in _PAPERS


def _read(
    file: BinaryIO, owner: str, name: str, limit_bytes: int, restricted: Restricted, progress: Progress | None
) -> int:
    """Add the digest and the pieces of one file; return how much was read."""
    size = os.fstat(file.fileno()).st_size
    # A part of a file has pieces, but no digest.
    digest = hashlib.sha256() if MIN_BYTES <= size <= limit_bytes else None
    done = 0

    def seen(chunk: bytes) -> None:
        nonlocal done
        done += len(chunk)
        if digest is not None:
            digest.update(chunk)
        if progress is not None:
            progress(f"reading {owner}", done, min(size, limit_bytes))

    head = file.read(HEAD_BYTES)
    file.seek(0)
    if sniff(head, size) is not None or not _is_text(head):
        read = restricted.windows.add(file, owner, limit_bytes, seen)
    else:
        read = _drain(file, limit_bytes, seen)
    if digest is not None:
        restricted.digests.setdefault(digest.hexdigest(), f"{owner}: {name}")
    return read


def _is_text(head: bytes) -> bool:
    """Text of one family of models, such as a vocabulary, has long pieces in common with that of another."""
    return b"\0" not in head and b"\xff" not in head and len(head.decode("utf-8", "ignore").encode()) > len(head) - 4


def _drain(file: BinaryIO, limit_bytes: int, seen: Callable[[bytes], None]) -> int:
    done = 0
    while done < limit_bytes and (chunk := file.read(min(1 << 20, limit_bytes - done))):
        seen(chunk)
        done += len(chunk)
    return done


def _exactly(file: BinaryIO, count: int) -> bytes:
    parts = []
    while count and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
