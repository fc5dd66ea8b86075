"""NOTICE and THIRD_PARTY_NOTICES.md: what has to travel with copies does, word for word and once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from glmserve.licensing.catalogue import load_catalogue
from glmserve.licensing.outputs.notices import notice, third_party
from glmserve.licensing.report import Report
from hypothesis import HealthCheck, given, settings

from .generated import reports
from .reports import MIT_TEXT, component, drafter, installed, p1, report, row, runtime, text

KERNELS = "Kernels\nCopyright 2025 The Kernel Authors\n"


def no_text(identifier: str) -> str | None:
    return None


def test_a_notice_of_others_is_carried_word_for_word() -> None:
    odd = "  Product X\n\tÄ copyright (c) 1999\n\n  indented\n"
    assert odd in notice(report([row(component("x", "code", "Apache-2.0", notices=(odd,)))]))


def test_the_notice_of_an_installed_distribution_is_carried_too() -> None:
    assert KERNELS in notice(report([row(installed("dist", "1", "Apache-2.0", notices=(KERNELS,)))]))


def test_one_notice_of_several_stands_there_once_under_all_their_names() -> None:
    one = component("one", "code", "Apache-2.0", notices=(KERNELS,))
    two = component("two", "code", "Apache-2.0", notices=(f"\n{KERNELS}\n",))
    made = notice(report([row(one), row(two)]))
    assert made.count("The Kernel Authors") == 1
    assert "NOTICE of one and two\n" in made


def test_notices_that_differ_at_all_are_both_carried() -> None:
    windows = KERNELS.replace("\n", "\r\n")
    one, two = (component(name, "code", "MIT", notices=(t,)) for name, t in (("one", KERNELS), ("two", windows)))
    made = notice(report([row(one), row(two)]))
    assert KERNELS.strip() in made
    assert windows.strip() in made


def test_creative_commons_gets_the_attribution_that_it_asks_for() -> None:
    made = notice(report([row(drafter())]))
    block = made[made.index("Attributions") :]
    assert (
        block
        == """\
Attributions

GLM-5.3-DFlash2 425aa615
  Creator: incoai
  Copyright: incoai
  Licence: Creative Commons Attribution-NonCommercial-NoDerivatives 4.0 International (CC-BY-NC-ND-4.0), \
https://creativecommons.org/licenses/by-nc-nd/4.0/
  Source: https://huggingface.co/incoai/GLM-5.3-DFlash2 at 425aa615ce320caac34400208b30808c8f14f76c
  Changes: none; it is as its publisher gives it
  Warranties: none; the licence disclaims them and limits liability.
"""
    )


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        ("CC-BY-4.0", "Creative Commons Attribution 4.0 International (CC-BY-4.0), https://creativecommons.org/licenses/by/4.0/"),
        ("CC-BY-SA-3.0-DE", "Attribution-ShareAlike 3.0 DE (CC-BY-SA-3.0-DE), https://creativecommons.org/licenses/by-sa/3.0/de/"),
        ("CC-BY-NC-2.5", "Attribution-NonCommercial 2.5 (CC-BY-NC-2.5), https://creativecommons.org/licenses/by-nc/2.5/"),
    ],
)  # fmt: skip
def test_the_name_and_address_of_a_licence_follow_from_its_identifier(identifier: str, expected: str) -> None:
    assert expected in notice(report([row(component("x", "docs", identifier))]))


def test_a_dedication_asks_for_no_attribution() -> None:
    assert "Attributions" not in notice(report([row(component("x", "docs", "CC0-1.0"))]))


def test_changes_are_indicated() -> None:
    ancestor = {"id": "drafter-glm53-dflash2", "relation": "quantize"}
    changed = component("small", "drafter", "CC-BY-NC-ND-4.0", derived_from=[ancestor])
    assert "  Changes: made from GLM-5.3-DFlash2 (quantize)\n" in notice(report([row(drafter()), row(changed)]))


def test_what_is_left_out_is_said_to_be() -> None:
    fetched = "its user fetches it from its publisher"
    assert fetched not in notice(report([row(drafter())]))
    assert notice(report([row(drafter())]), stubs=["drafter-glm53-dflash2"]).count(fetched) == 2
    assert third_party(p1(), no_text).count("fetched by its user") == 3


def test_each_distinct_text_stands_there_once_with_all_it_covers() -> None:
    rows = [
        row(component(name, "code", "MIT", texts=(text("LICENSE", MIT_TEXT),), attribution={"copyright": [name * 3]}))
        for name in ("one", "two")
    ]
    made = third_party(report(rows), no_text)
    assert made.count("Permission is hereby granted") == 1
    assert (
        "### LICENSE\n\nFor one (LICENSE) and two (LICENSE).\n\n- oneoneone\n- twotwotwo\n\n```text\nMIT License\n"
        in made
    )
    assert "Without a text" not in made


def test_the_catalogue_lends_the_texts_that_a_component_lacks() -> None:
    lent = {"MIT": "mit text\n", "Apache-2.0 WITH LLVM-exception": "apache text with more\n"}
    rows = [
        row(component("bare", "code", "MIT OR GPL-3.0-only"), concluded="MIT"),
        row(component("with", "code", "Apache-2.0 WITH LLVM-exception")),
    ]
    made = third_party(report(rows), lent.get)
    assert "### MIT\n\nFor bare.\n\n```text\nmit text\n```" in made
    assert "### Apache-2.0 WITH LLVM-exception\n\nFor with.\n\n```text\napache text with more\n```" in made
    assert "Without a text" not in made


def test_a_text_without_its_exception_is_only_half_of_it() -> None:
    rows = [row(component("with", "code", "Apache-2.0 WITH LLVM-exception"))]
    made = third_party(report(rows), {"Apache-2.0": "apache text\n"}.get)
    assert "### Apache-2.0\n\nFor with.\n\n```text\napache text\n```" in made
    assert "- with: Apache-2.0 WITH LLVM-exception; ask its publisher for it." in made


def test_a_text_that_is_recognised_is_titled_with_what_it_is_and_not_lent_again() -> None:
    catalogue = load_catalogue()
    mit = catalogue.text_of("MIT")
    assert mit is not None
    both = component("both", "code", "MIT AND Zlib", texts=(text("COPYING", f"Copyright (c) 2020 Somebody\n\n{mit}"),))
    made = third_party(report([row(both)]), catalogue.text_of)
    assert "### MIT\n\nFor both (COPYING).\n\n```text\nCopyright (c) 2020 Somebody\n" in made
    assert "### Zlib\n\nFor both.\n" in made
    assert made.count("### ") == 2


def test_a_component_that_only_mentions_its_licence_gets_the_text() -> None:
    mention = component("mention", "code", "MPL-2.0", texts=(text("LICENSE", "See the MPL 2.0.\n"),))
    made = third_party(report([row(mention)]), {"MPL-2.0": "all of it\n"}.get)
    assert "### LICENSE\n\nFor mention (LICENSE).\n\n```text\nSee the MPL 2.0.\n```" in made
    assert "### MPL-2.0\n\nFor mention.\n\n```text\nall of it\n```" in made


def test_several_licences_with_one_file_get_the_texts_of_each() -> None:
    both = component("both", "code", "MIT AND Zlib", texts=(text("COPYING", "our terms\n"),))
    made = third_party(report([row(both)]), {"MIT": "mit text\n", "Zlib": "zlib text\n"}.get)
    assert all(words in made for words in ("our terms", "mit text", "zlib text"))


def test_a_text_that_nobody_carries_has_a_place_to_read_it() -> None:
    made = third_party(p1(), no_text)
    assert "- glm-5.3: LicenseRef-GLM-5.3; read it at https://huggingface.co/zai-org/GLM-5.3/raw/main/LICENSE." in made


def test_a_text_cannot_break_out_of_its_block_nor_a_name_out_of_its_cell() -> None:
    text_of = {"MIT": "a\n```\n# injected\n````\n"}.get
    name = "<b>a|b`c"
    part = component("x", "code", "MIT", attribution={"copyright": [name]})
    made = third_party(report([row(part)]), text_of)
    assert "`````text\na\n```\n# injected\n````\n`````\n" in made
    assert r"| \<b>a\|b\`c |" in made


def test_the_order_of_rows_is_irrelevant() -> None:
    rows = list(p1().rows)
    random.Random(1).shuffle(rows)
    shuffled = replace(p1(), rows=tuple(rows))
    assert notice(shuffled) == notice(p1())
    assert third_party(shuffled, no_text) == third_party(p1(), no_text)


def test_the_top_says_whose_it_is() -> None:
    assert notice(report([row(runtime())])).startswith(
        "four-spark\n"
        "Assembled with glmserve 0.1.0 from the parts below. Every part keeps its own licence.\n\n"
        "glmserve 0.1.0 (Apache-2.0)\n"
        "  Copyright 2026 the glmserve authors\n"
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_any_report_has_notices_that_can_be_written(drawn: Report) -> None:
    notice(drawn).encode("utf-8")
    made = third_party(drawn, no_text)
    made.encode("utf-8")
    assert all(f"| {row.component.id} |" in made for row in drawn.rows)
