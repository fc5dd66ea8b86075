"""Bundles: one tar file with all that may be passed on, the notices that have to go along, and stubs for the rest.

Layout: components/ID/..., LICENSES/ID.txt, NOTICE, THIRD_PARTY_NOTICES.md, sbom.cdx.json, sbom.spdx.json,
stubs/ID.fetch.json, glmserve-bundle.json, and the files that the caller adds, such as profile.toml.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmserve.api.errors import ConfigError

from ..expressions import licenses
from ..outputs import cyclonedx, spdx
from ..outputs.exports import TextOf, concluded_tree, reference_text, serialise
from ..outputs.notices import notice, third_party
from ..report import Component, Finding, Reason, Report, Row, Use, Verdict
from ..texts import digest
from .archive import Member, Progress, member_of, write_archive
from .index import FILE_NAME, BundledComponent, BundledFile, BundleIndex
from .packing import PackedFile, pack
from .plan import Selection, narrowed, refuse, select
from .restricted import recognise
from .shareable import shareable_profile
from .stub import make_stub, stub_path
from .sweep import Sweep

PROFILE_FILE = "profile.toml"
COMPONENTS, LICENSES, STUBS = "components", "LICENSES", "stubs"
RESERVED = frozenset(
    {COMPONENTS, LICENSES, STUBS, "NOTICE", "THIRD_PARTY_NOTICES.md", "sbom.cdx.json", "sbom.spdx.json", FILE_NAME}
)
"""First parts of paths that the bundle itself gives out."""

Contents = Mapping[str, Sequence[PackedFile]]
"""Component id -> its files on this machine."""


@dataclass(frozen=True)
class BundleInputs:
    """All that a profile comes to."""

    report: Report
    contents: Contents
    text_of: TextOf
    extra_files: Mapping[str, bytes]
    """Path in the bundle -> content, as for profile.toml and requirements.txt."""
    restricted: tuple[Component, ...] = ()
    """Components that must not travel, besides those that the report denies."""
    trees: tuple[Path, ...] = ()
    """Directories that belong to the assembly whole: a file below them that no component owns is a refusal."""


@dataclass(frozen=True)
class BundlePlan:
    """What a bundle holds, whether it was written or not."""

    index: BundleIndex
    stubs: tuple[tuple[str, Finding | None], ...]
    """Component id and why it is left out; None when its user fetches it anyway."""

    @property
    def size_bytes(self) -> int:
        """Of the files, without what the archive adds."""
        return sum(file.size for file in self.index.files)

    @property
    def included(self) -> tuple[str, ...]:
        """Component ids."""
        return tuple(component.id for component in self.index.components if component.included)


def make_bundle(
    inputs: BundleInputs,
    out: Path,
    *,
    use: Use,
    strict: bool,
    epoch_s: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> BundlePlan:
    """Write the bundle, or with `dry_run` only find out what it would be; both refuse for the same reasons.

    `epoch_s` (SOURCE_DATE_EPOCH) is the only time in it. Raises BundleRefused with every reason that was found,
    BundleDamaged when files are not what is on record, ConfigError for a use that shares nothing and for a place that
    cannot be written. Whatever it raises, there is no file at `out` that was not there before.
    """
    report = inputs.report
    if not use.shares or use not in report.uses:
        raise ConfigError(f"A bundle is for passing on, and {use} is not a use that was audited for that.")
    if report.strict != strict:
        raise ConfigError("The audit and the bundle have to agree on whether fetched components count.")
    selection = select(report, use, strict=strict)
    shown = narrowed(report, selection, use)
    sweep = Sweep(
        recognise(_distinct([*(row.component for row in selection.restricted), *inputs.restricted]), progress),
        {row.component.id: row.component for row in report.rows},
    )
    members, owners = pack(selection.included, inputs.contents, inputs.trees, sweep, COMPONENTS, use, progress)
    written = dict(_written(inputs, selection, shown, epoch_s))
    refuse(use, [(None, finding) for path, data in written.items() for finding in sweep.text(path, data)])
    members += [member_of(path, data) for path, data in written.items()]
    index = _index(shown, selection, members, owners, use, strict)
    members.append(member_of(FILE_NAME, index.serialise()))
    if not dry_run:
        write_archive(out, members, epoch_s=epoch_s or 0, progress=progress)
    return BundlePlan(index, tuple((row.component.id, reason) for row, reason in selection.stubs))


def _written(
    inputs: BundleInputs, selection: Selection, shown: Report, epoch_s: int | None
) -> Iterator[tuple[str, bytes]]:
    """(path, content) of everything that is no component's."""
    use = shown.uses[0]
    stubs = frozenset(row.component.id for row, _ in selection.stubs)
    for path, data in sorted(inputs.extra_files.items()):
        if path.split("/")[0] in RESERVED:
            raise ConfigError(f"A bundle has a {path.split('/')[0]} of its own; give the extra file another name.")
        yield path, shareable_profile(data, path) if path == PROFILE_FILE else data
    yield from _license_texts(selection, inputs.text_of, use)
    for row, reason in selection.stubs:
        digests = {id: text and digest(text) for id, text in _texts_of(row, inputs.text_of).items()}
        yield stub_path(row.component.id), make_stub(row, reason, digests).serialise()
    text = notice(shown, stubs=stubs)
    refuse(use, [(row, finding) for row in selection.included for finding in _lost_notices(row, text)])
    yield "NOTICE", text.encode()
    yield "THIRD_PARTY_NOTICES.md", third_party(shown, inputs.text_of, stubs=stubs).encode()
    yield "sbom.cdx.json", _json(cyclonedx.document(shown, inputs.text_of, stubs=stubs, epoch=epoch_s))
    yield "sbom.spdx.json", _json(spdx.document(shown, inputs.text_of, stubs=stubs, epoch=epoch_s))


def _json(document: dict[str, object]) -> bytes:
    return serialise(document).encode("ascii")


def _license_texts(selection: Selection, text_of: TextOf, use: Use) -> Iterator[tuple[str, bytes]]:
    """LICENSES/: the text of every licence, those of stubs included where it is known."""
    spelt: dict[str, str] = {}
    found: dict[str, dict[str, None]] = {}
    missing: list[tuple[Row | None, Finding]] = []
    for row in (*selection.included, *(row for row, _ in selection.stubs)):
        if row in selection.included and not row.concluded:
            missing.append((row, Finding(Reason.NO_LICENSE, Verdict.UNKNOWN, "no licence of it is concluded")))
        for id, text in _texts_of(row, text_of).items():
            if text:
                found.setdefault(spelt.setdefault(id.casefold(), id), {})[text] = None
            elif row in selection.included:
                message = f"the text of {id} has to travel along, and it is not here"
                missing.append((row, Finding(Reason.TEXT_MISSING, Verdict.DENY, message)))
    refuse(use, missing)
    for id, texts in sorted(found.items()):
        yield f"{LICENSES}/{id}.txt", "\n".join(texts).encode()


def _texts_of(row: Row, text_of: TextOf) -> dict[str, str | None]:
    """Licence id -> its text, for every licence in force, and the exceptions whose text is known."""
    tree = concluded_tree(row)
    texts: dict[str, str | None] = {}
    for leaf in licenses(tree) if tree is not None else ():
        texts[leaf.id] = text_of(leaf.id) or reference_text(row, leaf.id, text_of)
        if leaf.exception and (text := text_of(leaf.exception)):
            texts[leaf.exception] = text
    return texts


def _lost_notices(row: Row, text: str) -> Iterator[Finding]:
    """Apache-2.0, 4(d): what upstream says in its NOTICE has to be in ours."""
    promised = row.component.manifest.attribution.notice_files
    words = " ".join(text.split())
    carried = all(" ".join(one.split()) in words for one in row.component.notices)
    if len(row.component.notices) < len(promised) or not carried:
        named = f" ({', '.join(promised)})" if promised else ""
        message = f"its NOTICE{named} has to travel along, and it is not here"
        tree = concluded_tree(row)
        apache = any(leaf.id == "Apache-2.0" for leaf in licenses(tree)) if tree is not None else False
        yield Finding(Reason.NOTICE_MISSING, Verdict.DENY, message, clause="4(d)" if apache else "")


def _index(
    shown: Report,
    selection: Selection,
    members: Collection[Member],
    owners: Mapping[str, str],
    use: Use,
    strict: bool,
) -> BundleIndex:
    included = {row.component.id for row in selection.included}
    return BundleIndex(
        profile=shown.profile,
        use=use,
        mode="strict" if strict else "stub",
        commercial=shown.commercial,
        verdict=shown.verdicts[use].slug,
        versions=dict(shown.versions),
        components=tuple(
            BundledComponent(
                id=row.component.id,
                kind=row.component.manifest.kind,
                declared=row.declared,
                concluded=row.concluded,
                verdict=row.rulings[use].verdict.slug,
                included=row.component.id in included,
            )
            for row in sorted(shown.rows, key=lambda row: row.component.id)
        ),
        files=tuple(
            BundledFile(
                path=member.path,
                sha256=member.sha256,
                size=member.size,
                component=owners.get(member.path),
                executable=member.executable,
            )
            for member in sorted(members, key=lambda member: member.path)
        ),
    )


def _distinct(components: Sequence[Component]) -> list[Component]:
    return list({component.id: component for component in components}.values())
