"""A report as a CycloneDX 1.6 document (ECMA-424), models as machine-learning-model with a modelCard.

Written by hand because the CycloneDX library has no modelCard. A schema checks neither the grammar of expressions nor
that references are unique, so both are made sure of here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glmserve.api.components import Ancestor, FileEntry

from ..expressions import ADDITIONS, Expression, License
from ..report import Report, Row
from .exports import (
    TextOf,
    concluded_tree,
    content_uuid,
    declared_tree,
    left_out,
    one_version,
    ordered,
    package_url,
    reference_text,
    timestamp,
    version_of,
    web_url,
)
from .plain import one_line, well_formed

TYPES = {
    "code": "library",
    "native-lib": "library",
    "weights": "machine-learning-model",
    "drafter": "machine-learning-model",
    "dataset": "data",
    "tokenizer": "data",
    "cache": "data",
    "template": "file",
    "docs": "file",
    "image-base": "container",
}
TASKS = {"weights": "text-generation", "drafter": "speculative-decoding"}
PROFILE = "profile"
MODEL = "machine-learning-model"
MAX_NAME = 256
"""Characters of a name that is no identifier."""

Json = dict[str, Any]


def document(
    report: Report, text_of: TextOf, *, stubs: Collection[str] | None = None, epoch: int | None = None
) -> Json:
    """The document as JSON values. Equal reports give equal documents, in whatever order their rows are.

    `stubs` are ids of components that are named but left out; None: those that no share counts. `epoch`
    (SOURCE_DATE_EPOCH, seconds) is the only source of a timestamp. Raises GlmserveError for a report that no document
    can express; there is no lesser document instead.
    """
    rows = ordered(report)
    out = left_out(report, stubs)
    references = [_reference(row.component.id) for row in rows]
    by_id = {row.component.id: row for row in rows}
    bom: Json = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": _metadata(report, epoch),
        "components": [_component(row, by_id, report, text_of, out) for row in rows],
        "dependencies": [
            {"ref": PROFILE, "dependsOn": sorted(references)},
            *({"ref": reference} for reference in sorted(references)),
        ],
    }
    if out:
        absent = sorted(_reference(row.component.id) for row in rows if row.component.id in out)
        bom["compositions"] = [{"aggregate": "incomplete", "assemblies": absent}]
    bom = well_formed(bom)
    bom["serialNumber"] = content_uuid(bom).urn
    return bom


def _reference(component_id: str) -> str:
    return f"component:{component_id}"


def _metadata(report: Report, epoch: int | None) -> Json:
    tool = {"type": "application", "name": "glmserve"}
    if version := one_version(report.versions.get("glmserve", "")):
        tool["version"] = version
    metadata: Json = {
        "tools": {"components": [tool]},
        "component": {"type": "application", "bom-ref": PROFILE, "name": one_line(report.profile) or PROFILE},
        "properties": [
            *_properties("version", {k: v for k, v in report.versions.items() if k != "glmserve"}),
            *_properties("", {"commercial": _flag(report.commercial), "strict": _flag(report.strict)}),
            *_properties("use", {use: report.verdicts[use].slug for use in report.uses}),
        ],
    }
    if epoch is not None:
        metadata["timestamp"] = timestamp(epoch)
    return metadata


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _properties(group: str, values: dict[Any, str]) -> list[Json]:
    names = {f"glmserve:{group}:{name}" if group else f"glmserve:{name}": value for name, value in values.items()}
    return [{"name": name, "value": value} for name, value in sorted(names.items())]


def _component(row: Row, rows: dict[str, Row], report: Report, text_of: TextOf, out: Collection[str]) -> Json:
    component = row.component
    manifest = component.manifest
    entry: Json = {
        **_identity(row),
        "bom-ref": _reference(component.id),
        "properties": _facts(row, report, component.id in out),
    }
    if manifest.origin and (publisher := one_line(manifest.origin.publisher)):
        entry["publisher"] = publisher
        entry["supplier"] = {"name": publisher}
    if licenses := _licenses(row, text_of):
        entry["licenses"] = licenses
    if lines := [line for text in manifest.attribution.copyright if (line := one_line(text))]:
        entry["copyright"] = "\n".join(dict.fromkeys(lines))
    if evidence := _evidence(row):
        entry["evidence"] = evidence
    if references := _external_references(row):
        entry["externalReferences"] = references
    if files := _files(manifest.files):
        entry["components"] = files
        if len(files) == 1:
            entry["hashes"] = files[0]["hashes"]
    if manifest.derived_from:
        entry["pedigree"] = _pedigree(row, rows)
    if entry["type"] == MODEL:
        entry["modelCard"] = _model_card(row, rows)
    return entry


def _identity(row: Row) -> Json:
    component = row.component
    identity: Json = {
        "type": TYPES[component.manifest.kind],
        "name": one_line(component.manifest.name) or component.id,
    }
    if version := version_of(component):
        identity["version"] = version
    if purl := package_url(component):
        identity["purl"] = purl
    return identity


def _facts(row: Row, report: Report, absent: bool) -> list[Json]:
    """What the standard fields cannot hold: they know neither uses nor a declaration beside a conclusion."""
    manifest = row.component.manifest
    values: dict[Any, str] = {
        "kind": manifest.kind,
        "delivery": manifest.delivery,
        "source": one_line(row.component.source),
        "license:declared": _shown(row),
        "license:concluded": row.concluded,
        "included": _flag(not absent),
    }
    for use in report.uses:
        ruling = row.rulings[use]
        values[f"use:{use}"] = ruling.verdict.slug
        if codes := sorted({str(finding.code) for finding in ruling.findings}):
            values[f"use:{use}:reasons"] = " ".join(codes)
        if not ruling.counted:
            values[f"use:{use}:counted"] = "false"
    confirm = [{"name": "glmserve:to-confirm", "value": one_line(text)} for text in manifest.to_confirm]
    return [*_properties("", {name: value for name, value in values.items() if value}), *confirm]


def _shown(row: Row) -> str:
    """The declaration; what is no expression has no right to any length."""
    return row.declared if declared_tree(row) else one_line(row.declared, MAX_NAME)


def _licenses(row: Row, text_of: TextOf) -> list[Json]:
    """An expression alone, or a list, because the standard knows no mixture of them.

    Where both the declaration and the conclusion are single licences, both stand here. Otherwise the conclusion does
    when there is one, and the declaration moves to the evidence.
    """
    declared, concluded = declared_tree(row), concluded_tree(row)
    if declared is None and concluded is None:
        return [{"license": {"name": name, "acknowledgement": "declared"}}] if (name := _shown(row)) else []
    trees = [(declared, "declared"), (concluded, "concluded")]
    present = [(tree, stage) for tree, stage in trees if tree is not None]
    if all(_listable(tree) for tree, _ in present):
        return [{"license": {**_license(row, tree, text_of), "acknowledgement": stage}} for tree, stage in present]
    tree, stage = present[-1]
    if _listable(tree):
        return [{"license": {**_license(row, tree, text_of), "acknowledgement": stage}}]
    return [{"expression": str(tree), "acknowledgement": stage}]


def _listable(tree: Expression) -> bool:
    # "X WITH y" and "Apache-2.0+" are no identifiers of the list, though "GPL-2.0+" is a deprecated one.
    return isinstance(tree, License) and not tree.exception and (tree.id[-1] != "+" or "GPL-" in tree.id)


def _license(row: Row, tree: Expression, text_of: TextOf) -> Json:
    identifier = str(tree)
    if not identifier.startswith("LicenseRef-") and identifier not in ADDITIONS:
        return {"id": identifier}
    named: Json = {"name": identifier}
    if content := reference_text(row, identifier, text_of):
        named["text"] = _attachment(content)
    if url := web_url(row.component.manifest.license.declared_at):
        named["url"] = url
    return named


def _evidence(row: Row) -> Json:
    """What was found rather than concluded: the declaration where it stands nowhere else, texts and readings."""
    evidence: Json = {}
    declared, concluded = declared_tree(row), concluded_tree(row)
    if declared and concluded and not _listable(declared) and str(declared) != str(concluded):
        evidence["licenses"] = [{"expression": str(declared), "acknowledgement": "declared"}]
    else:
        names = [one_line(reading, MAX_NAME) for reading in sorted(row.component.readings)]
        found: list[Json] = [{"name": name} for name in dict.fromkeys(names) if name]
        found += [{"name": f"licence file {path}", "text": _attachment(content)} for path, content in _files_of(row)]
        if found:
            evidence["licenses"] = [{"license": license_} for license_ in found]
    copyrights = dict.fromkeys(one_line(text) for text in row.component.manifest.attribution.copyright)
    if lines := [{"text": line} for line in copyrights if line]:
        evidence["copyright"] = lines
    return evidence


def _files_of(row: Row) -> list[tuple[str, str]]:
    """(path, text) of its licence files. The hundreds of an environment stand in the third-party notices."""
    found = () if row.component.environment else row.component.texts
    return sorted({one_line(text.path): text.text for text in found if text.text.strip()}.items())


def _attachment(content: str) -> Json:
    return {"contentType": "text/plain", "content": content}


def _external_references(row: Row) -> list[Json]:
    manifest = row.component.manifest
    references: list[Json] = []
    if manifest.origin and (url := web_url(manifest.origin.url)):
        references.append({"type": "vcs" if manifest.origin.type == "git" else "distribution", "url": url})
        if manifest.origin.type == "hf" and TYPES[manifest.kind] == MODEL:
            references.append({"type": "model-card", "url": url})
    if url := web_url(manifest.license.declared_at):
        references.append({"type": "license", "url": url})
    return references


def _files(files: tuple[FileEntry, ...]) -> list[Json]:
    entries = {
        (file.path, file.sha256): {
            "type": "file",
            "name": file.path,
            "hashes": [{"alg": "SHA-256", "content": file.sha256}],
            "properties": [{"name": "glmserve:size", "value": str(file.size)}],
        }
        for file in files
    }
    return [entries[key] for key in sorted(entries)]


def _pedigree(row: Row, rows: dict[str, Row]) -> Json:
    ancestors = sorted(row.component.manifest.derived_from, key=lambda ancestor: (ancestor.id, ancestor.relation))
    notes = "; ".join(f"{ancestor.relation} of {ancestor.id}" for ancestor in ancestors)
    return {"ancestors": [_ancestor(ancestor, row, rows) for ancestor in ancestors], "notes": notes}


def _ancestor(ancestor: Ancestor, row: Row, rows: dict[str, Row]) -> Json:
    if ancestor.id in rows:
        known = rows[ancestor.id]
        # Its text stands at the component itself.
        licenses = _licenses(known, lambda identifier: None)
        return {**_identity(known), **({"licenses": licenses} if licenses else {})}
    return {"type": TYPES[row.component.manifest.kind], "name": ancestor.id}


def _model_card(row: Row, rows: dict[str, Row]) -> Json:
    manifest = row.component.manifest
    parameters: Json = {"task": TASKS[manifest.kind]}
    datasets = sorted(
        {a.id for a in manifest.derived_from if a.id in rows and rows[a.id].component.manifest.kind == "dataset"}
    )
    if datasets:
        parameters["datasets"] = [{"ref": _reference(name)} for name in datasets]
    return {"modelParameters": parameters}
