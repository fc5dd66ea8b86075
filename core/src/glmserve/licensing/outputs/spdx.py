"""A report as an SPDX 2.3 document. Models are packages of purpose OTHER: this version has no kind for them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from glmserve.api.components import Ancestor

from ..expressions import ADDITIONS, And, Expression, License, Or, licenses
from ..report import Report, Row
from .exports import (
    TextOf,
    concluded_tree,
    content_uuid,
    declared_tree,
    git_location,
    left_out,
    ordered,
    package_url,
    reference_text,
    timestamp,
    version_of,
    web_url,
)
from .plain import one_line, well_formed

PURPOSES = {"code": "LIBRARY", "native-lib": "LIBRARY", "image-base": "CONTAINER"}
RELATIONS = {"verbatim": "COPY_OF", "vendored": "CONTAINS", "snippet": "CONTAINS"}
"""Other relations to an ancestor are GENERATED_FROM; the comment of the relationship names them."""
NAMESPACE = "https://spdx.org/spdxdocs"
NOASSERTION = "NOASSERTION"
PROFILE = "SPDXRef-Profile"

Json = dict[str, Any]


def document(
    report: Report, text_of: TextOf, *, stubs: Collection[str] | None = None, epoch: int | None = None
) -> Json:
    """The document as JSON values. Equal reports give equal documents, in whatever order their rows are.

    `stubs` are ids of components that are named but left out; None: those that no share counts. `epoch`
    (SOURCE_DATE_EPOCH, seconds) is the date of creation, without which the format's required date is 1970.
    SHA-256 digests stand where a component is one file; SPDX 2.3 has no place for those of several files that were not
    analysed. Raises GlmserveError for a report that no document can express; there is no lesser document instead.
    """
    rows = ordered(report)
    out = left_out(report, stubs)
    names = _names(rows)
    spellings = _spellings(rows)
    name = one_line(report.profile) or "profile"
    spdx: Json = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "creationInfo": _creation(report, epoch),
        "packages": [_profile(report, name), *(_package(row, report, names, spellings, out) for row in rows)],
        "relationships": _relationships(rows, names, out),
        "hasExtractedLicensingInfos": _extracted(rows, spellings, text_of),
    }
    spdx = well_formed(spdx)
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")[:64]
    spdx["documentNamespace"] = "-".join(filter(None, [f"{NAMESPACE}/glmserve", slug, str(content_uuid(spdx))]))
    return spdx


def _names(rows: tuple[Row, ...]) -> dict[str, str]:
    """Component id -> SPDXID, which has no underscores and may not repeat."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for component_id in sorted(row.component.id for row in rows):
        plain = f"SPDXRef-Component-{re.sub(r'[^A-Za-z0-9.-]', '-', component_id)}"
        name, count = plain, 1
        while name in taken:
            count += 1
            name = f"{plain}-{count}"
        taken.add(name)
        names[component_id] = name
    return names


def _leaves(row: Row) -> list[License]:
    trees = [tree for tree in (declared_tree(row), concluded_tree(row)) if tree is not None]
    return list(dict.fromkeys(leaf for tree in trees for leaf in licenses(tree)))


def _reference(leaf: License) -> str | None:
    """The LicenseRef under which a document names a licence that its list of licences does not have."""
    if leaf.id in ADDITIONS:
        return f"LicenseRef-{leaf.id}"
    return leaf.id if leaf.id.startswith("LicenseRef-") else None


def _spellings(rows: tuple[Row, ...]) -> dict[str, str]:
    """Case-folded LicenseRef -> its spelling in the document: of several, the first in the order of characters."""
    found = {reference for row in rows for leaf in _leaves(row) if (reference := _reference(leaf))}
    return {reference.casefold(): reference for reference in sorted(found, reverse=True)}


def _extracted(rows: tuple[Row, ...], spellings: dict[str, str], text_of: TextOf) -> list[Json]:
    texts: dict[str, str] = {}
    urls: dict[str, str] = {}
    for row in rows:
        for leaf in _leaves(row):
            if not (reference := _reference(leaf)):
                continue
            key = reference.casefold()
            if key not in texts and (text := reference_text(row, leaf.id, text_of)):
                texts[key] = text
            if url := web_url(row.component.manifest.license.declared_at):
                urls.setdefault(key, url)
    infos = []
    for key, reference in sorted(spellings.items()):
        info: Json = {"licenseId": reference, "name": reference.removeprefix("LicenseRef-")}
        place = f"its publisher keeps it at {urls[key]}" if key in urls else "ask its publisher for it"
        info["extractedText"] = texts.get(key, f"The text of {reference} is not part of this document; {place}.")
        if key in urls:
            info["seeAlsos"] = [urls[key]]
        infos.append(info)
    return infos


def _expression(tree: Expression | None, spellings: dict[str, str]) -> str:
    return NOASSERTION if tree is None else str(_respelled(tree, spellings))


def _respelled(tree: Expression, spellings: dict[str, str]) -> Expression:
    if isinstance(tree, License):
        reference = _reference(tree)
        return License(spellings[reference.casefold()], tree.exception) if reference else tree
    terms = tuple(_respelled(term, spellings) for term in tree.terms)
    return And(terms) if isinstance(tree, And) else Or(terms)


def _creation(report: Report, epoch: int | None) -> Json:
    version = one_line(report.versions.get("glmserve", ""))
    creation: Json = {
        "created": timestamp(epoch or 0),
        "creators": [f"Tool: glmserve-{version}" if version else "Tool: glmserve"],
    }
    if epoch is None:
        creation["comment"] = "The date is not recorded, so that equal contents make equal documents."
    if match := re.match(r"\d+\.\d+", report.versions.get("spdx-list", "")):
        creation["licenseListVersion"] = match[0]
    return creation


def _profile(report: Report, name: str) -> Json:
    return {
        "SPDXID": PROFILE,
        "name": name,
        "downloadLocation": NOASSERTION,
        "filesAnalyzed": False,
        "licenseDeclared": NOASSERTION,
        # The whole has no licence of its own: each part keeps its own.
        "licenseConcluded": NOASSERTION,
        "copyrightText": NOASSERTION,
        "primaryPackagePurpose": "APPLICATION",
        "comment": "; ".join(f"{use}={report.verdicts[use].slug}" for use in report.uses),
    }


def _package(row: Row, report: Report, names: dict[str, str], spellings: dict[str, str], out: Collection[str]) -> Json:
    component = row.component
    manifest = component.manifest
    package: Json = {
        "SPDXID": names[component.id],
        "name": one_line(manifest.name) or component.id,
        "downloadLocation": _download_location(row),
        "filesAnalyzed": False,
        "licenseDeclared": _expression(declared_tree(row), spellings),
        "licenseConcluded": _expression(concluded_tree(row), spellings),
        "copyrightText": "\n".join(filter(None, map(one_line, manifest.attribution.copyright))) or NOASSERTION,
        "supplier": _supplier(manifest.origin.publisher if manifest.origin else ""),
        "primaryPackagePurpose": PURPOSES.get(manifest.kind, "OTHER"),
        "comment": _comment(row, report, component.id in out),
    }
    if version := version_of(component):
        package["versionInfo"] = version
    if purl := package_url(component):
        package["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
        ]
    if len(manifest.files) == 1:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": manifest.files[0].sha256}]
    if declared_tree(row) is None and (found := one_line(row.declared, 256)):
        package["licenseComments"] = f"What is declared is no SPDX expression: {found}"
    if notices := [notice for notice in component.notices if notice.strip()]:
        package["attributionTexts"] = notices
    return package


def _download_location(row: Row) -> str:
    origin = row.component.manifest.origin
    if origin is None:
        return NOASSERTION
    return git_location(origin) or web_url(origin.url) or NOASSERTION


def _supplier(publisher: str) -> str:
    # Parentheses hold an e-mail address there.
    name = one_line(publisher).replace("(", "[").replace(")", "]")
    return f"Organization: {name}" if name else NOASSERTION


def _comment(row: Row, report: Report, absent: bool) -> str:
    parts = [f"{row.component.manifest.kind}, {row.component.manifest.delivery}"]
    if absent:
        parts.append("not part of what this document describes: its user fetches it from its publisher")
    for use in report.uses:
        ruling = row.rulings[use]
        codes = sorted({str(finding.code) for finding in ruling.findings})
        parts.append(f"{use}={ruling.verdict.slug}" + (f" ({' '.join(codes)})" if codes else ""))
    return "; ".join(parts)


def _relationships(rows: tuple[Row, ...], names: dict[str, str], out: Collection[str]) -> list[Json]:
    relationships = [_relationship("SPDXRef-DOCUMENT", "DESCRIBES", PROFILE)]
    for row in rows:
        component = row.component
        inside = component.manifest.delivery == "bundled" and not component.environment and component.id not in out
        relationships.append(_relationship(PROFILE, "CONTAINS" if inside else "DEPENDS_ON", names[component.id]))
        ancestors = sorted(component.manifest.derived_from, key=lambda ancestor: (ancestor.id, ancestor.relation))
        relationships += [_derivation(names[component.id], ancestor, names) for ancestor in ancestors]
    return relationships


def _derivation(name: str, ancestor: Ancestor, names: dict[str, str]) -> Json:
    kind = RELATIONS.get(ancestor.relation, "GENERATED_FROM")
    return {
        **_relationship(name, kind, names.get(ancestor.id, NOASSERTION)),
        "comment": f"{ancestor.relation} of {ancestor.id}",
    }


def _relationship(element: str, kind: str, related: str) -> Json:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}
