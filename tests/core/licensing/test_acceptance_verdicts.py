"""The acceptance cases of the specification that are about verdicts, each by its number."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from glmserve.api import ConfigError
from glmserve.licensing.report import Finding, Reason, Report, Use, Verdict

from .parts import (
    GLM_TEXT,
    OTHER_REVISION,
    REVISION,
    drafter,
    glm,
    judged,
    p0,
    p1,
    part,
    reasons,
    runtime,
    verdict_of,
)

GATE = ("maas_business", "group_revenue_over_usd_10b_12m")
COMMERCIAL, LOCAL = Use.RUN_COMMERCIAL, Use.RUN_LOCAL
SOURCE, IMAGE, PUBLISH = Use.REDISTRIBUTE_SOURCE, Use.REDISTRIBUTE_IMAGE, Use.PUBLISH_WEIGHTS
SHARES = (SOURCE, IMAGE, PUBLISH)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "paper.pdf"
    path.write_bytes(b"signed")
    return {"document": str(path), "sha256": hashlib.sha256(b"signed").hexdigest()}


def single(expression: str, use: Use, **changes: Any) -> tuple[Verdict, set[Reason], Report]:
    report = judged([part("x", expression, **changes)])
    return verdict_of(report, use), reasons(report, use, "x"), report


def test_a01_glm_runs_locally() -> None:
    assert verdict_of(judged(p0()), LOCAL) is Verdict.ALLOW


def test_a02_commercial_use_of_glm_asks_for_facts() -> None:
    report = judged(p0())
    assert verdict_of(report, COMMERCIAL) is Verdict.ACTION
    assert Reason.GATE_FACTS_MISSING in reasons(report, COMMERCIAL, "glm-5.3")


def test_a03_who_is_no_model_as_a_service_business_may() -> None:
    assert verdict_of(judged(p0(), facts={GATE[0]: False}), COMMERCIAL) is Verdict.ALLOW


def test_a04_who_earns_less_may() -> None:
    assert verdict_of(judged(p0(), facts={GATE[0]: True, GATE[1]: False}), COMMERCIAL) is Verdict.ALLOW


@pytest.mark.parametrize("service", [False, True])
def test_a05_a_large_service_business_may_not_even_inside(service: bool) -> None:
    report = judged(p0(), facts=dict.fromkeys(GATE, True), section={"service": service})
    assert verdict_of(report, COMMERCIAL) is Verdict.DENY
    assert Reason.GATE_TRIGGERED in reasons(report, COMMERCIAL, "glm-5.3")


def test_a06_it_may_with_a_review_on_record(document: dict[str, str]) -> None:
    facts = {**dict.fromkeys(GATE, True), "zai_security_review": document}
    report = judged(p0(), facts=facts)
    assert verdict_of(report, COMMERCIAL) is Verdict.CONDITIONS
    assert "paper.pdf" in report.find("glm-5.3").rulings[COMMERCIAL].findings[0].message


def test_a06_it_may_not_with_another_document(document: dict[str, str]) -> None:
    facts = {**dict.fromkeys(GATE, True), "zai_security_review": {**document, "sha256": "0" * 64}}
    report = judged(p0(), facts=facts)
    assert verdict_of(report, COMMERCIAL) is Verdict.DENY
    assert not report.intact


def test_a07_the_drafter_runs_for_a_noncommercial_purpose() -> None:
    assert verdict_of(judged(p1(), facts={"purpose": "noncommercial"}), LOCAL) is Verdict.ALLOW


def test_a08_the_drafter_may_not_earn_and_glm_is_judged_by_itself() -> None:
    report = judged(p1())
    assert verdict_of(report, COMMERCIAL) is Verdict.DENY
    assert reasons(report, COMMERCIAL, "drafter") == {Reason.NC_PURPOSE}
    assert verdict_of(report, COMMERCIAL, "glm-5.3") is Verdict.ACTION
    assert reasons(report, COMMERCIAL, "glm-5.3") == {Reason.GATE_FACTS_MISSING}


def test_a09_without_the_drafter_it_is_a_question_about_facts() -> None:
    without = [c for c in p1() if c.id != "drafter"]
    assert verdict_of(judged(without), COMMERCIAL) is Verdict.ACTION
    assert verdict_of(judged(without, facts={GATE[0]: False}), COMMERCIAL) is Verdict.ALLOW


def test_a10_a_grant_lifts_the_denial_for_its_revision_only(document: dict[str, str]) -> None:
    grant = {"component": "drafter", "uses": ["run-commercial"], "licensor": "incoai", **document}
    facts = {GATE[0]: False}
    granted = judged(p1(), facts=facts, section={"grants": [{**grant, "revisions": [REVISION]}]})
    assert verdict_of(granted, COMMERCIAL, "drafter") is Verdict.CONDITIONS
    assert "incoai" in granted.find("drafter").rulings[COMMERCIAL].findings[0].message
    other = judged(p1(), facts=facts, section={"grants": [{**grant, "revisions": [OTHER_REVISION]}]})
    assert verdict_of(other, COMMERCIAL, "drafter") is Verdict.DENY


@pytest.mark.parametrize(
    "change", [{"sha256": "0" * 64}, {"expires": "2026-01-01"}, {"uses": ["run-local"]}, {"component": "glm-5.3"}]
)
def test_a10_a_grant_that_does_not_fit_lifts_nothing(document: dict[str, str], change: dict[str, Any]) -> None:
    grant = {"component": "drafter", "uses": ["run-commercial"], "licensor": "incoai", "revisions": [REVISION]}
    report = judged(p1(), section={"grants": [{**grant, **document, **change}]})
    assert verdict_of(report, COMMERCIAL, "drafter") is Verdict.DENY


def test_a12_not_redistributing_the_drafter_is_the_projects_decision_and_not_the_licences() -> None:
    report = judged(p1(), strict=True)
    assert verdict_of(report, IMAGE) is Verdict.DENY
    denials = {f.code for f in report.find("drafter").rulings[IMAGE].findings if f.verdict is Verdict.DENY}
    assert denials == {Reason.PROJECT_POLICY}


def test_a13_a_stub_leaves_the_drafter_out_of_the_verdict() -> None:
    report = judged(p1())
    assert not report.find("drafter").rulings[IMAGE].counted
    assert verdict_of(report, IMAGE) is Verdict.CONDITIONS


def test_a14_the_licence_itself_lets_a_verbatim_copy_travel() -> None:
    report = judged([drafter(never=False)], strict=True)
    assert verdict_of(report, IMAGE) is Verdict.CONDITIONS


def test_a15_but_not_for_a_commercial_purpose() -> None:
    report = judged([drafter(never=False)], strict=True, commercial=True)
    assert verdict_of(report, IMAGE) is Verdict.DENY
    assert Reason.NC_PURPOSE in reasons(report, IMAGE, "drafter")


def quantised(relation: str) -> Report:
    made = drafter(id="made", never=False, made_from=[("drafter", relation)], delivery="bundled")
    return judged([made], ancestors=[drafter(never=False)])


@pytest.mark.parametrize("use", SHARES)
def test_a16_a_quantised_drafter_may_be_run_and_not_shared(use: Use) -> None:
    report = quantised("quantize")
    assert verdict_of(report, use) is Verdict.DENY
    assert Reason.ND_DERIVATIVE in reasons(report, use, "made")
    assert verdict_of(report, LOCAL) is Verdict.ALLOW


@pytest.mark.parametrize("use", SHARES)
def test_a18_a_resharded_drafter_is_uncertain_until_somebody_decides(use: Use) -> None:
    report = quantised("reshard")
    assert verdict_of(report, use) is Verdict.UNKNOWN
    assert Reason.ND_UNCERTAIN in reasons(report, use, "made")
    exception = {
        "component": "made",
        "uses": [str(use)],
        "licenses": ["CC-BY-NC-ND-4.0"],
        "reason": "the same tensors",
        "approved_by": "counsel",
    }
    made = drafter(id="made", never=False, made_from=[("drafter", "reshard")], delivery="bundled")
    lifted = judged([made], ancestors=[drafter(never=False)], section={"exceptions": [exception]})
    assert verdict_of(lifted, use) is Verdict.CONDITIONS


def test_a20_a_quantised_glm_travels_with_its_text_and_its_copyright_line() -> None:
    pack = part(
        "pack",
        "LicenseRef-GLM-5.3",
        kind="weights",
        copyright=["Copyright (c) 2026 Z.AI"],
        text=GLM_TEXT,
        made_from=[("glm-5.3", "quantize")],
    )
    report = judged([pack], ancestors=[glm()])
    assert verdict_of(report, PUBLISH) is Verdict.CONDITIONS
    messages = " ".join(f.message for f in report.find("pack").rulings[PUBLISH].findings)
    assert "carry the licence text" in messages
    assert "Copyright (c) 2026 Z.AI" in messages
    bare = judged([replace(pack, texts=())], ancestors=[glm(text=None)])
    assert verdict_of(bare, PUBLISH) is Verdict.DENY
    assert Reason.TEXT_MISSING in reasons(bare, PUBLISH, "pack")


def test_a22_glm_flash_is_mit_and_has_no_gate() -> None:
    flash = part("glm-5.3-flash", "MIT", kind="weights", delivery="fetch")
    assert verdict_of(judged([runtime(), flash]), COMMERCIAL) is Verdict.ALLOW


def test_a23_of_a_choice_the_better_branch_counts_and_the_declaration_stands() -> None:
    verdict, _, report = single("MIT OR GPL-3.0-only", SOURCE)
    assert verdict is Verdict.CONDITIONS
    assert (report.find("x").declared, report.find("x").concluded) == ("MIT OR GPL-3.0-only", "MIT")


def test_a24_a_chosen_branch_counts() -> None:
    verdict, found, report = single("MIT OR GPL-3.0-only", SOURCE, choice="GPL-3.0-only")
    assert verdict is Verdict.CONDITIONS
    assert Reason.COPYLEFT_SOURCE in found
    assert report.find("x").concluded == "GPL-3.0-only"


def test_a25_a_choice_that_is_no_branch_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"BSD-3-Clause.*no branch"):
        single("MIT OR GPL-3.0-only", SOURCE, choice="BSD-3-Clause")


def test_a26_and_binds_the_choice_it_stands_beside() -> None:
    assert single("(MIT OR CC-BY-NC-ND-4.0) AND Apache-2.0", COMMERCIAL)[0] is Verdict.ALLOW


def test_a27_all_terms_of_an_and_count() -> None:
    assert single("MIT AND CC-BY-NC-ND-4.0", COMMERCIAL)[0] is Verdict.DENY


def test_a29_an_uncatalogued_branch_does_not_poison_a_choice() -> None:
    verdict, _, report = single("MIT OR LicenseRef-Foo", COMMERCIAL)
    assert verdict is Verdict.ALLOW
    assert report.find("x").concluded == "MIT"


def test_a30_an_uncatalogued_term_poisons_an_and() -> None:
    verdict, found, _ = single("MIT AND LicenseRef-Foo", COMMERCIAL)
    assert verdict is Verdict.UNKNOWN
    assert Reason.UNCATALOGUED in found


@pytest.mark.parametrize("use", list(Use))
def test_a31_an_exception_with_a_licence_is_judged_like_the_licence(use: Use) -> None:
    assert single("Apache-2.0 WITH LLVM-exception", use)[0] is single("Apache-2.0", use)[0]


def test_a33_identifiers_get_their_official_spelling() -> None:
    assert single("mit or apache-2.0", LOCAL)[2].find("x").declared == "MIT OR Apache-2.0"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("MIT OR", Reason.MALFORMED_EXPRESSION),
        ("MIT/X11", Reason.MALFORMED_EXPRESSION),
        ("Apache License 2.0", Reason.MALFORMED_EXPRESSION),
        ("", Reason.NO_LICENSE),
        ("NOASSERTION", Reason.NO_LICENSE),
    ],
)
def test_a34_what_is_no_expression_is_unknown_for_its_own_reason(text: str, code: Reason) -> None:
    verdict, found, _ = single(text, LOCAL)
    assert verdict is Verdict.UNKNOWN
    assert found == {code}


@pytest.mark.parametrize("text", ["(" * 300 + "MIT" + ")" * 300, " OR ".join(["MIT"] * 150_000)])
def test_a35_monsters_are_malformed(text: str) -> None:
    verdict, found, _ = single(text, LOCAL)
    assert (verdict, found) == (Verdict.UNKNOWN, {Reason.MALFORMED_EXPRESSION})


@pytest.mark.parametrize("use", list(Use))
def test_a38_no_licence_anywhere_is_unknown(use: Use) -> None:
    verdict, found, _ = single("", use)
    assert verdict is Verdict.UNKNOWN
    assert Reason.NO_LICENSE in found


def test_a41_a_text_that_changed_since_it_was_accepted_asks_again(tmp_path: Path) -> None:
    from glmserve.licensing.acceptance import accept, read_ledger
    from glmserve.licensing.audit import Question, audit
    from glmserve.licensing.found import texts_to_accept
    from glmserve.licensing.policy import LicensesSection

    from .parts import CATALOGUE

    component = drafter(accept=True)
    file = tmp_path / "acceptances.jsonl"

    def start(component: Any) -> tuple[Verdict, set[Reason]]:
        question = Question((LOCAL,), starting=True)
        report = audit("t", [component], LicensesSection(), CATALOGUE, question, ledger=read_ledger(file))
        return report.verdicts[LOCAL], reasons(report, LOCAL, "drafter")

    assert start(component) == (Verdict.ACTION, {Reason.ACCEPTANCE_MISSING})
    for license, text in texts_to_accept(component, CATALOGUE):
        accept(
            file,
            component.manifest,
            str(license),
            text,
            uses=["run-local"],
            facts={},
            tool="test",
            catalogue="test",
            actor="me",
        )
    assert start(component) == (Verdict.ALLOW, set())
    assert start(drafter(accept=True, text="another text")) == (Verdict.ACTION, {Reason.ACCEPTANCE_STALE})
    assert start(drafter(accept=True, revision=OTHER_REVISION)) == (Verdict.ACTION, {Reason.ACCEPTANCE_STALE})


def test_a55_a_revision_that_can_move_is_unknown() -> None:
    for revision in ("main", "425aa61", ""):
        verdict, found, _ = single("MIT", LOCAL, revision=revision)
        assert (verdict, found) == (Verdict.UNKNOWN, {Reason.REVISION_UNPINNED})


def test_a56_exceptions_for_two_components_both_apply_and_idle_ones_are_named() -> None:
    def exception(component: str, **changes: Any) -> dict[str, Any]:
        said = {"reason": "reviewed", "approved_by": "counsel", "licenses": ["LicenseRef-Foo"]}
        return {"component": component, "uses": ["redistribute-image"], **said, **changes}

    parts = [part(name, "LicenseRef-Foo") for name in ("a", "b", "c")]
    exceptions = [exception("a"), exception("b"), exception("c", expires="2026-01-01"), exception("z")]
    report = judged(parts, section={"exceptions": exceptions})
    assert [verdict_of(report, IMAGE, id) for id in "abc"] == [
        Verdict.CONDITIONS,
        Verdict.CONDITIONS,
        Verdict.UNKNOWN,
    ]
    assert any("EXCEPTION_EXPIRED" in w and "for c" in w for w in report.warnings)
    assert any("EXCEPTION_UNUSED" in w and "for z" in w for w in report.warnings)


def test_a61_an_allow_list_lets_nothing_else_through_copyleft_included() -> None:
    policy = {"policy": {"allow": ["MIT", "Apache-2.0"]}}
    parts = [part("a", "MIT OR GPL-3.0-only"), part("b", "MIT AND GPL-3.0-only"), part("c", "AGPL-3.0-only")]
    report = judged(parts, section=policy)
    assert [verdict_of(report, LOCAL, id) for id in "abc"] == [Verdict.ALLOW, Verdict.DENY, Verdict.DENY]
    assert reasons(report, LOCAL, "c") == {Reason.POLICY_NOT_ALLOWED}


@pytest.mark.parametrize("entry", ["Apache2", "@permisive"])
def test_a62_a_slip_in_a_policy_is_an_error_that_names_it(entry: str) -> None:
    with pytest.raises(ConfigError, match=entry):
        judged(p0(), section={"policy": {"allow": [entry]}})


def test_a68_nvidias_libraries_run_and_their_sharing_waits_for_a_review() -> None:
    library = replace(part("py-nvidia-x", "LicenseRef-NVIDIA-Proprietary", kind="native-lib"), environment=True)
    report = judged([library], environment=True)
    assert verdict_of(report, LOCAL) is Verdict.ALLOW
    assert verdict_of(report, IMAGE) is Verdict.UNKNOWN
    exception = {
        "component": "py-nvidia-x",
        "uses": ["redistribute-image"],
        "licenses": ["LicenseRef-NVIDIA-Proprietary"],
        "reason": "libcudart is on the EULA's list of redistributables",
        "approved_by": "counsel",
    }
    text = replace(library, texts=(*library.texts,))
    lifted = judged([text], section={"exceptions": [exception]}, environment=True)
    assert Reason.TERMS_UNREVIEWED not in reasons(lifted, IMAGE, "py-nvidia-x")


def test_a_finding_of_integrity_is_lifted_by_nothing(document: dict[str, str]) -> None:
    broken = Finding(Reason.HASH_MISMATCH, Verdict.DENY, "a file was changed")
    component = replace(drafter(), findings=(broken,))
    section = {
        "grants": [
            {"component": "drafter", "uses": list(map(str, Use)), "licensor": "incoai", "revisions": [REVISION]}
            | document
        ],
        "exceptions": [
            {
                "component": "drafter",
                "uses": list(map(str, Use)),
                "licenses": ["CC-BY-NC-ND-4.0"],
                "reason": "r",
                "approved_by": "a",
            }
        ],
    }
    report = judged([component], section=section)
    assert set(report.verdicts.values()) >= {Verdict.DENY}
    assert verdict_of(report, LOCAL) is Verdict.DENY
    assert not report.intact


def test_terms_that_nobody_settled_are_no_conflict_with_an_ancestor() -> None:
    ancestor = part("base", "BSD-3-Clause")
    report = judged([part("x", "MIT", made_from=[("base", "finetune")])], ancestors=[ancestor])
    assert Reason.ANCESTOR_CONFLICT not in reasons(report, PUBLISH, "x")


@pytest.mark.parametrize("base", ["LicenseRef-GLM-5.3", "CC-BY-NC-ND-4.0", "CC-BY-NC-4.0"])
def test_a_conversion_relabelled_with_a_laxer_licence_is_flagged(base: str) -> None:
    ancestor = part("base", base, text="The licence.")
    report = judged([part("x", "MIT", made_from=[("base", "quantize")])], ancestors=[ancestor])
    assert verdict_of(report, PUBLISH) is Verdict.DENY
    assert Reason.ANCESTOR_CONFLICT in reasons(report, PUBLISH, "x")
