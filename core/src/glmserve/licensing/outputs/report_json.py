"""A report as JSON, schema "glmserve.licenses/1": for programs. The fields stand in docs/licenses-json.md."""

from __future__ import annotations

from collections import Counter
from typing import Any

from glmserve.api.components import Origin

from ..report import Finding, Report, Row, Ruling, Use
from .exports import ordered
from .plain import well_formed

SCHEMA = "glmserve.licenses/1"


def to_json(report: Report) -> dict[str, Any]:
    """Everything a report says, without timestamps and paths of this machine. Raises GlmserveError for ids that repeat.

    Values stand as they were found; only what no JSON text can hold is replaced.
    """
    rows = ordered(report)
    document = {
        "schema": SCHEMA,
        "profile": report.profile,
        "uses": [str(use) for use in report.uses],
        "commercial": report.commercial,
        "strict": report.strict,
        "intact": report.intact,
        "records_intact": report.records_intact,
        "verdicts": {str(use): report.verdicts[use].slug for use in report.uses},
        "totals": {str(use): _totals(rows, use) for use in report.uses},
        "components": [_component(row, report) for row in rows],
        "versions": dict(report.versions),
        "warnings": sorted(report.warnings),
    }
    cleaned: dict[str, Any] = well_formed(document)
    return cleaned


def _totals(rows: tuple[Row, ...], use: Use) -> dict[str, int]:
    rulings = [row.rulings[use] for row in rows]
    return dict(Counter(ruling.verdict.slug if ruling.counted else "not-counted" for ruling in rulings))


def _component(row: Row, report: Report) -> dict[str, Any]:
    component = row.component
    manifest = component.manifest
    return {
        "id": component.id,
        "name": manifest.name,
        "kind": manifest.kind,
        "version": manifest.version,
        "delivery": manifest.delivery,
        "environment": component.environment,
        "distribution": component.distribution,
        "origin": _origin(manifest.origin) if manifest.origin else None,
        "publisher": manifest.origin.publisher if manifest.origin else "",
        "source": component.source,
        "declared": row.declared,
        "declared_at": manifest.license.declared_at,
        "concluded": row.concluded,
        "readings": sorted(component.readings),
        "texts": [{"path": text.path, "sha256": text.sha256} for text in component.texts],
        "derived_from": [{"id": a.id, "relation": a.relation} for a in manifest.derived_from],
        "to_confirm": list(manifest.to_confirm),
        "uses": {str(use): _ruling(row.rulings[use]) for use in report.uses},
    }


def _origin(origin: Origin) -> dict[str, str]:
    return {"type": origin.type, "url": origin.url, "revision": origin.revision}


def _ruling(ruling: Ruling) -> dict[str, Any]:
    return {
        "verdict": ruling.verdict.slug,
        "counted": ruling.counted,
        "findings": [_finding(finding) for finding in ruling.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": str(finding.code),
        "verdict": finding.verdict.slug,
        "message": finding.message,
        "clause": finding.clause,
        "remedies": list(finding.remedies),
    }
