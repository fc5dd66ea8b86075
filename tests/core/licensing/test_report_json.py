"""The report for programs: complete, stable, and free of this machine."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from glmserve.api import GlmserveError
from glmserve.licensing.outputs.exports import serialise
from glmserve.licensing.outputs.report_json import to_json
from glmserve.licensing.report import Finding, Reason, Report, Verdict
from hypothesis import HealthCheck, given, settings

from .generated import reports
from .reports import DRAFTER, component, p0, p1, report, row, runtime

FIELDS = Path(__file__).parents[3] / "docs" / "licenses-json.md"


def test_a_component_says_what_it_is_and_what_may_be_done_with_it() -> None:
    drafter = next(c for c in to_json(p1())["components"] if c["id"] == "drafter-glm53-dflash2")
    assert drafter["origin"]["revision"] == DRAFTER
    assert drafter["publisher"] == "incoai"
    assert drafter["derived_from"] == [{"id": "glm-5.3", "relation": "distill"}]
    assert drafter["to_confirm"] == ["the wording of the model card"]
    assert drafter["uses"]["run-local"] == {"verdict": "allow", "counted": True, "findings": []}
    commercial = drafter["uses"]["run-commercial"]
    assert commercial["verdict"] == "deny"
    assert commercial["findings"][0]["code"] == "NC_PURPOSE"
    assert commercial["findings"][0]["clause"] == "2(a)(1)"
    assert len(commercial["findings"][0]["remedies"]) == 3
    assert drafter["uses"]["redistribute-image"]["counted"] is False


def test_declared_and_concluded_are_told_apart() -> None:
    dual = next(c for c in to_json(p1())["components"] if c["id"] == "py-dual")
    assert (dual["declared"], dual["concluded"]) == ("MIT OR GPL-3.0-only", "MIT")


def test_totals_count_what_counts() -> None:
    document = to_json(p1())
    assert document["totals"]["run-commercial"] == {"allow": 1, "deny": 1, "needs-action": 2, "not-counted": 3}
    assert document["totals"]["redistribute-image"] == {"allow-with-conditions": 3, "unknown": 1, "not-counted": 3}
    assert document["verdicts"]["run-commercial"] == "deny"


def test_a_changed_file_shows_at_the_top() -> None:
    changed = Finding(Reason.HASH_MISMATCH, Verdict.DENY, "A file is not what it was.")
    broken = replace(runtime(), findings=(changed,))
    assert to_json(report([row(broken)]))["intact"] is False
    assert to_json(p0())["intact"] is True
    assert to_json(p0())["records_intact"] is True
    assert to_json(replace(p0(), records_intact=False))["records_intact"] is False


def test_the_versions_of_what_judged_stand_in_it() -> None:
    assert to_json(p0())["versions"] == {"glmserve": "0.1.0", "catalogue": "2026.11.30", "spdx-list": "3.27.0"}


def test_nothing_of_this_machine_is_in_it(tmp_path: Path) -> None:
    here = replace(runtime(), root=tmp_path)
    assert str(tmp_path) not in serialise(to_json(report([row(here)])))


def test_every_field_is_described_and_every_description_is_of_a_field() -> None:
    described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?`) \|", FIELDS.read_text("utf-8"), re.M))))
    document = to_json(p1())
    assert described == {*document, *document["components"][0]}


def test_the_order_of_rows_is_irrelevant() -> None:
    rows = list(p1().rows)
    random.Random(1).shuffle(rows)
    assert serialise(to_json(replace(p1(), rows=tuple(rows)))) == serialise(to_json(p1()))


def test_two_components_of_one_name_are_an_error() -> None:
    with pytest.raises(GlmserveError, match=r"called glmserve, .* another id"):
        to_json(report([row(runtime()), row(runtime())]))


def test_a_terminal_sees_no_control_sequence() -> None:
    name = "\x1b[2J\u202eevil"
    text = serialise(to_json(report([row(component("x", "code", "MIT", name=name))])))
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text)["components"][0]["name"] == name


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_any_report_survives_the_way_to_another_program(drawn: Report) -> None:
    document = to_json(drawn)
    text = serialise(document)
    assert json.loads(text) == document
    text.encode("utf-8")
    json.dumps(document, ensure_ascii=False).encode("utf-8")
    for use in drawn.uses:
        assert sum(document["totals"][use].values()) == len(drawn.rows)
