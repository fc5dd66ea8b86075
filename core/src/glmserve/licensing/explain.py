"""Where a declaration stands, which terms speak, and why the verdict is what it is: for one component or one file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from glmserve.api import ConfigError
from glmserve.api.provenance import FILE_NAME, read_origin

from .ancestry import PERMISSIONS
from .expressions import ABSENT, License, MalformedExpression, licenses, parse
from .report import INTEGRITY, Component, Reason, Report, Row

if TYPE_CHECKING:
    from .catalogue import Catalogue, Terms

DELIVERY = {
    "bundled": "comes with its distribution",
    "fetch": "fetched by its user from its publisher",
    "user-supplied": "put there by its user",
}
MAX_HEADER_BYTES = 4096


def explain_component(row: Row, catalogue: Catalogue) -> Iterator[str]:
    """Lines for a person."""
    manifest = row.component.manifest
    yield f"{manifest.id}: {manifest.name} ({manifest.kind}, {DELIVERY[manifest.delivery]})"
    yield _line("declared", f"{row.declared or 'nothing'}{_at(manifest.license.declared_at)}")
    for reading in row.component.readings:
        yield _line("also read", f"{reading or 'nothing'}")
    if row.concluded and row.concluded != row.declared:
        yield _line("concluded", row.concluded)
    yield _line("manifest", row.component.source)
    if manifest.origin is not None:
        revision = f" at {manifest.origin.revision}" if manifest.origin.revision else ""
        yield _line("publisher", f"{manifest.origin.publisher or 'not named'}, {manifest.origin.url}{revision}")
    for ancestor in manifest.derived_from:
        yield _line("made from", f"{ancestor.id} ({ancestor.relation})")
    for license in _leaves(row.declared):
        terms = catalogue.find(license)
        said = terms.summary if terms is not None else "not in the reviewed catalogue"
        if terms is not None and terms.id in catalogue.local:
            said += " (your own terms, not reviewed by the project)"
        yield _line("terms", f"{license}: {said}")
    for text in row.component.texts:
        yield _line("text", f"{text.path}, sha256 {text.sha256}")
    for what in manifest.to_confirm:
        yield _line("to confirm", what)
    for use, ruling in row.rulings.items():
        yield f"  {use}: {ruling.verdict.slug}{'' if ruling.counted else ' (does not count: see the table)'}"
        for finding in ruling.findings:
            clause = f" [{finding.clause}]" if finding.clause else ""
            yield f"    {finding.code}{clause}: {finding.message}"


def describe_terms(license: License, terms: Terms) -> Iterator[str]:
    """Lines for a person: what the catalogue says of one licence."""
    yield f"{license}: {terms.name}"
    yield f"  {terms.summary}"
    for permission in PERMISSIONS:
        clause = terms.clauses.get(permission)
        yield _line(
            permission.replace("_", " "), f"{getattr(terms, permission)}{f'  [{clause}]' if clause else ''}", 17
        )
    yield _line("asks for", ", ".join(name.replace("_", " ") for name in sorted(terms.obligations)) or "nothing", 17)
    for gate in terms.gates:
        yield _line("gate", f"{gate.summary}{f'  [{gate.clause}]' if gate.clause else ''}", 17)
    for doubt in terms.uncertain:
        yield _line("not settled", doubt, 17)
    if terms.canonical_url:
        yield _line("text", terms.canonical_url, 17)
    yield _line("reviewed", f"{terms.reviewed_on}, {terms.reviewed_by}", 17)


def integrity_lines(report: Report) -> Iterator[str]:
    """One line a component: what of it could be checked, and what is wrong."""
    for row in report.rows:
        wrong = [f for f in row.component.findings if f.code in INTEGRITY]
        checked = len(row.component.manifest.files) + len(row.component.texts)
        here = row.component.root is not None or row.component.environment
        state = "broken" if wrong else (f"{checked} files and texts as recorded" if here else "not on this machine")
        if any(f.code is Reason.INTEGRITY_UNKNOWN for f in row.component.findings):
            state = "nothing on record to compare with"
        yield f"{row.component.id}: {state}"
        yield from (f"  {f.code}: {f.message}" for f in wrong)


def owner_of_file(path: Path, components: Sequence[Component]) -> tuple[str, str]:
    """(component id or licence expression, how that is known) of a file. Raises ConfigError when nothing claims it."""
    if not path.is_file():
        raise ConfigError(f"{path} is neither a component nor a file; give an id that the audit lists, or a file.")
    resolved = path.resolve()
    for component in components:
        if component.root is None or not resolved.is_relative_to(component.root.resolve()):
            continue
        relative = resolved.relative_to(component.root.resolve()).as_posix()
        listed = {entry.path for entry in component.manifest.files} | {text.path for text in component.texts}
        if relative in listed:
            return component.id, f"{relative} is listed by {component.source}"
    for directory in resolved.parents:
        if (directory / FILE_NAME).is_file() and (record := read_origin(directory)) is not None:
            made = " and ".join(f"{source.id} ({source.relation})" for source in record.derived_from)
            return record.derived_from[0].id, f"{directory / FILE_NAME} says it was made from {made}"
    if (owner := _installed(resolved)) is not None:
        match = next((c.id for c in components if c.distribution == owner), owner)
        return match, f"RECORD of the installed distribution {owner} lists it"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for component in components:
        if digest in {entry.sha256 for entry in component.manifest.files}:
            return component.id, f"its bytes are those of a file that {component.source} lists"
    with path.open("rb") as file:
        tag = re.search(rb"SPDX-License-Identifier:[ \t]*([^\r\n]*)", file.read(MAX_HEADER_BYTES))
    if tag is not None:
        return tag[1].decode("ascii", "replace").strip(), "its own SPDX-License-Identifier says so"
    raise ConfigError(
        f"{path} belongs to no component: no manifest, no RECORD, no record of origin and no tag names it."
    )


def _installed(path: Path) -> str | None:
    for distribution in distributions():
        for file in distribution.files or ():
            if file.name == path.name and Path(str(distribution.locate_file(file))).resolve() == path:
                return distribution.name
    return None


def _leaves(declared: str) -> list[License]:
    try:
        return [] if declared.casefold() in ABSENT else list({x.key: x for x in licenses(parse(declared))}.values())
    except MalformedExpression:
        return []


def _at(where: str) -> str:
    return f", at {where}" if where else ""


def _line(key: str, value: str, width: int = 11) -> str:
    return f"  {key:<{width}}{value}"
