"""The acceptance cases of the specification that are about commands and their exit codes, each by its number."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from . import wheels
from .commands import Run, audited, cc_token, manifest_site, profile, weights, with_drafter


def test_a01_to_a04_the_gate_of_glm(glmserve: Run, tmp_path: Path) -> None:
    path = profile(tmp_path)
    assert audited(glmserve, path, "run-local")[0] == "allow"
    verdict, reasons = audited(glmserve, path, "run-commercial", code=1)
    assert verdict == "needs-action"
    assert "GATE_FACTS_MISSING" in reasons["glm-5.3"]
    assert audited(glmserve, path, "run-commercial", "--fail-on", "unknown")[0] == "needs-action"
    facts = "licenses.facts.maas_business"
    assert audited(glmserve, path, "run-commercial", "--set", f"{facts}=false")[0] == "allow"


def test_a02_a_server_does_not_start_without_the_facts(glmserve: Run, tmp_path: Path) -> None:
    path = profile(tmp_path, license="LicenseRef-GLM-5.3")
    from glmserve.api import LicenseError
    from glmserve.clearance import clear
    from glmserve.profiles import load_profile

    with pytest.raises(LicenseError, match=r"GATE_FACTS_MISSING.*--purpose noncommercial"):
        clear(load_profile(str(path))).require()
    clear(load_profile(str(path), ["licenses.facts.purpose=noncommercial"])).require()


def test_a08_the_refusal_offers_the_models_own_layer(glmserve: Run, tmp_path: Path) -> None:
    path = with_drafter(tmp_path, 'fallback = "mtp"\n')
    ran = glmserve("licenses", path, "--use", "run-commercial")
    assert ran.code == 1
    told = " ".join(ran.out.split())
    assert "drafter-glm53-dflash2 (CC-BY-NC-ND-4.0): run-commercial denied: NC_PURPOSE [2(a)(1)]" in told
    assert "--drafter mtp" in told
    verdict, reasons = audited(glmserve, path, "run-commercial", "--drafter", "mtp", code=1)
    assert verdict == "needs-action"
    assert "drafter-glm53-dflash2" not in reasons


def test_a12_counting_what_is_fetched_shows_the_projects_own_decision(glmserve: Run, tmp_path: Path) -> None:
    _, reasons = audited(glmserve, with_drafter(tmp_path), "redistribute-image", "--strict", code=1)
    assert "PROJECT_POLICY" in reasons["drafter-glm53-dflash2"]
    assert "NO_REDISTRIBUTE" not in reasons["drafter-glm53-dflash2"]


def test_a25_a_choice_that_is_no_branch_is_exit_code_2(glmserve: Run, tmp_path: Path, site: Path) -> None:
    data = wheels.manifest("part", "weights", "MIT OR GPL-3.0-only").replace(
        b"[license]", b'[license]\nchoice = "BSD-3-Clause"'
    )
    manifest_site(site, ("part", data))
    ran = glmserve("licenses", profile(tmp_path, 'model = ["part"]'))
    assert ran.code == 2
    assert "BSD-3-Clause" in ran.err


@pytest.mark.parametrize("expression", ["MIT OR", "MIT/X11", "Apache License 2.0", "", "NOASSERTION"])
def test_a34_what_is_no_expression_is_exit_code_1(glmserve: Run, tmp_path: Path, expression: str) -> None:
    path = profile(tmp_path, "", license=expression or "unknown")
    verdict, _ = audited(glmserve, path, "run-local", code=1)
    assert verdict == "unknown"


def test_a42_weights_that_changed_by_one_byte_are_exit_code_3_whatever_fails(
    glmserve: Run, tmp_path: Path, site: Path
) -> None:
    path, manifest = weights(tmp_path, b"weightz", b"weights")
    manifest_site(site, ("part", manifest))
    ran = glmserve("licenses", "verify", path)
    assert ran.code == 3
    assert "HASH_MISMATCH" in ran.out
    (tmp_path / "nowhere" / "w.bin").write_bytes(b"weights plus")
    assert glmserve("licenses", path, "--fail-on", "never").code == 3


def test_verify_passes_what_is_as_recorded(glmserve: Run, tmp_path: Path, site: Path) -> None:
    path, manifest = weights(tmp_path, b"weights", b"weights")
    manifest_site(site, ("part", manifest))
    ran = glmserve("licenses", "verify", path)
    assert "part: 1 files and texts as recorded" in ran.out
    assert "HASH_MISMATCH" not in ran.out


def test_a43_an_installed_licence_that_was_edited_is_exit_code_3(glmserve: Run, tmp_path: Path, site: Path) -> None:
    info = wheels.install(site, wheels.contents("demo"))
    assert glmserve("licenses", profile(tmp_path), "--env", "--fail-on", "never").code == 0
    (info / "licenses" / "LICENSE").write_bytes(b"Do what you want.\n")
    assert glmserve("licenses", profile(tmp_path), "--env", "--fail-on", "never").code == 3


def test_a44_a_wheel_that_claims_apache_and_carries_another_text(glmserve: Run, tmp_path: Path, site: Path) -> None:
    wheels.install(site, wheels.contents("demo", expression="Apache-2.0", texts={"LICENSE": wheels.CC_BY_NC_ND}))
    verdict, reasons = audited(glmserve, profile(tmp_path), "run-local", "--env", code=1)
    assert verdict == "unknown"
    assert "TEXT_MISMATCH" in reasons["py-demo"]


def test_a50_a_licence_file_outside_the_wheel_is_never_read(
    glmserve: Run, tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *args, **more: (opened.append(str(path)), real(path, *args, **more))[1]
    )
    wheels.install(site, wheels.contents("demo", texts={}, headers=["License-File: ../../../../etc/passwd"]))
    verdict, _ = audited(glmserve, profile(tmp_path), "run-local", "--env", code=1)
    assert verdict == "unknown"
    assert not [name for name in opened if "passwd" in name]
    bad = wheels.wheel(tmp_path, wheels.contents("demo", texts={}, headers=["License-File: ../../../../etc/passwd"]))
    assert glmserve("licenses", "check-wheel", bad).code == 1


def test_a51_a_declared_licence_file_that_is_not_in_the_wheel(glmserve: Run, tmp_path: Path) -> None:
    path = wheels.wheel(tmp_path, wheels.contents("demo", texts={}, headers=["License-File: LICENSE"]))
    ran = glmserve("licenses", "check-wheel", path)
    assert ran.code == 1
    assert "TEXT_MISSING" in ran.out


def test_a_sound_wheel_passes(glmserve: Run, tmp_path: Path) -> None:
    ran = glmserve("licenses", "check-wheel", wheels.wheel(tmp_path, wheels.contents("demo")))
    assert (ran.code, ran.out.strip()) == (0, "demo-1.0-py3-none-any.whl: sound")


def test_a52_a_plugin_whose_import_raises_is_audited_and_not_imported(
    glmserve: Run, tmp_path: Path, site: Path
) -> None:
    manifest_site(site, ("parts", wheels.manifest("parts")), entries=b"[glmserve]\nparts = parts.plugin\n")
    _, reasons = audited(glmserve, profile(tmp_path), "run-local", code=0)
    assert "parts" in reasons
    assert "parts" not in sys.modules


def test_a53_a_manifest_grants_itself_nothing(glmserve: Run, tmp_path: Path, site: Path) -> None:
    manifest_site(
        site, ("part", wheels.manifest("part", "drafter", "CC-BY-NC-ND-4.0", "[license.terms]\ncommercial = true\n"))
    )
    ran = glmserve("licenses", profile(tmp_path))
    assert ran.code == 2
    assert "part" in ran.err


@pytest.mark.parametrize("revision", ["main", "425aa61"])
def test_a55_a_revision_that_can_move_is_unknown_and_not_fetched(
    glmserve: Run, tmp_path: Path, site: Path, revision: str
) -> None:
    origin = f'[origin]\ntype = "hf"\nurl = "https://huggingface.co/x/y"\nrevision = "{revision}"\n'
    manifest_site(site, ("part", wheels.manifest("part", "weights", "MIT", origin, delivery="fetch")))
    _, reasons = audited(glmserve, profile(tmp_path, 'model = ["part"]'), "run-local", code=1)
    assert reasons["part"] == {"REVISION_UNPINNED"}
    assert glmserve("pull", f"hf:x/y@{revision}").code == 3


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ("[policy]\nalow = []\n", "alow"),
        ('[policy]\nallow = ["Apache2"]\n', "Apache2"),
        ('[policy]\nallow = ["@permisive"]\n', "@permisive"),
        ("[facts]\nmaas = true\n", "maas"),
        ("[facts]\nzai_security_review = true\n", "zai_security_review"),
        ('[policy]\nby_kind.wieghts.allow = ["MIT"]\n', "wieghts"),
        ("[policy\n", "policy.toml"),
        ('[[exceptions]]\ncomponent = "x"\n', "exceptions.0.uses"),
    ],
)
def test_a57_and_a62_a_slip_in_a_policy_is_exit_code_2_and_named(
    glmserve: Run, tmp_path: Path, policy: str, named: str
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(policy)
    ran = glmserve("licenses", profile(tmp_path), "--policy", file)
    assert ran.code == 2
    assert named in ran.err
    assert ran.out == ""


def test_a57_a_slip_in_the_profile_is_exit_code_2_too(glmserve: Run, tmp_path: Path) -> None:
    ran = glmserve("licenses", profile(tmp_path, tail='[licenses.policy]\nalow = ["MIT"]\n'))
    assert ran.code == 2
    assert "alow" in ran.err


def test_both_policies_have_to_hold(glmserve: Run, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[policy]\nallow = ["@permissive"]\n')
    path = profile(tmp_path, tail='[licenses.policy]\nallow = ["LicenseRef-GLM-5.3", "Apache-2.0"]\n')
    assert audited(glmserve, path, "run-local")[0] == "allow"
    verdict, reasons = audited(glmserve, path, "run-local", "--policy", file, code=1)
    assert verdict == "deny"
    assert reasons["glm-5.3"] == {"POLICY_NOT_ALLOWED"}


@pytest.mark.parametrize("form", ["cyclonedx", "spdx", "json", "markdown", "table"])
def test_a58_every_export_is_the_same_twice_and_all_of_stdout(glmserve: Run, tmp_path: Path, form: str) -> None:
    path = with_drafter(tmp_path)
    one, two = (glmserve("licenses", path, "--format", form, "--fail-on", "never") for _ in range(2))
    assert one == two
    assert (one.code, one.err) == (0, "")
    assert str(tmp_path) not in one.out


def test_a58_cyclonedx_validates_and_names_no_invented_licence(glmserve: Run, tmp_path: Path, site: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    manifest_site(site, ("part", wheels.manifest("part", "dataset", "LicenseRef-Nobody-Knows")))
    path = with_drafter(tmp_path)
    path.write_text(path.read_text().replace('"glm-5.3-template"', '"glm-5.3-template", "part"'))
    ran = glmserve("licenses", path, "--format", "cyclonedx", "--fail-on", "never")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(ran.out) is None
    models = [c for c in json.loads(ran.out)["components"] if c["type"] == "machine-learning-model"]
    assert models
    assert all("modelCard" in model for model in models)


def test_a59_spdx_validates_and_says_that_a_text_is_not_shipped(glmserve: Run, tmp_path: Path) -> None:
    from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    ran = glmserve("licenses", with_drafter(tmp_path), "--format", "spdx", "--fail-on", "never")
    document = json.loads(ran.out)
    assert validate_full_spdx_document(JsonLikeDictParser().parse(document)) == []
    (extracted,) = [e for e in document["hasExtractedLicensingInfos"] if e["licenseId"] == "LicenseRef-GLM-5.3"]
    assert extracted["extractedText"]


@pytest.mark.parametrize(
    "token", [None, "CC-BY-NC-ND-4.0", "CC-BY-NC-ND-4.0@sha256:000000000000", "MIT@sha256:" + "0" * 12]
)
def test_a65_accepting_without_the_texts_digest_records_nothing(
    glmserve: Run, tmp_path: Path, token: str | None
) -> None:
    options: Sequence[str] = [] if token is None else ["--accept", token]
    ran = glmserve("licenses", "accept", "drafter-glm53-dflash2", *options)
    assert ran.code == 2
    assert "sha256:" in ran.err
    assert not (tmp_path / "home" / "acceptances.jsonl").exists()


def test_an_acceptance_opens_the_start_and_its_absence_names_the_command(glmserve: Run, tmp_path: Path) -> None:
    from glmserve.clearance import clear
    from glmserve.profiles import load_profile

    path = with_drafter(tmp_path)
    loaded = load_profile(str(path), ["licenses.facts.purpose=noncommercial"])
    assert "glmserve licenses accept drafter-glm53-dflash2" in clear(loaded).refusal
    ran = glmserve("licenses", "accept", "drafter-glm53-dflash2", "--profile", path, "--accept", cc_token())
    assert ran.code == 0, ran.err
    assert clear(loaded).refusal == ""


def test_the_fallback_drafter_is_announced_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glmserve.clearance import clear
    from glmserve.profiles import load_profile

    monkeypatch.setenv("GLMSERVE_HOME", str(tmp_path / "home"))
    facts = ["licenses.facts.purpose=commercial", "licenses.facts.maas_business=false"]
    clearance = clear(load_profile(str(with_drafter(tmp_path, 'fallback = "mtp"\n')), facts))
    assert (clearance.drafter, clearance.refusal) == ("mtp", "")
    assert "NC_PURPOSE" in clearance.announcement
    assert "mtp drafts instead of dflash2" in clearance.announcement
    without = clear(load_profile(str(with_drafter(tmp_path)), facts))
    assert without.drafter == "dflash2"
    assert "NC_PURPOSE" in without.refusal


def test_explain_names_the_declaration_the_terms_and_the_ancestor(glmserve: Run, tmp_path: Path) -> None:
    ran = glmserve("licenses", "explain", "drafter-glm53-dflash2", "--profile", "four-spark")
    assert ran.code == 0
    for part in ("CC-BY-NC-ND-4.0", "drafter-glm53-dflash2.toml", "incoai", "glm-5.3 (distill)", "NC_PURPOSE"):
        assert part in ran.out


def test_explain_finds_the_component_of_a_file(glmserve: Run, tmp_path: Path, site: Path) -> None:
    path, manifest = weights(tmp_path, b"weights", b"weights")
    manifest_site(site, ("part", manifest))
    ran = glmserve("licenses", "explain", tmp_path / "nowhere" / "w.bin", "--profile", path)
    assert "w.bin is listed by" in ran.out
    import click

    ran = glmserve("licenses", "explain", str(click.__file__))
    assert "RECORD" in ran.out
    stranger = tmp_path / "stranger"
    stranger.write_text("?")
    assert glmserve("licenses", "explain", stranger).code == 2


def test_show_says_it_in_plain_words_and_prints_texts(glmserve: Run) -> None:
    assert "may" in glmserve("licenses", "show", "cc-by-nc-nd-4.0").out.lower()
    assert "Creative Commons" in glmserve("licenses", "show", "CC-BY-NC-ND-4.0", "--text").out
    ran = glmserve("licenses", "show", "LicenseRef-GLM-5.3", "--text")
    assert ran.code == 2
    assert "no person has compared it" in ran.err
    assert glmserve("licenses", "show", "Nonsense-1.0").code == 2


def test_notices_are_written_where_they_are_wanted(glmserve: Run, tmp_path: Path) -> None:
    notice, third = tmp_path / "NOTICE", tmp_path / "THIRD.md"
    assert glmserve("licenses", "notices", "-o", notice, "--third-party", third).code == 0
    assert "glmserve" in notice.read_text()
    assert "Apache License" in third.read_text()
    assert glmserve("licenses", "notices", "-o", tmp_path / "none" / "NOTICE").code == 2


def test_no_audit_touches_the_network(glmserve: Run, tmp_path: Path) -> None:
    used: list[str] = []
    watching = [True]

    def watch(event: str, args: object) -> None:
        if watching and event in ("socket.connect", "socket.getaddrinfo"):
            used.append(event)

    sys.addaudithook(watch)
    for profile_name in ("local", "four-spark"):
        glmserve("licenses", profile_name)
    watching.clear()
    assert used == []


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["--use", "nonsense"], ["--python", "/tmp"], ["accept", "nonsense"]]
)
def test_wrong_usage_is_exit_code_2(glmserve: Run, arguments: list[str]) -> None:
    assert glmserve("licenses", *arguments).code == 2


def test_a_drafter_is_not_fetched_before_its_licence_was_shown_and_accepted(
    glmserve: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing answers there
    source = "hf:incoai/GLM-5.3-DFlash2@425aa615ce320caac34400208b30808c8f14f76c"
    ran = glmserve("pull", source)
    assert ran.code == 1
    assert "CC-BY-NC-ND-4.0" in ran.err
    assert "glmserve licenses accept drafter-glm53-dflash2" in ran.err
    assert glmserve("licenses", "accept", "drafter-glm53-dflash2", "--accept", cc_token()).code == 0
    ran = glmserve("pull", source)
    assert ran.code == 3  # asked for, and nobody answered
    assert "drafter-glm53-dflash2: CC-BY-NC-ND-4.0." in ran.err
