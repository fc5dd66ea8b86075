"""From the components of a bundle to its files: each belongs to one component, is what is on record, and is swept."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmserve.api.provenance import FILE_NAME as ORIGIN_FILE

from ..evidence import CARD
from ..report import Component, Finding, Reason, Row, Use, Verdict
from .archive import Member, Progress
from .plan import refuse
from .sweep import Sweep

Found = list[tuple[Row | None, Finding]]
_CONTAINED = frozenset({"vendored", "snippet"})
"""Relations of a component to one that lies inside its files."""
_ABSENT = ("fetch it with `glmserve pull`", "name it under derived_from of the component that it lies in, as vendored")
_LEFT = frozenset({ORIGIN_FILE})
"""Files that nobody owns and that stay behind."""


@dataclass(frozen=True)
class PackedFile:
    """A file of a component."""

    source: Path
    """On this machine."""
    path: str
    """Relative to the component, with forward slashes; it is packed as components/ID/PATH."""


def pack(
    rows: Sequence[Row],
    contents: Mapping[str, Sequence[PackedFile]],
    trees: Iterable[Path],
    sweep: Sweep,
    top: str,
    use: Use,
    progress: Progress | None = None,
) -> tuple[list[Member], dict[str, str]]:
    """(members, path in the archive -> component id). Raises BundleRefused or BundleDamaged with all that is wrong."""
    members: list[Member] = []
    owners: dict[str, str] = {}
    sources: dict[Path, str] = {}
    refused: Found = []
    for done, row in enumerate(rows):
        component = row.component
        files = sorted(contents.get(component.id, ()), key=lambda file: file.path)
        if progress is not None:
            progress("looking through the components", done, len(rows))
        if not files and not _lies_in_another(component, rows):
            message = "none of its files is on this machine"
            refused.append((row, Finding(Reason.FILE_MISSING, Verdict.ACTION, message, remedies=_ABSENT)))
        packed: dict[str, Member] = {}
        for file in files:
            source, problem = _real(file, component)
            if source is None or file.path in packed:
                refused.append((row, _stray(f"{file.path} {problem or 'is there twice'}")))
                continue
            if (other := sources.setdefault(source, component.id)) != component.id:
                refused.append((row, _stray(f"{file.path} belongs to {other} too, and a file has one owner")))
            member, findings = sweep.file(f"{top}/{component.id}/{file.path}", source, component, file.path.count("/"))
            refused += [(row, finding) for finding in findings]
            if member is not None:
                packed[file.path] = member
                owners[member.path] = component.id
        refused += [(row, finding) for finding in _off_record(component, packed)]
        members += packed.values()
    refused += [(None, _stray(f"{path} {why}")) for tree in trees for path, why in _unowned(tree, sources)]
    refuse(use, refused)
    return members, owners


def _stray(message: str) -> Finding:
    return Finding(Reason.UNOWNED_FILE, Verdict.DENY, message)


def _lies_in_another(component: Component, rows: Sequence[Row]) -> bool:
    return any(
        ancestor.id == component.id and ancestor.relation in _CONTAINED
        for row in rows
        for ancestor in row.component.manifest.derived_from
    )


def _real(file: PackedFile, component: Component) -> tuple[Path | None, str]:
    """(the file behind links, "") or (None, why it cannot be packed, as a phrase)."""
    try:
        real = file.source.resolve(strict=True)
        root = component.root.resolve(strict=True) if component.root is not None else None
        within = component.root is not None and file.source.absolute().is_relative_to(component.root.absolute())
        if not stat.S_ISREG(real.lstat().st_mode):
            return None, "is no regular file"
    except (OSError, RuntimeError) as error:
        return None, f"cannot be read ({getattr(error, 'strerror', None) or 'its links run in a circle'})"
    if root is not None and within and not real.is_relative_to(root):
        return None, "is reached by a link that leaves the component"
    if not within and file.source.is_symlink():
        return None, "is a link"
    return real, ""


def _off_record(component: Component, packed: Mapping[str, Member]) -> Iterator[Finding]:
    """Where the files differ from those of the manifest, when it lists any."""
    manifest = component.manifest
    entries = {entry.path: entry for entry in manifest.files}
    if not entries or not packed:
        return
    papers = {*(text.path for text in manifest.license.texts), *(text.path for text in component.texts)}
    papers |= {*manifest.attribution.notice_files, CARD}
    for path, member in packed.items():
        entry = entries.get(path)
        if entry is None and path not in papers:
            yield _stray(f"{path} is not in its manifest")
        elif entry is not None and (entry.sha256, entry.size) != (member.sha256, member.size):
            message = f"{path} is not the file that its manifest pins; fetch it again"
            yield Finding(Reason.HASH_MISMATCH, Verdict.DENY, message)
    for path in sorted(entries.keys() - packed.keys()):
        yield Finding(Reason.FILE_MISSING, Verdict.DENY, f"{path} is in its manifest and not here; fetch it again")


def _unowned(tree: Path, sources: Mapping[Path, str]) -> Iterator[tuple[str, str]]:
    """(path, phrase) of everything below `tree` that no component owns, and of what is no file."""
    for directory, names, files in os.walk(tree):
        names.sort()
        for name in sorted([*files, *(n for n in names if Path(directory, n).is_symlink())]):
            path = Path(directory, name)
            where = path.relative_to(tree).as_posix()
            if name in _LEFT:
                continue
            if not path.is_file():
                yield where, "is no regular file; take it out of the tree"
            elif path.resolve() not in sources:
                yield where, "belongs to no component; take it out, or name it in a manifest"
