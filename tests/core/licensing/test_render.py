"""The report for people: how it looks, and that nothing is lost whatever the width."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from glmserve.licensing.outputs.render import markdown, table
from glmserve.licensing.report import Report, Use, Verdict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .generated import reports
from .reports import NO_LICENCE, SHARES, component, drafter, installed, p0, p1, report, row, runtime


def test_a_report_is_a_table_and_then_the_reasons() -> None:
    drawn = p1(warnings=("An exception for old-part expired on 2026-01-01.",))
    assert (
        table(drawn, 100)
        == """\
What the licences of four-spark permit (shares judged as noncommercial)

                                                        run                redistribute   publish
  component              kind       licence             local  commercial  source  image  weights
  -----------------------------------------------------------------------------------------------
  glmserve               code       Apache-2.0          ok     ok          cond    cond   cond
! drafter-glm53-dflash2  drafter    CC-BY-NC-ND-4.0     ok     NO          stub    stub   stub
! glm-5.3-tokenizer      tokenizer  LicenseRef-GLM-5.3  ok     act         stub    stub   stub
! glm-5.3                weights    LicenseRef-GLM-5.3  ok     act         stub    stub   stub
! 3 Python distributions: 2 cond, 1 ?                   (?)    (?)         ?       ?      ?
! py-silent              code       none                (?)    (?)         ?       ?      ?
  -----------------------------------------------------------------------------------------------
! verdict                                               ok     NO          ?       ?      ?

ok: allowed; cond: allowed with conditions; act: a fact or an acceptance is missing; ?: unknown; NO:
denied; stub: not shared, each user fetches it from its publisher; in parentheses: not counted.

drafter-glm53-dflash2 (CC-BY-NC-ND-4.0): run-commercial denied: NC_PURPOSE [2(a)(1)]: The licence
  permits noncommercial purposes only.
  Options:
    (a) --drafter mtp, which uses GLM-5.3's own layer (LicenseRef-GLM-5.3);
    (b) --drafter none;
    (c) record a written grant from incoai under [[licenses.grants]].

py-silent (none): redistribute-source, redistribute-image and publish-weights unknown (not counted:
  run-local and run-commercial): NO_LICENSE: No licence is declared anywhere.
  Option: read its texts and record what they are under [[licenses.clarify]].

glm-5.3-tokenizer and glm-5.3 (LicenseRef-GLM-5.3): run-commercial needs action: GATE_FACTS_MISSING
  [2]: Commercial use is gated on maas_business and group_revenue_over_usd_10b_12m, which are
  undeclared.
  Options:
    (a) state maas_business under [licenses.facts];
    (b) state group_revenue_over_usd_10b_12m there.

drafter-glm53-dflash2 (CC-BY-NC-ND-4.0): redistribute-source, redistribute-image and publish-weights
  denied (not counted): PROJECT_POLICY: This project does not redistribute it, though the licence
  permits verbatim noncommercial sharing.

Not yet confirmed by a person:
  drafter-glm53-dflash2: the wording of the model card
  glm-5.3: the bytes of LICENSE at the pinned revision

Warning: An exception for old-part expired on 2026-01-01.

glmserve 0.1.0, licence catalogue 2026.11.30, SPDX licence list 3.27.0. An engineering check, not
legal advice.
"""
    )


def test_markdown_says_the_same() -> None:
    assert (
        markdown(p0())
        == r"""# What the licences of four-spark permit (shares judged as noncommercial)

|  | component | kind | licence | run-local | run-commercial | redistribute-source | redistribute-image | publish-weights |
|---|---|---|---|---|---|---|---|---|
|  | glmserve | code | Apache-2.0 | ok | ok | cond | cond | cond |
| **!** | glm-5.3-tokenizer | tokenizer | LicenseRef-GLM-5.3 | ok | act | stub | stub | stub |
| **!** | glm-5.3 | weights | LicenseRef-GLM-5.3 | ok | act | stub | stub | stub |
| **!** | verdict |  |  | ok | act | cond | cond | cond |

ok: allowed; cond: allowed with conditions; act: a fact or an acceptance is missing; stub: not shared, each user fetches it from its publisher.

## Reasons

- **glm-5.3-tokenizer and glm-5.3 (LicenseRef-GLM-5.3)**: run-commercial needs action: GATE_FACTS_MISSING \[2\]: Commercial use is gated on maas_business and group_revenue_over_usd_10b_12m, which are undeclared.
  - (a) state maas_business under \[licenses.facts\]
  - (b) state group_revenue_over_usd_10b_12m there

## Not yet confirmed by a person

- glm-5.3: the bytes of LICENSE at the pinned revision

glmserve 0.1.0, licence catalogue 2026.11.30, SPDX licence list 3.27.0. An engineering check, not legal advice.
"""  # noqa: E501
    )


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line[2:].startswith(start)]


def test_an_environment_in_order_is_one_line() -> None:
    rows = [row(installed(f"d{i}", "1", "MIT")) for i in range(63)]
    drawn = table(report([row(runtime()), *rows]), 100)
    assert "\n  63 Python distributions: 63 ok  " in drawn
    assert "py-d7" not in drawn
    assert "!" not in drawn


def test_a_distribution_that_needs_a_decision_is_listed_under_the_count() -> None:
    rows = [row(installed(name, "1", "MIT")) for name in "abc"]
    drawn = table(report([*rows, row(installed("odd", "1", ""), [NO_LICENCE])]), 100)
    assert "! 4 Python distributions: 3 ok, 1 ?" in drawn
    assert "! py-odd" in drawn
    assert "py-a" not in drawn


def test_what_does_not_count_is_in_parentheses_or_a_stub() -> None:
    drawn = table(p1(), 100)
    assert lines(drawn, "drafter-glm53")[0].split()[-5:] == ["ok", "NO", "stub", "stub", "stub"]
    assert lines(drawn, "py-silent")[0].split()[-5:] == ["(?)", "(?)", "?", "?", "?"]


def test_with_the_bytes_nothing_is_a_stub() -> None:
    rows = [row(drafter(), [replace(NO_LICENCE, verdict=Verdict.DENY, uses=SHARES)])]
    drawn = table(report(rows, strict=True, commercial=True), 100)
    assert "(shares judged as commercial, with the bytes that users would fetch)" in drawn
    assert lines(drawn, "drafter-glm53")[0].split()[-3:] == ["NO", "NO", "NO"]
    assert "stub" not in drawn


def test_one_use_has_one_column() -> None:
    drawn = table(report([row(runtime(), uses=[Use.REDISTRIBUTE_IMAGE])], [Use.REDISTRIBUTE_IMAGE]), 100)
    assert (
        drawn
        == """\
What the licences of four-spark permit (shares judged as noncommercial)

                               redistribute
  component  kind  licence     image
  -----------------------------------------
  glmserve   code  Apache-2.0  ok
  -----------------------------------------
  verdict                      ok

ok: allowed.

glmserve 0.1.0, licence catalogue 2026.11.30, SPDX licence list 3.27.0. An engineering check, not
legal advice.
"""
    )


def test_a_long_expression_is_wrapped_and_whole() -> None:
    names = ["MIT", "ISC", "Zlib", "0BSD", "BSD-3-Clause", "BSD-2-Clause", "Apache-2.0", "MPL-2.0"]
    drawn = table(report([row(component("many", "code", " AND ".join(names)))]), 100)
    head = drawn.split("\n\n")[1]
    assert max(map(len, head.splitlines())) <= 100
    column = head.splitlines()[1].index("licence")
    body = [line[column:].split("  ")[0] for line in head.splitlines()[3:-2]]
    assert " ".join(part.strip() for part in body) == " AND ".join(names)


def test_a_choice_shows_both_sides() -> None:
    dual = component("dual", "code", "MIT OR GPL-3.0-only")
    assert "MIT OR GPL-3.0-only -> MIT " in table(report([row(dual, concluded="MIT")]), 100)
    bad = component("bad", "code", "MIT OR OR")
    assert "MIT OR OR -> ? " in table(report([row(bad, concluded="")]), 100)


def test_nothing_in_a_report_can_steer_a_terminal() -> None:
    evil = "\x1b[2J\u202eTIM\r\nfake row"
    drawn = report([row(component("x", "code", evil), concluded="")], profile=evil, warnings=(evil,))
    for text in (table(drawn, 100), markdown(drawn)):
        assert not {"\x1b", "\u202e", "\r"} & set(text)
        assert "\nfake" not in text


def test_columns_stay_in_line_beside_wide_characters() -> None:
    rows = [row(component("x", "code", "\u6f22\u5b57"), concluded=""), row(component("y", "code", "MIT"))]
    wide, narrow = (lines(table(report(rows), 100), name)[0] for name in "xy")
    assert wide.index("ok") + 2 == narrow.index("ok")


def test_the_order_of_rows_is_irrelevant() -> None:
    rows = list(p1().rows)
    random.Random(1).shuffle(rows)
    shuffled = replace(p1(), rows=tuple(rows))
    assert table(shuffled, 100) == table(p1(), 100)
    assert markdown(shuffled) == markdown(p1())


@pytest.mark.parametrize("width", [1, 40, 80, 120, 100_000])
def test_no_width_loses_a_word(width: int) -> None:
    def words(text: str) -> list[str]:
        return sorted(word for word in text.split() if set(word) != {"-"})

    assert words(table(p1(), width)).count("NC_PURPOSE") == 1
    bare = [word for word in words(table(p1(), width)) if word not in ("Options:",)]
    assert bare == [word for word in words(table(p1(), 100)) if word not in ("Options:",)]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports(), st.integers(1, 200))
def test_every_component_and_every_bad_reason_is_told(drawn: Report, width: int) -> None:
    text, page = table(drawn, width), markdown(drawn)
    for one in drawn.rows:
        told = [f for use in drawn.uses for f in one.rulings[use].findings if f.verdict > Verdict.CONDITIONS]
        assert all(f.code in text and f.code in page for f in told)
        assert f"| {one.component.id} |" in page
        if told or not one.component.environment:
            assert lines(text, one.component.id)
    text.encode("utf-8")
    page.encode("utf-8")
