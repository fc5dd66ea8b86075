"""CycloneDX: valid by the official schemas, true beyond them, and the same bytes twice."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from glmserve.api import ConfigError, GlmserveError
from glmserve.licensing.expressions import parse
from glmserve.licensing.outputs.cyclonedx import document
from glmserve.licensing.outputs.exports import serialise
from glmserve.licensing.report import Report
from hypothesis import HealthCheck, given, settings
from packageurl import PackageURL
from packaging.licenses import _spdx

from .generated import reports
from .reports import DRAFTER, GLM, component, drafter, p0, p1, report, row, runtime

VALIDATORS = {version: JsonStrictValidator(version) for version in (SchemaVersion.V1_6, SchemaVersion.V1_7)}


def no_text(identifier: str) -> str | None:
    return None


def made(drawn: Report, **options: Any) -> dict[str, Any]:
    """The document, after it was found to be valid."""
    bom = document(drawn, no_text, **options)
    assert VALIDATORS[SchemaVersion.V1_6].validate_str(serialise(bom)) is None
    return bom


def by_reference(bom: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {part["bom-ref"].removeprefix("component:"): part for part in bom["components"]}


def properties(part: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in part["properties"]}


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["bom-ref"]] if "bom-ref" in value else []
        return [*own, *(found for item in value.values() for found in references(item))]
    return [found for item in value for found in references(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("drawn", [p0(), p1(), report([])], ids=["p0", "p1", "empty"])
def test_a_document_is_valid_in_both_versions(drawn: Report) -> None:
    bom = made(drawn)
    assert VALIDATORS[SchemaVersion.V1_7].validate_str(serialise({**bom, "specVersion": "1.7"})) is None


def test_models_have_a_card_and_an_address() -> None:
    parts = by_reference(made(p1()))
    for name, purl in (
        ("glm-5.3", f"pkg:huggingface/zai-org/GLM-5.3@{GLM}"),
        ("drafter-glm53-dflash2", f"pkg:huggingface/incoai/GLM-5.3-DFlash2@{DRAFTER}"),
    ):
        assert parts[name]["type"] == "machine-learning-model"
        assert parts[name]["modelCard"]["modelParameters"]["task"]
        assert parts[name]["purl"] == purl
    assert "modelCard" not in parts["glm-5.3-tokenizer"]
    assert parts["glmserve"]["purl"] == "pkg:pypi/glmserve@0.1.0"


def test_a_licence_off_the_list_has_a_name_and_no_identifier() -> None:
    off = row(component("foo", "code", "LicenseRef-Foo"), concluded="LicenseRef-Foo")
    bad = row(component("bad", "code", "MIT OR OR"), concluded="")
    parts = by_reference(made(p1(off, bad)))
    assert [entry["license"]["name"] for entry in parts["foo"]["licenses"]] == ["LicenseRef-Foo"] * 2
    assert parts["bad"]["licenses"] == [{"license": {"name": "MIT OR OR", "acknowledgement": "declared"}}]
    assert "licenses" not in parts["py-silent"]


def test_declaration_and_conclusion_both_stand_there() -> None:
    parts = by_reference(made(p1()))
    assert parts["drafter-glm53-dflash2"]["licenses"] == [
        {"license": {"id": "CC-BY-NC-ND-4.0", "acknowledgement": "declared"}},
        {"license": {"id": "CC-BY-NC-ND-4.0", "acknowledgement": "concluded"}},
    ]
    dual = parts["py-dual"]
    assert dual["licenses"] == [{"license": {"id": "MIT", "acknowledgement": "concluded"}}]
    assert dual["evidence"]["licenses"] == [{"expression": "MIT OR GPL-3.0-only", "acknowledgement": "declared"}]


def test_what_is_no_single_identifier_is_an_expression_alone() -> None:
    for text in ("Apache-2.0+", "Apache-2.0 WITH LLVM-exception", "MIT AND ISC"):
        part = by_reference(made(report([row(component("x", "code", text))])))["x"]
        assert part["licenses"] == [{"expression": text, "acknowledgement": "concluded"}]


def test_the_text_of_a_licence_off_the_list_is_there_when_it_is_known() -> None:
    bom = document(p0(), {"LicenseRef-GLM-5.3": "terms\n"}.get)
    licence = by_reference(bom)["glm-5.3"]["licenses"][0]["license"]
    assert licence["text"] == {"contentType": "text/plain", "content": "terms\n"}
    assert licence["url"] == "https://huggingface.co/zai-org/GLM-5.3/raw/main/LICENSE"


def test_digests_are_those_of_the_manifest() -> None:
    parts = by_reference(made(p1()))
    assert parts["drafter-glm53-dflash2"]["hashes"] == [{"alg": "SHA-256", "content": "d" * 64}]
    shards = parts["glm-5.3"]["components"]
    assert [shard["hashes"][0]["content"] for shard in shards] == ["a" * 64, "b" * 64]
    assert "hashes" not in parts["glm-5.3"]


def test_an_ancestor_stands_there_with_its_licence() -> None:
    pedigree = by_reference(made(p1()))["drafter-glm53-dflash2"]["pedigree"]
    assert pedigree["notes"] == "distill of glm-5.3"
    assert pedigree["ancestors"][0]["licenses"][0]["license"]["name"] == "LicenseRef-GLM-5.3"


def test_what_is_not_shared_is_incomplete() -> None:
    bom = made(p1())
    fetched = ["component:drafter-glm53-dflash2", "component:glm-5.3", "component:glm-5.3-tokenizer"]
    assert bom["compositions"] == [{"aggregate": "incomplete", "assemblies": fetched}]
    assert "compositions" not in made(report([row(drafter())], strict=True))
    chosen = made(p1(), stubs=["glmserve"])
    assert chosen["compositions"] == [{"aggregate": "incomplete", "assemblies": ["component:glmserve"]}]


def test_verdicts_are_properties() -> None:
    bom = made(p1())
    values = properties(by_reference(bom)["drafter-glm53-dflash2"])
    assert values["glmserve:use:run-commercial"] == "deny"
    assert values["glmserve:use:run-commercial:reasons"] == "NC_PURPOSE"
    assert values["glmserve:use:redistribute-image:counted"] == "false"
    assert properties(bom["metadata"])["glmserve:use:run-commercial"] == "deny"
    assert properties(bom["metadata"])["glmserve:version:catalogue"] == "2026.11.30"


def test_the_clock_is_read_by_nobody() -> None:
    assert "timestamp" not in made(p1())["metadata"]
    assert made(p1(), epoch=0)["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"


def test_an_impossible_date_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="SOURCE_DATE_EPOCH is 1000000000000000, which is no date"):
        document(p1(), no_text, epoch=10**15)


def test_the_order_of_rows_is_irrelevant_and_contents_are_not() -> None:
    rows = list(p1().rows)
    random.Random(1).shuffle(rows)
    assert serialise(made(replace(p1(), rows=tuple(rows)))) == serialise(made(p1()))
    assert made(p0())["serialNumber"] != made(p1())["serialNumber"]


def test_two_components_of_one_name_are_an_error() -> None:
    with pytest.raises(GlmserveError, match=r"called glmserve, .* another id"):
        document(report([row(runtime()), row(runtime())]), no_text)


def test_a_malformed_conclusion_is_an_error_and_not_a_lesser_document() -> None:
    with pytest.raises(GlmserveError, match="concluded for glmserve is no SPDX expression"):
        document(report([row(runtime(), concluded="MIT OR")]), no_text)


def test_the_schema_knows_every_identifier_that_an_expression_can_have() -> None:
    identifiers = sorted(entry["id"] for entry in _spdx.LICENSES.values())
    rows = [row(component(f"c{i}", "code", str(parse(name)))) for i, name in enumerate(identifiers)]
    parts = made(report(rows))["components"]
    assert sorted(part["licenses"][0]["license"]["id"] for part in parts) == identifiers


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_any_report_makes_a_valid_document(drawn: Report) -> None:
    bom = made(drawn)
    named = references(bom)
    assert len(named) == len(set(named))
    assert len(bom["components"]) == len(drawn.rows)
    for part in bom["components"]:
        if "purl" in part:
            # The library lowers the versions of a hub, escapes included.
            assert PackageURL.from_string(part["purl"]).to_string().lower() == part["purl"].lower()
        for entry in [*part.get("licenses", []), *part.get("evidence", {}).get("licenses", [])]:
            if "expression" in entry:
                parse(entry["expression"])
    assert serialise(made(drawn)) == serialise(bom)
