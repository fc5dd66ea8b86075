"""The content sweep: nothing of a restricted component travels, under whatever name and in whatever archive.

Five nets, from proof to suspicion: the digest of a file; a piece of 64 bytes of weights that lie on this machine; the
record of origin beside a derived file; names and shapes of tensors; and weights of any kind in a component that should
hold none. What cannot be looked into is refused. The limits: a file that was changed throughout, renamed inside its
header and left without its record of origin passes as weights of the component it claims to be.
"""

from __future__ import annotations

import base64
import hashlib
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from glmserve.api.errors import ConfigError
from glmserve.api.provenance import FILE_NAME, read_origin

from ..content.magic import GENERAL
from ..content.walk import Item, walk
from ..report import Component, Finding, Reason, Verdict
from .archive import Member, path_fault
from .restricted import MAX_HEADER_BYTES, MIN_BYTES, Restricted, Tensor, parse_tensors
from .windows import Search

HOLD_WEIGHTS = frozenset({"weights", "drafter", "cache", "dataset", "image-base"})
"""Kinds of components in which weights are no surprise."""
ARRAYS_BYTES = 1 << 20
"""Arrays and pickles below this size are what tests and tables consist of."""
TEXT_BYTES = 64 << 20
"""Larger files are not searched for weights that are spelt as base64."""
_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{60,}[\s\"']*)+[A-Za-z0-9+/]*={0,2}")


def stray_weights(where: str, item: Item, kind: str) -> Iterator[Finding]:
    """Weights in a component of a `kind` that should hold none."""
    if item.kind is None or kind in HOLD_WEIGHTS or (item.kind in GENERAL and item.size < ARRAYS_BYTES):
        return
    message = f"holds {item.kind} weights, but its component is {kind}; declare them as a component of their own"
    yield _finding(Reason.WEIGHTS_IN_WHEEL, where, message, verdict=Verdict.UNKNOWN)


class Sweep:
    """Looks at what is about to be packed."""

    def __init__(self, restricted: Restricted, known: Mapping[str, Component]) -> None:
        """`known`: every component of the report by its id."""
        self._restricted = restricted
        self._known = known
        self._origins: dict[Path, frozenset[str] | str] = {}

    def file(self, path: str, source: Path, component: Component, levels: int) -> tuple[Member | None, list[Finding]]:
        """Look at a file of a component and everything in it.

        `path` is where it is packed; `levels` is how many directories above it belong to the component. The member is
        None when the file could not be read whole.
        """
        if fault := path_fault(path):
            return None, [_finding(Reason.UNOWNED_FILE, path, f"cannot be packed, because its name {fault}")]
        watchers: dict[tuple[str, ...], _Watcher] = {}

        def observe(names: tuple[str, ...]) -> Callable[[bytes], None]:
            watchers[names] = _Watcher(self._restricted)
            return watchers[names].feed

        findings = list(self._inherited(path, source, component, levels))
        member = None
        try:
            executable = bool(source.stat().st_mode & stat.S_IXUSR)
            for item in walk(source, observe):
                where = " > ".join((path, *item.names[1:]))
                watcher = watchers.pop(item.names, None)
                findings += self._item(where, item, watcher, component)
                if len(item.names) == 1 and item.sha256:
                    member = Member(path, source, item.size, item.sha256, executable)
        except OSError as error:
            findings.append(_finding(Reason.UNOWNED_FILE, path, f"cannot be read ({error.strerror or error})"))
        return member, findings

    def text(self, path: str, data: bytes) -> list[Finding]:
        """Look at a file that is written for the bundle."""
        watcher = _Watcher(self._restricted)
        watcher.feed(data)
        return list(watcher.findings(path, hashlib.sha256(data).hexdigest(), len(data)))

    def _item(self, where: str, item: Item, watcher: _Watcher | None, component: Component) -> Iterator[Finding]:
        if item.problem:
            yield _finding(Reason.UNOWNED_FILE, where, f"cannot be vouched for: {item.problem}")
            return
        if len(item.names) > 1 and PurePosixPath(item.names[-1]).name == FILE_NAME:
            yield _finding(Reason.ANCESTOR_UNRESOLVED, where, "is a record of origin inside an archive; unpack it")
        found = list(watcher.findings(where, item.sha256, item.size)) if watcher is not None else []
        yield from found or stray_weights(where, item, component.manifest.kind)

    def _inherited(self, path: str, source: Path, component: Component, levels: int) -> Iterator[Finding]:
        above = list(source.parents)
        if component.root is not None and (root := component.root.resolve()) in above:
            levels = above.index(root)
        for directory in above[: levels + 1]:
            if directory not in self._origins:
                try:
                    origin = read_origin(directory)
                    sources = () if origin is None else origin.derived_from
                    self._origins[directory] = frozenset(s.id for s in sources if s.relation != "distill")
                except ConfigError as error:
                    self._origins[directory] = str(error)
            ids = self._origins[directory]
            if isinstance(ids, str):
                yield _finding(Reason.ANCESTOR_UNRESOLVED, path, f"has a record of origin that cannot be read: {ids}")
                continue
            for id in sorted(ids & self._restricted.ids):
                yield _finding(Reason.RESTRICTED_CONTENT, path, f"is made from {id}, as the record of origin says")
            for id in sorted(ids - self._restricted.ids - self._lineage(component)):
                yield _finding(
                    Reason.ANCESTOR_UNRESOLVED,
                    path,
                    f"is made from {id}, as the record of origin says, which the manifest of {component.id} does not "
                    "name; add it under [[derived_from]]",
                    verdict=Verdict.UNKNOWN,
                )

    def _lineage(self, component: Component) -> frozenset[str]:
        """A component and all that its manifest says it is made from, near and far."""
        found: set[str] = set()
        waiting = [component.id]
        while waiting:
            id = waiting.pop()
            if id not in found:
                found.add(id)
                manifest = (
                    component.manifest
                    if id == component.id
                    else self._known[id].manifest
                    if id in self._known
                    else None
                )
                waiting += [ancestor.id for ancestor in manifest.derived_from] if manifest else []
        return frozenset(found)


class _Watcher:
    """Watches the bytes of one file, packed in others or not, go by."""

    def __init__(self, restricted: Restricted) -> None:
        self._restricted = restricted
        self._search = Search(restricted.windows)
        self._size = 0
        self._head = bytearray()
        """The header of a safetensors file, as far as it has come; empty when it is none."""
        self._heading = bool(restricted.tensors)
        self._text: list[bytes] | None = []
        """All of it, while it is short and could be text; None otherwise."""

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        self._search.feed(chunk)
        if self._text is not None:
            self._text = [*self._text, chunk] if self._size <= TEXT_BYTES and b"\0" not in chunk else None
        if self._heading:
            self._head += chunk
            length = int.from_bytes(self._head[:8], "little")
            if len(self._head) > 8 and (self._head[8:9] != b"{" or length > MAX_HEADER_BYTES):
                self._heading, self._head = False, bytearray()
            elif len(self._head) >= 8 + length:
                self._heading, self._head = False, self._head[: 8 + length]

    def findings(self, where: str, sha256: str, size: int) -> Iterator[Finding]:
        """What it is found to be; the surest finding alone."""
        if size >= MIN_BYTES and (owner := self._restricted.digests.get(sha256)):
            yield _finding(Reason.RESTRICTED_CONTENT, where, f"is a file of a restricted component, {owner}")
        elif self._search.found:
            yield _finding(Reason.RESTRICTED_CONTENT, where, f"holds bytes of the weights of {self._search.found}")
        elif id := self._restricted.resembling(self._tensors()):
            yield _finding(
                Reason.RESTRICTED_CONTENT,
                where,
                f"is likely a copy of {id}: its tensors have the same names and shapes",
            )
        else:
            yield from self._encoded(where)

    def _tensors(self) -> frozenset[Tensor]:
        return parse_tensors(bytes(self._head[8:])) if self._head else frozenset()

    def _encoded(self, where: str) -> Iterator[Finding]:
        for run in _BASE64.findall(b"".join(self._text or ())) if self._restricted.digests else ():
            symbols = re.sub(rb"[^A-Za-z0-9+/]", b"", run)
            # One symbol alone after the last four spells nothing.
            symbols = symbols[: len(symbols) - (len(symbols) % 4 == 1)]
            content = base64.b64decode(symbols + b"=" * (-len(symbols) % 4))
            owner = self._restricted.digests.get(hashlib.sha256(content).hexdigest())
            if owner or (owner := self._restricted.windows.find(content)):
                yield _finding(Reason.RESTRICTED_CONTENT, where, f"spells in base64 what is restricted, {owner}")
                return


def _finding(code: Reason, where: str, message: str, verdict: Verdict = Verdict.DENY) -> Finding:
    return Finding(code, verdict, f"{where} {message}")
