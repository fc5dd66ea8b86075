"""The notices that travel with copies: NOTICE, and THIRD_PARTY_NOTICES.md with the licence texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from .exports import TextOf, concluded_tree, declared_tree, left_out, ordered, reference_text, version_of
from .expressions import License, licenses
from .plain import fenced, in_markdown, listed, one_line, well_formed
from .report import Report, Row

RULE = "-" * 78
FETCHED = "Not part of this distribution: its user fetches it from its publisher."

_CREATIVE_COMMONS = re.compile(r"CC-(BY(?:-NC)?(?:-ND|-SA)?)-([0-9.]+)(?:-([A-Z]{2,3}))?")
_ELEMENTS = {"BY": "Attribution", "NC": "NonCommercial", "ND": "NoDerivatives", "SA": "ShareAlike"}
_UNCHANGING = ("verbatim", "distill")


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

    A component's own texts come first; where it has none, or several licences, those of the catalogue are added.
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
    without: list[Row] = []
    covered: dict[str, tuple[str, str, list[Row]]] = {}
    for row in rows:
        texts = list(_texts(row, text_of))
        for title, text in texts:
            covered.setdefault(" ".join(text.split()), (title, text, []))[2].append(row)
        if not texts:
            without.append(row)
    for title, text, carriers in covered.values():
        names = listed([in_markdown(row.component.id) for row in carriers])
        lines += ["", f"### {in_markdown(title)}", "", f"For {names}.", ""]
        copyrights = dict.fromkeys(line for row in carriers for line in _copyrights(row))
        lines += [f"- {in_markdown(line)}" for line in copyrights]
        lines += [*([""] if copyrights else []), fenced(text)]
    if without:
        lines += ["", "### Without a text here", ""]
        lines += [f"- {in_markdown(row.component.id)}: {_where_to_read(row)}" for row in without]
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
                found.setdefault(" ".join(text.split()), (text, []))[1].append(row.component.id)
    for text, carriers in found.values():
        yield f"NOTICE of {listed(list(dict.fromkeys(carriers)))}\n\n{text.removesuffix(chr(10))}"


def _table_row(row: Row, absent: bool) -> str:
    declared = one_line(row.declared, 256)
    licence = _licence(row) if row.concluded in ("", declared) else f"{row.concluded} (declared: {declared})"
    source = "; ".join(filter(None, [_source(row), "fetched by its user" if absent else ""]))
    cells = [row.component.id, version_of(row.component), licence, "; ".join(_copyrights(row)), source]
    return f"| {' | '.join(in_markdown(cell) for cell in cells)} |"


def _texts(row: Row, text_of: TextOf) -> Iterator[tuple[str, str]]:
    """(title, text) of what the component carries and of what is to be added."""
    own = [text for text in row.component.texts if text.text.strip()]
    for text in own:
        yield f"{_licence(row)}: {text.path}" if text.path else _licence(row), text.text
    leaves = _leaves(row)
    if len(leaves) == 1 and own:
        return
    for leaf in leaves:
        if found := text_of(str(leaf)) or reference_text(row, leaf.id, text_of):
            yield str(leaf), found


def _where_to_read(row: Row) -> str:
    place = one_line(row.component.manifest.license.declared_at) or _source(row)
    read = f"read it at {place}" if place else "ask its publisher for it"
    return in_markdown(f"{_licence(row)}; {read}.")
