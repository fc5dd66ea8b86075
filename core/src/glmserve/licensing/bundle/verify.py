"""Checking a bundle: every byte of the archive, every file against the index, every paper, and the sweep once more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glmserve.api.errors import GlmserveError, IntegrityError

from ..content.walk import walk
from ..expressions import MalformedExpression, licenses, parse
from ..report import Finding, Reason, Verdict
from ..texts import digest
from .archive import Progress
from .archive_reader import Entry, content, read_archive
from .index import FILE_NAME, MAX_INDEX_BYTES, BundleIndex, parse_index
from .make import COMPONENTS, LICENSES, STUBS
from .restricted import MIN_BYTES
from .stub import MAX_STUB_BYTES, FetchStub, read_stub, stub_path
from .sweep import stray_weights

MAX_SBOM_BYTES = 256 << 20
MAX_TEXT_BYTES = 1 << 20
_PAPERS = ("NOTICE", "THIRD_PARTY_NOTICES.md", "sbom.cdx.json", "sbom.spdx.json")
_SHAREABLE = (Verdict.ALLOW.slug, Verdict.CONDITIONS.slug)


def verify_bundle(path: Path, progress: Progress | None = None) -> tuple[Finding, ...]:
    """All that is wrong with a bundle; empty for one that is as it was made.

    Raises ConfigError when there is no such file.
    """
    try:
        entries = {entry.path: entry for entry in read_archive(path, progress)}
        if FILE_NAME not in entries:
            return (_missing(FILE_NAME),)
        index = parse_index(content(path, entries[FILE_NAME], MAX_INDEX_BYTES), FILE_NAME)
    except IntegrityError as error:
        return (_changed(str(error).rstrip(".")),)
    findings = list(_files(index, entries))
    if not findings:
        # What follows reads the papers, and they are what they were.
        stubs = dict(_stubs(path, index, entries, findings))
        findings += _components(index, entries, stubs)
        findings += _boms(path, index, entries)
        findings += _content(path, index, entries, stubs)
    return tuple(findings)


def _changed(message: str) -> Finding:
    return Finding(Reason.HASH_MISMATCH, Verdict.DENY, message)


def _missing(path: str) -> Finding:
    return Finding(Reason.FILE_MISSING, Verdict.DENY, f"{path} is not there")


def _files(index: BundleIndex, entries: Mapping[str, Entry]) -> Iterator[Finding]:
    listed = {file.path: file for file in index.files}
    for file in index.files:
        entry = entries.get(file.path)
        if entry is None:
            yield _missing(file.path)
        elif (entry.sha256, entry.size, entry.executable) != (file.sha256, file.size, file.executable):
            yield _changed(f"{file.path} is not the file that the index lists")
    for path in sorted(entries.keys() - listed.keys() - {FILE_NAME}):
        yield Finding(Reason.UNOWNED_FILE, Verdict.DENY, f"{path} is not in the index")
    if [*listed] != sorted(listed) or len(listed) != len(index.files):
        yield _changed("the files in the index are out of order or there twice")
    for paper in _PAPERS:
        if paper not in listed:
            yield _missing(paper)


def _stubs(
    path: Path, index: BundleIndex, entries: Mapping[str, Entry], findings: list[Finding]
) -> Iterator[tuple[str, FetchStub]]:
    """Component id -> its stub; what is wrong with them goes to `findings`."""
    wanted = {stub_path(component.id): component for component in index.components if not component.included}
    findings += [_missing(name) for name in sorted(wanted.keys() - entries.keys())]
    for name, entry in entries.items():
        if not name.startswith(f"{STUBS}/"):
            continue
        try:
            stub = read_stub(content(path, entry, MAX_STUB_BYTES), name)
        except IntegrityError as error:
            findings.append(_changed(str(error).rstrip(".")))
            continue
        component = wanted.get(name)
        if component is None or (stub.id, stub.kind, stub.license.expression) != (
            component.id,
            component.kind,
            component.declared,
        ):
            findings.append(_changed(f"{name} is no stub of a component that the index leaves out"))
        else:
            yield stub.id, stub


def _components(index: BundleIndex, entries: Mapping[str, Entry], stubs: Mapping[str, FetchStub]) -> Iterator[Finding]:
    included = {component.id for component in index.components if component.included}
    for file in index.files:
        parts = file.path.split("/")
        owner = parts[1] if parts[0] == COMPONENTS and len(parts) > 2 else None
        if owner != file.component or (owner is not None and owner not in included):
            message = f"{file.path} does not lie where the files of its component do"
            yield Finding(Reason.UNOWNED_FILE, Verdict.DENY, message)
    if len({component.id for component in index.components}) != len(index.components):
        yield _changed("a component is in the index twice")
    if index.mode == "strict" and stubs:
        yield _changed("a strict bundle has stubs")
    for component in index.components:
        if component.included and component.verdict not in _SHAREABLE:
            message = f"{component.id} is included, though the verdict on it is {component.verdict}"
            yield Finding(Reason.RESTRICTED_CONTENT, Verdict.DENY, message)
        if component.included:
            yield from _texts(component.id, component.concluded, entries)


def _texts(component: str, concluded: str, entries: Mapping[str, Entry]) -> Iterator[Finding]:
    there = {path.casefold() for path in entries}
    try:
        leaves = list(licenses(parse(concluded)))
    except MalformedExpression:
        message = f"the licence of {component} is no SPDX expression"
        yield Finding(Reason.MALFORMED_EXPRESSION, Verdict.UNKNOWN, message)
        return
    for leaf in leaves:
        if f"{LICENSES}/{leaf.id}.txt".casefold() not in there:
            message = f"the text of {leaf.id}, the licence of {component}, is not there"
            yield Finding(Reason.TEXT_MISSING, Verdict.DENY, message)


def _boms(path: Path, index: BundleIndex, entries: Mapping[str, Entry]) -> Iterator[Finding]:
    """Both documents are what they say, and speak of every component."""
    for name, key, value, listed in (
        ("sbom.cdx.json", "bomFormat", "CycloneDX", "components"),
        ("sbom.spdx.json", "spdxVersion", "SPDX-2.3", "packages"),
    ):
        try:
            document = json.loads(content(path, entries[name], MAX_SBOM_BYTES), object_pairs_hook=_distinct)
            parts = document[listed]
            good = document[key] == value and isinstance(parts, list) and len(parts) >= len(index.components)
        except (ValueError, TypeError, KeyError, RecursionError, IntegrityError):
            good = False
        if not good:
            yield _changed(f"{name} is no {value} document about the components of this bundle")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) != len(pairs):
        raise ValueError("a key is there twice")
    return items


def _content(
    path: Path, index: BundleIndex, entries: Mapping[str, Entry], stubs: Mapping[str, FetchStub]
) -> Iterator[Finding]:
    """The sweep, as far as it goes without the restricted files: by the digests in the stubs, and for stray weights."""
    digests = {
        file.sha256: f"{stub.id}: {file.path}"
        for stub in stubs.values()
        for file in (stub.files if stub.reason is not None else ())
        if file.size >= MIN_BYTES
    }
    kinds = {component.id: component.kind for component in index.components}
    owners = {file.path: file.component for file in index.files}
    try:
        for item in walk(path):
            where = " > ".join(item.names[1:])
            if (owner := digests.get(item.sha256)) and not _is_text(path, entries.get(where), stubs):
                message = f"{where} is a file of a restricted component, {owner}"
                yield Finding(Reason.RESTRICTED_CONTENT, Verdict.DENY, message)
            component = owners.get(item.names[1]) if len(item.names) > 1 else None
            if component is not None:
                yield from stray_weights(where, item, kinds[component])
    except OSError as error:
        raise GlmserveError(f"{path} cannot be read: {error.strerror or error}.") from None


def _is_text(path: Path, entry: Entry | None, stubs: Mapping[str, FetchStub]) -> bool:
    """Whether the file is the text of a stub's licence, which has to travel: the publisher's copy can be the same."""
    if entry is None or not entry.path.startswith(f"{LICENSES}/") or entry.size > MAX_TEXT_BYTES:
        return False
    found = digest(content(path, entry, MAX_TEXT_BYTES))
    return any(found == text.sha256 for stub in stubs.values() for text in stub.license.texts)
