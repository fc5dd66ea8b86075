"""A report for people: a table for a terminal or a pipe, and the same as Markdown.

Nothing is told by colour alone, nothing is cut off that somebody may search for, and bad news comes with ways out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..report import Report, Row, Use, Verdict
from .exports import ordered
from .plain import columns, in_markdown, listed, one_line, padded, wrapped
from .reasons import Told, licence, told

GAP = "  "
MARK = "!"
STUB = "stub"
MIN_LICENCE = 24
"""Columns below which the licences are not squeezed: then lines are longer than asked."""
LEGEND = {
    "ok": "allowed",
    "cond": "allowed with conditions",
    "act": "a fact or an acceptance is missing",
    "?": "unknown",
    "NO": "denied",
    STUB: "not shared, each user fetches it from its publisher",
    "(": "in parentheses: not counted",
}


@dataclass(frozen=True)
class _Line:
    """A row of the table. `label` may stand in place of component, kind and licence."""

    marked: bool
    component: str
    kind: str
    licence: str
    cells: tuple[str, ...]
    label: str = ""


def table(report: Report, width: int) -> str:
    """The report as aligned text that aims at `width` columns, and is complete whatever the width.

    Raises GlmserveError for ids that repeat.
    """
    rows = ordered(report)
    parts = [row for row in rows if not row.component.environment]
    environment = [row for row in rows if row.component.environment]
    lines = [_line(row, report.uses) for row in parts]
    if environment:
        lines.append(_summary(environment, report.uses))
        lines += [_line(row, report.uses) for row in environment if _worst(row, report.uses) >= Verdict.ACTION]
    blocks = ["\n".join([_title(report), "", *_drawn(lines, _total(report), report.uses, width)])]
    blocks.append("\n".join(wrapped(_legend(lines, report), width)))
    blocks += ["\n".join(_paragraph(one, width)) for one in told(report, rows)]
    if confirm := _to_confirm(rows):
        paragraphs = [wrapped(text, width, "  ", "    ") for text in confirm]
        blocks.append("\n".join(["Not yet confirmed by a person:", *(line for text in paragraphs for line in text)]))
    blocks += ["\n".join(wrapped(f"Warning: {one_line(text)}", width, "", "  ")) for text in sorted(report.warnings)]
    blocks.append("\n".join(wrapped(_colophon(report), width)))
    return "\n\n".join(blocks) + "\n"


def markdown(report: Report) -> str:
    """The report as GitHub's Markdown, every component with a row of its own.

    Raises GlmserveError for ids that repeat.
    """
    rows = ordered(report)
    parts = [row for row in rows if not row.component.environment]
    environment = [row for row in rows if row.component.environment]
    text = [f"# {in_markdown(_title(report))}", "", *_markdown_table(parts, report, _total(report))]
    if environment:
        summary = _summary(environment, report.uses)
        text += ["", f"## {in_markdown(summary.label)}", "", *_markdown_table(environment, report)]
    text += ["", in_markdown(_legend([_line(row, report.uses) for row in rows], report))]
    if reasons := told(report, rows):
        text += ["", "## Reasons", ""]
        for one in reasons:
            text.append(f"- **{in_markdown(one.subject)}**: {in_markdown(one.reason)}")
            text += [f"  - {in_markdown(option)}" for option in one.options]
    if confirm := _to_confirm(rows):
        text += ["", "## Not yet confirmed by a person", "", *(f"- {in_markdown(item)}" for item in confirm)]
    if report.warnings:
        text += ["", "## Warnings", "", *(f"- {in_markdown(warning)}" for warning in sorted(report.warnings))]
    return "\n".join([*text, "", in_markdown(_colophon(report))]) + "\n"


def _title(report: Report) -> str:
    title = f"What the licences of {one_line(report.profile)} permit"
    if not any(use.shares for use in report.uses):
        return title
    purpose = "commercial" if report.commercial else "noncommercial"
    return f"{title} (shares judged as {purpose}{', with the bytes that users would fetch' if report.strict else ''})"


def _cell(row: Row, use: Use) -> str:
    ruling = row.rulings[use]
    if ruling.counted:
        return ruling.verdict.short
    fetched = row.component.manifest.delivery == "fetch" and not row.component.environment
    return STUB if fetched and use.shares else f"({ruling.verdict.short})"


def _worst(row: Row, uses: Sequence[Use]) -> Verdict:
    return max((row.rulings[use].verdict for use in uses), default=Verdict.ALLOW)


def _line(row: Row, uses: Sequence[Use]) -> _Line:
    cells = tuple(_cell(row, use) for use in uses)
    marked = _worst(row, uses) > Verdict.CONDITIONS
    return _Line(marked, row.component.id, row.component.manifest.kind, licence(row), cells)


def _summary(environment: Sequence[Row], uses: Sequence[Use]) -> _Line:
    verdicts = Counter(_worst(row, uses) for row in environment)
    counts = ", ".join(f"{verdicts[verdict]} {verdict.short}" for verdict in Verdict if verdicts[verdict])
    noun = "Python distribution" if len(environment) == 1 else "Python distributions"
    cells = []
    for use in uses:
        rulings = [row.rulings[use] for row in environment]
        counted = [ruling.verdict for ruling in rulings if ruling.counted]
        cells.append(max(counted).short if counted else f"({max(ruling.verdict for ruling in rulings).short})")
    label = f"{len(environment)} {noun}: {counts}"
    return _Line(max(verdicts) > Verdict.CONDITIONS, "", "", "", tuple(cells), label)


def _total(report: Report) -> _Line:
    verdicts = [report.verdicts[use] for use in report.uses]
    marked = any(verdict > Verdict.CONDITIONS for verdict in verdicts)
    return _Line(marked, "", "", "", tuple(verdict.short for verdict in verdicts), "verdict")


def _drawn(lines: Sequence[_Line], total: _Line, uses: Sequence[Use], width: int) -> Iterator[str]:
    names, kinds, licences = ([getattr(line, field) for line in lines] for field in ("component", "kind", "licence"))
    name_width = max(map(columns, ["component", *names]))
    kind_width = max(map(columns, ["kind", *kinds]))
    verbs, headings, use_widths = _headings([*lines, total], uses)
    fixed = 2 + name_width + kind_width + sum(use_widths) + len(GAP) * (2 + len(uses))
    natural = max(map(columns, ["licence", *licences]))
    licence_width = min(natural, max(MIN_LICENCE, width - fixed))
    # A word wider than that is not broken, so the column is as wide as the widest.
    licence_width = max([licence_width, *(columns(word) for text in licences for word in text.split())])
    label_width = name_width + kind_width + licence_width + 2 * len(GAP)
    label_width = max([label_width, *(columns(line.label) for line in (*lines, total))])
    licence_width = label_width - name_width - kind_width - 2 * len(GAP)

    def drawn(mark: str, left: str, cells: Sequence[str]) -> str:
        padded_cells = [padded(cell, size) for cell, size in zip(cells, use_widths, strict=True)]
        return GAP.join([f"{mark:2}{padded(left, label_width)}", *padded_cells]).rstrip()

    def left(name: str, kind: str, text: str) -> str:
        return GAP.join([padded(name, name_width), padded(kind, kind_width), text])

    rule = "  " + "-" * (label_width + sum(use_widths) + len(GAP) * len(uses))
    yield f"{'':{2 + label_width}}{GAP}{verbs}".rstrip()
    yield drawn("", left("component", "kind", "licence"), headings)
    yield rule
    for line in lines:
        mark = MARK if line.marked else ""
        if line.label:
            yield drawn(mark, line.label, line.cells)
            continue
        first, *rest = wrapped(line.licence, licence_width)
        yield drawn(mark, left(line.component, line.kind, first), line.cells)
        for text in rest:
            yield drawn("", left("", "", text), [""] * len(uses))
    yield rule
    yield drawn(MARK if total.marked else "", total.label, total.cells)


def _headings(lines: Sequence[_Line], uses: Sequence[Use]) -> tuple[str, list[str], list[int]]:
    """The line of verbs, as "run" over "local" and "commercial"; the headings under it; the widths of the columns."""
    verbs = [str(use).split("-", 1)[0] for use in uses]
    headings = [str(use).split("-", 1)[1] for use in uses]
    widths = [max(map(len, [heading, *(line.cells[i] for line in lines)])) for i, heading in enumerate(headings)]
    spans: list[str] = []
    for verb, group in groupby(range(len(uses)), key=lambda i: verbs[i]):
        indices = list(group)
        span = sum(widths[i] for i in indices) + len(GAP) * (len(indices) - 1)
        if len(verb) > span:
            widths[indices[-1]] += len(verb) - span
            span = len(verb)
        spans.append(padded(verb, span))
    return GAP.join(spans), headings, widths


def _legend(lines: Sequence[_Line], report: Report) -> str:
    shown = {cell for line in lines for cell in line.cells} | {report.verdicts[use].short for use in report.uses}
    entries = [f"{sign}: {meaning}" for sign, meaning in LEGEND.items() if sign in shown]
    if any(cell.startswith("(") for cell in shown):
        entries.append(LEGEND["("])
    return "; ".join(entries) + "."


def _paragraph(one: Told, width: int) -> list[str]:
    lines = wrapped(f"{one.subject}: {one.reason}", width, "", "  ")
    if not one.options:
        return lines
    if len(one.options) == 1:
        return [*lines, *wrapped(f"Option: {one.options[0]}.", width, "  ", "    ")]
    options = f"  Options: {'; '.join(one.options)}."
    if columns(options) <= width:
        return [*lines, options]
    lines.append("  Options:")
    for i, option in enumerate(one.options):
        lines += wrapped(option + (";" if i + 1 < len(one.options) else "."), width, "    ", "        ")
    return lines


def _to_confirm(rows: Sequence[Row]) -> list[str]:
    components: dict[str, list[str]] = {}
    for row in rows:
        for text in row.component.manifest.to_confirm:
            components.setdefault(one_line(text), []).append(row.component.id)
    return [f"{listed(ids)}: {text}" for text, ids in components.items()]


def _colophon(report: Report) -> str:
    names = {"glmserve": "glmserve", "catalogue": "licence catalogue", "spdx-list": "SPDX licence list"}
    versions = [f"{name} {one_line(report.versions[key])}" for key, name in names.items() if key in report.versions]
    return f"{', '.join(versions)}{'. ' if versions else ''}An engineering check, not legal advice."


def _markdown_table(rows: Sequence[Row], report: Report, total: _Line | None = None) -> list[str]:
    heads = ["", "component", "kind", "licence", *map(str, report.uses)]
    lines = [_line(row, report.uses) for row in rows]
    return [
        _markdown_row(heads),
        f"|{'---|' * len(heads)}",
        *(
            _markdown_row([MARK if line.marked else "", line.component, line.kind, line.licence, *line.cells])
            for line in lines
        ),
        *([_markdown_row([MARK if total.marked else "", total.label, "", "", *total.cells])] if total else []),
    ]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(f'**{cell}**' if cell in ('NO', MARK) else in_markdown(cell) for cell in cells)} |"
