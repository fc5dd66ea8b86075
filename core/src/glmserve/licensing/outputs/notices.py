"""The notices that travel with copies: NOTICE, and THIRD_PARTY_NOTICES.md with the licence texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ..expressions import License, licenses
from ..report import LicenseText, Report, Row
from ..texts import contained
from .exports import TextOf, concluded_tree, declared_tree, left_out, ordered, reference_text, version_of
from .plain import fenced, in_markdown, listed, one_line, well_formed

RULE = "-" * 78
FETCHED = "Not part of this distribution: its user fetches it from its publisher."

_CREATIVE_COMMONS = re.compile(r"CC-(BY(?:-NC)?(?:-ND|-SA)?)-([0-9.]+)(?:-([A-Z]{2,3}))?")
_ELEMENTS = {"BY": "Attribution", "NC": "NonCommercial", "ND": "NoDerivatives", "SA": "ShareAlike"}
_UNCHANGING = ("verbatim", "distill")


@dataclass(frozen=True)
class _Text:
    title: str
    content: str
    path: str = ""
    """Where the component has it; "" for a text of the catalogue."""


@dataclass(frozen=True)
class _Covering:
    """A text and what it covers."""

    title: str
    content: str
    paths: dict[str, list[str]] = field(default_factory=dict)
    """Component id -> where the component has it."""
    copyrights: dict[str, None] = field(default_factory=dict)


def notice(report: Report, *, stubs: Collection[str] | None = None) -> str:
    """The text of NOTICE: whose the parts are, attributions in the form that Creative Commons licences ask for, and the
    NOTICE texts of the parts word for word, each once.

    `stubs` are ids of components that are named but left out; None: those that no share counts.
    """
    rows = ordered(report)
    out = left_out(report, stubs)
    blocks = [_opening(report)]
    blocks += ["\n".join(_ownership(row, row.component.id in out)) for row in rows if not row.component.environment]
    attributions = [_attribution(row, leaf, report, row.component.id in out) for row, leaf in _attributed(rows)]
    if attributions:
        blocks.append("\n\n".join(["Attributions", *attributions]))
    text = f"\n{RULE}\n\n".join(f"{block}\n" for block in ["\n\n".join(blocks), *_upstream(rows)])
    cleaned: str = well_formed(text)
    return cleaned


def third_party(report: Report, text_of: TextOf, *, stubs: Collection[str] | None = None) -> str:
    """THIRD_PARTY_NOTICES.md: a table of the components, then every distinct licence text once with those it covers.

    A component's own texts come first; those of the catalogue are added for each licence that is not among them.
    """
    rows = ordered(report)
    out = left_out(report, stubs)
    lines = [
        "# Third-party notices",
        "",
        f"What the profile {in_markdown(report.profile)} consists of. Every part keeps its own licence.",
        "",
        "| component | version | licence | copyright | source |",
        "|---|---|---|---|---|",
        *(_table_row(row, row.component.id in out) for row in rows),
        "",
        "## Licence texts",
    ]
    texts: dict[str, _Covering] = {}
    for row in rows:
        for text in _texts(row, text_of):
            covering = texts.setdefault(" ".join(text.content.split()), _Covering(text.title, text.content))
            covering.paths.setdefault(row.component.id, []).append(text.path)
            covering.copyrights.update(dict.fromkeys(_copyrights(row)))
    for covering in texts.values():
        lines += ["", *_section(covering)]
    missing = [(row, leaf) for row in rows for leaf in _without_text(row, text_of)]
    if missing:
        lines += ["", "### Without a text here", ""]
        lines += [
            f"- {in_markdown(row.component.id)}: {in_markdown(_where_to_read(row, leaf))}" for row, leaf in missing
        ]
    cleaned: str = well_formed("\n".join(lines) + "\n")
    return cleaned


def _opening(report: Report) -> str:
    version = report.versions.get("glmserve", "")
    tool = f"glmserve {version}" if version else "glmserve"
    return f"{one_line(report.profile)}\nAssembled with {tool} from the parts below. Every part keeps its own licence."


def _ownership(row: Row, absent: bool) -> Iterator[str]:
    yield f"{_titled(row)} ({_licence(row)})"
    yield from (f"  {line}" for line in _copyrights(row))
    if source := _source(row):
        yield f"  Source: {source}"
    if absent:
        yield f"  {FETCHED}"


def _titled(row: Row) -> str:
    name = one_line(row.component.manifest.name) or row.component.id
    return " ".join(filter(None, [name, version_of(row.component)]))


def _licence(row: Row) -> str:
    return row.concluded or one_line(row.declared, 256) or "no licence declared"


def _copyrights(row: Row) -> list[str]:
    return [line for text in row.component.manifest.attribution.copyright if (line := one_line(text))]


def _source(row: Row) -> str:
    origin = row.component.manifest.origin
    if origin is None or not origin.url:
        return ""
    revision = f" at {one_line(origin.revision)}" if origin.revision else ""
    return f"{one_line(origin.url)}{revision}"


def _leaves(row: Row) -> tuple[License, ...]:
    """The licences that are in force, from left to right."""
    tree = concluded_tree(row) or declared_tree(row)
    return tuple(dict.fromkeys(licenses(tree))) if tree else ()


def _attributed(rows: tuple[Row, ...]) -> Iterator[tuple[Row, License]]:
    return ((row, leaf) for row in rows for leaf in _leaves(row) if _CREATIVE_COMMONS.fullmatch(leaf.id))


def _attribution(row: Row, leaf: License, report: Report, absent: bool) -> str:
    manifest = row.component.manifest
    publisher = one_line(manifest.origin.publisher) if manifest.origin else ""
    lines = [_titled(row)]
    lines += [f"  Creator: {publisher}"] if publisher else []
    lines += [f"  Copyright: {line}" for line in _copyrights(row)]
    lines.append(f"  Licence: {_creative_commons(leaf.id)}")
    lines += [f"  Source: {source}"] if (source := _source(row)) else []
    lines.append(f"  Changes: {_changes(row, report)}")
    lines.append("  Warranties: none; the licence disclaims them and limits liability.")
    lines += [f"  {FETCHED}"] if absent else []
    return "\n".join(lines)


def _creative_commons(identifier: str) -> str:
    """The name and the address of a licence, from its SPDX identifier."""
    match = _CREATIVE_COMMONS.fullmatch(identifier)
    assert match is not None, identifier  # `_attributed` asked
    elements, version, country = match.groups()
    name = "-".join(_ELEMENTS[element] for element in elements.split("-"))
    scope = " International" if version == "4.0" else f" {country}" if country else ""
    path = "/".join(filter(None, [elements.lower(), version, (country or "").lower()]))
    return f"Creative Commons {name} {version}{scope} ({identifier}), https://creativecommons.org/licenses/{path}/"


def _changes(row: Row, report: Report) -> str:
    names = {other.component.id: other.component.manifest.name for other in report.rows}
    changes = [
        f"made from {one_line(names.get(ancestor.id, ancestor.id))} ({ancestor.relation})"
        for ancestor in row.component.manifest.derived_from
        if ancestor.relation not in _UNCHANGING
    ]
    return listed(sorted(changes)) if changes else "none; it is as its publisher gives it"


def _upstream(rows: tuple[Row, ...]) -> Iterator[str]:
    """NOTICE texts, each under the names of those who carry it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for row in rows:
        for text in row.component.notices:
            if text.strip():
                # Only what is the same word for word is one: a NOTICE may be carried twice, and never be lost.
                found.setdefault(text.strip(), (text, []))[1].append(row.component.id)
    for text, carriers in found.values():
        yield f"NOTICE of {listed(list(dict.fromkeys(carriers)))}\n\n{text.removesuffix(chr(10))}"


def _table_row(row: Row, absent: bool) -> str:
    declared = one_line(row.declared, 256)
    licence = _licence(row) if row.concluded in ("", declared) else f"{row.concluded} (declared: {declared})"
    source = "; ".join(filter(None, [_source(row), "fetched by its user" if absent else ""]))
    cells = [row.component.id, version_of(row.component), licence, "; ".join(_copyrights(row)), source]
    return f"| {' | '.join(in_markdown(cell) for cell in cells)} |"


def _texts(row: Row, text_of: TextOf) -> Iterator[_Text]:
    """What the component carries, and what has to be added to it."""
    for text in _own(row):
        yield _Text(_title(row, text), text.text, text.path)
    for leaf in _to_add(row):
        if whole := text_of(str(leaf)):
            yield _Text(str(leaf), whole)
        elif not _is_plain(row) and (found := reference_text(row, leaf.id, text_of)):
            yield _Text(leaf.id, found)


def _own(row: Row) -> list[LicenseText]:
    return [text for text in row.component.texts if text.text.strip()]


def _title(row: Row, text: LicenseText) -> str:
    found = contained(text.text)
    # Texts that -only and -or-later share are titled as the component declares them.
    declared = {leaf.id for leaf in _leaves(row)} & found
    return ", ".join(sorted(declared or found)) or PurePosixPath(text.path).name or "Licence text"


def _to_add(row: Row) -> list[License]:
    """The licences in force whose text is not recognised among the component's own: some carry a mention only."""
    found = {identifier for text in _own(row) for identifier in contained(text.text)}
    return [leaf for leaf in _leaves(row) if str(leaf) not in found]


def _is_plain(row: Row) -> bool:
    """One licence and a text: where the catalogue knows no better, that is its text."""
    return len(_leaves(row)) == 1 and bool(_own(row))


def _without_text(row: Row, text_of: TextOf) -> list[License | None]:
    if not _leaves(row):
        return [] if _own(row) else [None]
    lacking = [] if _is_plain(row) else [leaf for leaf in _to_add(row) if not text_of(str(leaf))]
    # Half of "X WITH y" is not its text.
    return [leaf for leaf in lacking if leaf.exception or not reference_text(row, leaf.id, text_of)]


def _section(covering: _Covering) -> list[str]:
    names = []
    for component_id, paths in covering.paths.items():
        found = ", ".join(sorted({one_line(path) for path in paths} - {""}))
        names.append(in_markdown(f"{component_id} ({found})" if found else component_id))
    lines = [f"### {in_markdown(covering.title)}", "", f"For {listed(names)}.", ""]
    lines += [f"- {in_markdown(line)}" for line in covering.copyrights]
    return [*lines, *([""] if covering.copyrights else []), fenced(covering.content)]


def _where_to_read(row: Row, leaf: License | None) -> str:
    place = one_line(row.component.manifest.license.declared_at) or _source(row)
    return f"{leaf or _licence(row)}; {f'read it at {place}' if place else 'ask its publisher for it'}."
