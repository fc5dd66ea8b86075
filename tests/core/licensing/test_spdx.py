"""SPDX 2.3: valid by the reference library, every LicenseRef with a text, and the same bytes twice."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from glmserve.api import ConfigError, GlmserveError
from glmserve.licensing.expressions import licenses, parse
from glmserve.licensing.outputs.exports import serialise
from glmserve.licensing.outputs.spdx import document
from glmserve.licensing.report import Report
from hypothesis import HealthCheck, given, settings
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from .generated import reports
from .reports import DRAFTER, component, p0, p1, report, row, runtime, text


def no_text(identifier: str) -> str | None:
    return None


def made(drawn: Report, **options: Any) -> dict[str, Any]:
    """The document, after it was found to be valid."""
    spdx = document(drawn, no_text, **options)
    assert validate_full_spdx_document(JsonLikeDictParser().parse(spdx), "SPDX-2.3") == []
    return spdx


def by_name(spdx: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {package["SPDXID"].removeprefix("SPDXRef-Component-"): package for package in spdx["packages"]}


def extracted(spdx: dict[str, Any]) -> dict[str, str]:
    return {info["licenseId"]: info["extractedText"] for info in spdx["hasExtractedLicensingInfos"]}


def relations(spdx: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (
            relation["spdxElementId"].removeprefix("SPDXRef-"),
            relation["relationshipType"],
            relation["relatedSpdxElement"].removeprefix("SPDXRef-"),
        )
        for relation in spdx["relationships"]
    }


@pytest.mark.parametrize("drawn", [p0(), p1(), report([])], ids=["p0", "p1", "empty"])
def test_a_document_is_valid(drawn: Report) -> None:
    made(drawn)


def test_a_choice_shows_in_what_is_concluded() -> None:
    dual = by_name(made(p1()))["py-dual"]
    assert (dual["licenseDeclared"], dual["licenseConcluded"]) == ("MIT OR GPL-3.0-only", "MIT")


def test_unknown_is_no_assertion() -> None:
    bad = row(component("bad", "code", "MIT OR OR"), concluded="")
    packages = by_name(made(p1(bad)))
    for name in ("bad", "py-silent"):
        assert packages[name]["licenseDeclared"] == packages[name]["licenseConcluded"] == "NOASSERTION"
    assert packages["bad"]["licenseComments"] == "What is declared is no SPDX expression: MIT OR OR"


def test_a_text_that_is_not_carried_is_replaced_by_where_to_read_it() -> None:
    assert extracted(made(p1())) == {
        "LicenseRef-GLM-5.3": "The text of LicenseRef-GLM-5.3 is not part of this document; its publisher keeps it at "
        "https://huggingface.co/zai-org/GLM-5.3/raw/main/LICENSE."
    }


def test_a_text_that_is_carried_stands_there_word_for_word() -> None:
    assert extracted(document(p1(), {"LicenseRef-GLM-5.3": "terms\r\n"}.get)) == {"LicenseRef-GLM-5.3": "terms\r\n"}
    own = row(component("foo", "code", "LicenseRef-Foo", texts=(text("LICENSE", "own terms\n"),)))
    assert extracted(made(report([own])))["LicenseRef-Foo"] == "own terms\n"


def test_of_several_licences_only_a_file_that_is_named_for_one_is_its_text() -> None:
    texts = (text("LICENSE", "all of them\n"), text("LICENSES/LicenseRef-Foo.txt", "foo\n"))
    own = row(component("foo", "code", "LicenseRef-Foo AND LicenseRef-Bar", texts=texts))
    found = extracted(made(report([own])))
    assert found["LicenseRef-Foo"] == "foo\n"
    assert "is not part of this document; ask its publisher" in found["LicenseRef-Bar"]


def test_spellings_that_differ_in_case_are_one_licence() -> None:
    upper, lower = component("foo", "code", "LicenseRef-FOO"), component("other", "code", "LicenseRef-foo AND MIT")
    spdx = made(report([row(upper), row(lower)]))
    assert list(extracted(spdx)) == ["LicenseRef-FOO"]
    assert by_name(spdx)["other"]["licenseDeclared"] == "LicenseRef-FOO AND MIT"


def test_a_licence_newer_than_the_list_is_a_reference() -> None:
    spdx = made(report([row(component("m", "weights", "OpenMDW-1.0"))]))
    assert by_name(spdx)["m"]["licenseDeclared"] == "LicenseRef-OpenMDW-1.0"
    assert list(extracted(spdx)) == ["LicenseRef-OpenMDW-1.0"]


def test_relations_tell_what_is_inside_and_what_was_made_from_what() -> None:
    found = relations(made(p1()))
    assert ("DOCUMENT", "DESCRIBES", "Profile") in found
    assert ("Profile", "CONTAINS", "Component-glmserve") in found
    assert ("Profile", "DEPENDS_ON", "Component-glm-5.3") in found
    assert ("Component-drafter-glm53-dflash2", "GENERATED_FROM", "Component-glm-5.3") in found
    assert ("Profile", "DEPENDS_ON", "Component-glmserve") in relations(made(p1(), stubs=["glmserve"]))


def test_an_ancestor_that_is_not_in_the_report_is_named_in_a_comment() -> None:
    quant = component("q", "weights", "MIT", derived_from=[{"id": "base", "relation": "quantize"}])
    relation = made(report([row(quant)]))["relationships"][-1]
    assert relation["relatedSpdxElement"] == "NOASSERTION"
    assert relation["comment"] == "quantize of base"


def test_identifiers_stay_apart_where_only_an_underscore_told_them() -> None:
    rows = [row(component(name, "code", "MIT")) for name in ("a_b", "a-b", "a.b")]
    identifiers = [package["SPDXID"] for package in made(report(rows))["packages"]]
    assert len(set(identifiers)) == 4


def test_a_fetched_model_has_its_place_and_its_digest() -> None:
    package = by_name(made(p1()))["drafter-glm53-dflash2"]
    assert package["downloadLocation"] == f"git+https://huggingface.co/incoai/GLM-5.3-DFlash2@{DRAFTER}"
    assert package["checksums"] == [{"algorithm": "SHA256", "checksumValue": "d" * 64}]
    assert package["filesAnalyzed"] is False


def test_upstream_notices_are_attribution_texts() -> None:
    assert by_name(made(p1()))["glmserve"]["attributionTexts"] == ["Kernels\nCopyright 2025 The Kernel Authors\n"]


def test_the_clock_is_read_by_nobody() -> None:
    assert made(p1())["creationInfo"]["created"] == "1970-01-01T00:00:00Z"
    assert made(p1(), epoch=1_800_000_000)["creationInfo"]["created"] == "2027-01-15T08:00:00Z"


def test_an_impossible_date_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="SOURCE_DATE_EPOCH is 1000000000000000, which is no date"):
        document(p1(), no_text, epoch=10**15)


def test_the_order_of_rows_is_irrelevant_and_contents_are_not() -> None:
    rows = list(p1().rows)
    random.Random(1).shuffle(rows)
    assert serialise(made(replace(p1(), rows=tuple(rows)))) == serialise(made(p1()))
    assert made(p0())["documentNamespace"] != made(p1())["documentNamespace"]


def test_two_components_of_one_name_are_an_error() -> None:
    with pytest.raises(GlmserveError, match=r"called glmserve, .* another id"):
        document(report([row(runtime()), row(runtime())]), no_text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_any_report_makes_a_valid_document(drawn: Report) -> None:
    spdx = made(drawn)
    texts = extracted(spdx)
    assert all(words.strip() for words in texts.values())
    for package in spdx["packages"]:
        for expression in {package["licenseDeclared"], package["licenseConcluded"]} - {"NOASSERTION"}:
            used = {leaf.id for leaf in licenses(parse(expression))}
            assert {name for name in used if name.startswith("LicenseRef-")} <= set(texts)
    assert serialise(made(drawn)) == serialise(spdx)
