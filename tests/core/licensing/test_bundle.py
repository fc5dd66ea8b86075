"""Bundles: what travels, what is left to be fetched, what is refused, and that any change is seen."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from glmserve.api import ConfigError, GlmserveError, IntegrityError
from glmserve.licensing.bundle.archive_reader import read_archive
from glmserve.licensing.bundle.index import FILE_NAME, parse_index
from glmserve.licensing.bundle.make import BundleInputs, make_bundle
from glmserve.licensing.bundle.packing import PackedFile
from glmserve.licensing.bundle.plan import BundleDamaged, BundleRefused
from glmserve.licensing.bundle.stub import read_stub
from glmserve.licensing.bundle.verify import verify_bundle
from glmserve.licensing.report import Finding, Reason, Use, Verdict

from .assembly import (
    DRAFTER_FILES,
    PROFILE,
    SHARED,
    USE,
    bundled,
    code,
    drafter,
    drafter_row,
    entries,
    files,
    inputs,
    packed,
    refusal,
    safetensors,
    strictly,
    weights,
    with_rows,
    write,
)
from .reports import DRAFTER, component, row


def refused(place: Path, made: BundleInputs, **options: Any) -> BundleRefused:
    """The refusal, after which there is no file."""
    with pytest.raises(BundleRefused) as refusal:
        bundled(place, made, **options)
    assert list((place / "out").iterdir()) == []
    with pytest.raises(BundleRefused):
        bundled(place, made, **options, dry_run=True)
    return refusal.value


def codes(error: BundleRefused) -> set[Reason]:
    return {finding.code for finding in error.findings}


def test_a_strict_bundle_with_the_drafter_is_refused_as_the_project_s_own_policy(tmp_path: Path) -> None:
    error = refused(tmp_path, strictly(inputs(tmp_path)), strict=True)
    assert codes(error) == {Reason.PROJECT_POLICY}
    assert error.exit_code == 1
    assert "drafter (CC-BY-NC-ND-4.0): PROJECT_POLICY" in str(error)
    assert "--stub" in str(error)
    assert "\n" not in str(error)


def test_a_bundle_with_a_stub_has_everything_but_the_drafter(tmp_path: Path) -> None:
    bundle = bundled(tmp_path)
    assert verify_bundle(bundle) == ()
    contents = files(bundle)
    assert sorted(contents) == [
        "LICENSES/Apache-2.0.txt",
        "LICENSES/CC-BY-NC-ND-4.0.txt",
        "NOTICE",
        "THIRD_PARTY_NOTICES.md",
        "components/glmserve/LICENSE",
        "components/glmserve/glmserve/__init__.py",
        "components/tiny/config.json",
        "components/tiny/model.safetensors",
        "glmserve-bundle.json",
        "profile.toml",
        "requirements.txt",
        "sbom.cdx.json",
        "sbom.spdx.json",
        "stubs/drafter.fetch.json",
    ]
    stub = read_stub(contents["stubs/drafter.fetch.json"], "stub")
    assert (stub.origin.revision, len(stub.origin.revision)) == (DRAFTER, 40)
    assert stub.license.url == "https://huggingface.co/incoai/GLM-5.3-DFlash2"
    assert stub.license.texts[0].sha256 == hashlib.sha256(DRAFTER_FILES["LICENSE"]).hexdigest()
    assert {file.path: file.sha256 for file in stub.files} == {
        entry["path"]: entry["sha256"] for entry in entries(DRAFTER_FILES)
    }
    assert (stub.reason, stub.accept_required, stub.attribution) == (Reason.PROJECT_POLICY, True, ("incoai",))
    bom = json.loads(contents["sbom.cdx.json"])
    assert bom["compositions"] == [{"aggregate": "incomplete", "assemblies": ["component:drafter"]}]
    whole = bundle.read_bytes()
    for name, data in DRAFTER_FILES.items():
        if name != "LICENSE":
            assert data not in whole
    weights = DRAFTER_FILES["model.safetensors"]
    assert not any(weights[at : at + 64] in whole for at in range(len(weights) - 63))


def test_the_index_names_every_file_and_neither_a_time_nor_a_place(tmp_path: Path) -> None:
    contents = files(bundled(tmp_path))
    index = parse_index(contents[FILE_NAME], "index")
    assert {file.path: (file.sha256, file.size) for file in index.files} == {
        path: (hashlib.sha256(data).hexdigest(), len(data)) for path, data in contents.items() if path != FILE_NAME
    }
    assert {file.path: file.component for file in index.files if file.component} == {
        "components/glmserve/LICENSE": "glmserve",
        "components/glmserve/glmserve/__init__.py": "glmserve",
        "components/tiny/config.json": "tiny",
        "components/tiny/model.safetensors": "tiny",
    }
    assert {c.id: (c.included, c.verdict) for c in index.components} == {
        "drafter": (False, "deny"),
        "glmserve": (True, "allow"),
        "tiny": (True, "allow"),
    }
    assert (index.use, index.mode, index.verdict, index.commercial) == (USE, "stub", "allow", False)
    assert dict(index.versions)["catalogue"] == "2026.11.30"
    for path, data in contents.items():
        assert str(tmp_path).encode() not in data, path


def test_two_runs_are_equal_to_the_byte(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    first = bundled(tmp_path, made).read_bytes()
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))
    shuffled = replace(
        made,
        report=replace(made.report, rows=made.report.rows[::-1]),
        contents={id: files[::-1] for id, files in reversed(made.contents.items())},
        extra_files=dict(reversed(made.extra_files.items())),
    )
    assert bundled(tmp_path, shuffled).read_bytes() == first
    assert bundled(tmp_path, made, epoch_s=1_700_000_000).read_bytes() != first


def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    plan = make_bundle(made, tmp_path / "a.tar", use=USE, strict=False, dry_run=True)
    assert not (tmp_path / "a.tar").exists()
    assert make_bundle(made, tmp_path / "a.tar", use=USE, strict=False) == plan
    assert plan.included == ("glmserve", "tiny")
    assert [(id, reason and reason.code) for id, reason in plan.stubs] == [("drafter", Reason.PROJECT_POLICY)]
    listed = [entry for entry in read_archive(tmp_path / "a.tar") if entry.path != FILE_NAME]
    assert plan.size_bytes == sum(entry.size for entry in listed)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("code", "verdict"), [(Reason.UNCATALOGUED, "UNKNOWN"), (Reason.GATE_FACTS_MISSING, "ACTION")])
def test_what_is_unknown_or_unanswered_is_refused_in_both_modes(
    tmp_path: Path, strict: bool, code: Reason, verdict: str
) -> None:
    finding = refusal(code, Verdict[verdict])
    for one in (row(component("other", "weights", "MIT"), [finding]), drafter_row(drafter(), finding)):
        made = inputs(tmp_path)
        rest = tuple(r for r in made.report.rows if r.component.id != one.component.id)
        made = replace(made, report=with_rows(replace(made.report, rows=rest), one))
        made = strictly(made) if strict else made
        assert code in codes(refused(tmp_path, made, strict=strict))


def test_a_component_that_is_denied_and_that_nobody_publishes_is_refused(tmp_path: Path) -> None:
    own = row(component("mine", "weights", "CC-BY-NC-ND-4.0"), [refusal(Reason.ND_DERIVATIVE)])
    error = refused(tmp_path, inputs(tmp_path, own))
    assert codes(error) == {Reason.ND_DERIVATIVE}
    assert "nobody publishes it" in str(error)


def test_a_component_without_a_full_revision_has_no_stub(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    for revision in ("main", "425aa61", ""):
        origin = {"type": "hf", "url": "https://huggingface.co/incoai/GLM-5.3-DFlash2", "revision": revision}
        rows = [*made.report.rows[1:], drafter_row(drafter(origin=origin))]
        rows = [r for r in made.report.rows if r.component.id != "drafter"] + [drafter_row(drafter(origin=origin))]
        error = refused(tmp_path, replace(made, report=replace(made.report, rows=tuple(rows))))
        assert "40-digit commit" in str(error)


def test_policy_never_counts_even_where_no_finding_says_so(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    rows = tuple(
        drafter_row(one.component, Finding(Reason.CONDITION, Verdict.CONDITIONS, "attribute"), counted=True)
        if one.component.id == "drafter"
        else one
        for one in made.report.rows
    )
    made = replace(made, report=replace(made.report, rows=rows))
    contents = {**made.contents, "drafter": packed(tmp_path / "drafter")}
    bundle = bundled(tmp_path, replace(made, contents=contents))
    assert not any(path.startswith("components/drafter/") for path in files(bundle))
    bundle.unlink()
    made = strictly(replace(made, contents=contents))
    assert codes(refused(tmp_path, made, strict=True)) == {Reason.PROJECT_POLICY}


def test_a_verbatim_drafter_without_that_policy_goes_along_with_text_and_attribution(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    part = drafter(tmp_path / "drafter", policy={})
    condition = Finding(Reason.CONDITION, Verdict.CONDITIONS, "attribute", "3(a)")
    rows = [r for r in made.report.rows if r.component.id != "drafter"]
    made = strictly(replace(made, report=replace(made.report, rows=(*rows, drafter_row(part, condition)))))
    made = replace(made, contents={**made.contents, "drafter": packed(tmp_path / "drafter")})
    bundle = bundled(tmp_path, made, strict=True)
    contents = files(bundle)
    assert contents["components/drafter/model.safetensors"] == DRAFTER_FILES["model.safetensors"]
    assert "LICENSES/CC-BY-NC-ND-4.0.txt" in contents
    assert b"Creator: incoai" in contents["NOTICE"]
    assert verify_bundle(bundle) == ()
    assert parse_index(contents[FILE_NAME], "index").verdict == "allow-with-conditions"


def test_every_reason_is_told_at_once(tmp_path: Path) -> None:
    one = row(component("one", "weights", "MIT"), [refusal(Reason.UNCATALOGUED, Verdict.UNKNOWN)])
    two = row(component("two", "weights", "MIT"), [refusal(Reason.ND_DERIVATIVE)])
    error = refused(tmp_path, inputs(tmp_path, one, two))
    assert codes(error) == {Reason.UNCATALOGUED, Reason.ND_DERIVATIVE}
    assert [line[:7] for line in str(error).splitlines()[1:]] == ["  - one", "  - two"]


def test_ten_bytes_that_belong_to_nobody_are_refused(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    (tmp_path / "code" / "stray.bin").write_bytes(b"0123456789")
    error = refused(tmp_path, made)
    assert codes(error) == {Reason.UNOWNED_FILE}
    assert "stray.bin belongs to no component" in str(error)


def test_a_file_that_the_manifest_does_not_list_is_refused(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    (tmp_path / "model" / "extra.json").write_bytes(b"{}")
    made = replace(made, contents={**made.contents, "tiny": packed(tmp_path / "model")})
    error = refused(tmp_path, made)
    assert codes(error) == {Reason.UNOWNED_FILE}
    assert "extra.json is not in its manifest" in str(error)


def test_a_file_has_one_owner(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    both = {**made.contents, "glmserve": (*made.contents["glmserve"], made.contents["tiny"][0])}
    assert "has one owner" in str(refused(tmp_path, replace(made, contents=both)))


@pytest.mark.parametrize("harm", ["change", "grow", "remove"])
def test_files_that_are_not_what_the_manifest_pins_are_an_integrity_failure(tmp_path: Path, harm: str) -> None:
    made = inputs(tmp_path)
    config = tmp_path / "model" / "config.json"
    if harm == "remove":
        made = replace(made, contents={**made.contents, "tiny": made.contents["tiny"][1:]}, trees=())
    else:
        config.write_bytes(b'{"a": 2}\n' if harm == "change" else config.read_bytes() + b" ")
    error = refused(tmp_path, made)
    assert isinstance(error, BundleDamaged | IntegrityError)
    assert error.exit_code == 3


def test_damage_that_the_audit_found_is_an_integrity_failure(tmp_path: Path) -> None:
    broken = Finding(Reason.HASH_MISMATCH, Verdict.DENY, "model.safetensors has changed")
    error = refused(tmp_path, inputs(tmp_path, row(component("x", "weights", "MIT", findings=(broken,)))))
    assert error.exit_code == 3


def test_a_component_without_any_file_is_refused_unless_it_lies_in_another(tmp_path: Path) -> None:
    snippet = component("snippet", "template", "MIT")
    error = refused(tmp_path, inputs(tmp_path, row(snippet)))
    assert "none of its files is on this machine" in str(error)
    assert error.exit_code == 1
    around = code(tmp_path / "code", derived_from=[{"id": "snippet", "relation": "snippet"}])
    made = inputs(tmp_path, row(snippet))
    rows = tuple(row(around) if one.component.id == "glmserve" else one for one in made.report.rows)
    assert verify_bundle(bundled(tmp_path, replace(made, report=replace(made.report, rows=rows)))) == ()


def test_links_that_leave_the_component_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    made = inputs(tmp_path)
    inside, outside = tmp_path / "code" / "inside", tmp_path / "code" / "outside"
    outside.symlink_to(tmp_path / "secret")
    both = (*made.contents["glmserve"], PackedFile(outside, "outside"))
    error = refused(tmp_path, replace(made, contents={**made.contents, "glmserve": both}))
    assert "leaves the component" in str(error)
    outside.unlink()
    inside.symlink_to("LICENSE")
    bundle = bundled(tmp_path, made)
    assert verify_bundle(bundle) == ()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\\b", "", "x\n"])
def test_a_path_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    made = inputs(tmp_path)
    sly = (*made.contents["glmserve"], PackedFile(write(tmp_path / "sly", {"x": b"x"}) / "x", name))
    refused(tmp_path, replace(made, contents={**made.contents, "glmserve": sly}))


def test_pipes_and_missing_files_are_refused(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", tmp_path / "missing", tmp_path / "code"):
        sly = (*made.contents["glmserve"], PackedFile(source, "x"))
        refused(tmp_path, replace(made, contents={**made.contents, "glmserve": sly}))


def test_a_notice_that_is_promised_has_to_be_there(tmp_path: Path) -> None:
    promising = row(code(tmp_path / "other", "other", attribution={"notice_files": ["NOTICE"]}))
    made = inputs(tmp_path, promising)
    write(tmp_path / "other", {"other.py": b"pass\n"})
    made = replace(made, contents={**made.contents, "other": packed(tmp_path / "other")})
    error = refused(tmp_path, made)
    assert codes(error) == {Reason.NOTICE_MISSING}
    assert "[4(d)]" in str(error)
    carrying = replace(promising, component=replace(promising.component, notices=("Other\nby Others\n",)))
    rows = tuple(carrying if one.component.id == "other" else one for one in made.report.rows)
    bundle = bundled(tmp_path, replace(made, report=replace(made.report, rows=rows)))
    assert b"Other\nby Others\n" in files(bundle)["NOTICE"]
    again = row(code(tmp_path / "third", "third", notices=("Other\n by  Others",)))
    write(tmp_path / "third", {"third.py": b"pass # third\n"})
    made = replace(made, contents={**made.contents, "third": packed(tmp_path / "third")})
    bundled(tmp_path, replace(made, report=replace(made.report, rows=(*rows, again))))


def test_a_licence_whose_text_is_nowhere_is_refused(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    error = refused(tmp_path, replace(made, text_of=lambda id: None, report=made.report))
    assert codes(error) == {Reason.TEXT_MISSING}


def test_a_component_of_which_no_licence_is_concluded_does_not_go_along(tmp_path: Path) -> None:
    other = row(component("other", "template", "MIT OR"), concluded="")
    made = inputs(tmp_path, other)
    write(tmp_path / "other", {"x": b"x"})
    made = replace(made, contents={**made.contents, "other": packed(tmp_path / "other")})
    assert codes(refused(tmp_path, made)) == {Reason.NO_LICENSE}


def test_a_refusal_shows_no_control_characters(tmp_path: Path) -> None:
    finding = Finding(Reason.UNCATALOGUED, Verdict.UNKNOWN, "it says \x1b[31mred\nand more", uses=SHARED)
    error = refused(tmp_path, inputs(tmp_path, row(component("other", "weights", "MIT \x1b[0m"), [finding])))
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)


def test_what_a_user_states_about_himself_stays_at_home(tmp_path: Path) -> None:
    profile = PROFILE + (
        b'[[licenses.grants]]\ncomponent = "drafter"\nrevisions = ["4"]\nuses = ["run-commercial"]\n'
        b'licensor = "incoai"\ndocument = "secret-paper.pdf"\nsha256 = "00"\n'
    )
    made = replace(inputs(tmp_path), extra_files={"profile.toml": profile})
    bundle = bundled(tmp_path, made)
    assert files(bundle)["profile.toml"] == b'[profile]\nname = "four-spark"\n\n[drafter]\nname = "mtp"\n'
    assert b"secret-paper" not in bundle.read_bytes()


@pytest.mark.parametrize(
    "profile",
    [
        b'licenses.facts.purpose = "commercial"\n',
        b'licenses = { facts = { purpose = "commercial" } }\n',
        b'a = """\n[licenses]\n"""\n[licenses]\nservice = true\n',
        b"[[[",
        b"\xff",
    ],
)
def test_a_profile_whose_statements_cannot_be_cut_out_is_refused(tmp_path: Path, profile: bytes) -> None:
    with pytest.raises(ConfigError, match=r"profile\.toml"):
        bundled(tmp_path, replace(inputs(tmp_path), extra_files={"profile.toml": profile}))


def test_an_extra_file_cannot_stand_in_for_a_paper(tmp_path: Path) -> None:
    for path in ("NOTICE", FILE_NAME, "stubs/x", "components/glmserve/x", "LICENSES/x"):
        with pytest.raises(ConfigError, match="another name"):
            bundled(tmp_path, replace(inputs(tmp_path), extra_files={path: b"x"}))


def test_a_use_that_shares_nothing_and_one_that_was_not_audited_make_no_bundle(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    for use in (Use.RUN_LOCAL, Use.RUN_COMMERCIAL):
        with pytest.raises(ConfigError, match="passing on"):
            bundled(tmp_path, made, use=use)
    with pytest.raises(ConfigError, match="not a use"):
        bundled(tmp_path, replace(made, report=replace(made.report, uses=(Use.PUBLISH_WEIGHTS,))))
    with pytest.raises(ConfigError, match="agree"):
        bundled(tmp_path, made, strict=True)


def test_an_interrupt_while_bundling_leaves_nothing(tmp_path: Path) -> None:
    made = inputs(tmp_path)
    calls: list[str] = []
    bundled(tmp_path, made, progress=lambda what, done, total: calls.append(what)).unlink()
    assert {"reading drafter", "looking through the components", "writing bundle.tar"} <= set(calls)
    for stop in range(0, len(calls), 3):
        left = [stop]

        def interrupt(what: str, done: int, total: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            bundled(tmp_path, made, progress=interrupt)
        assert list((tmp_path / "out").iterdir()) == []


def test_the_environment_goes_along_only_where_it_was_asked_about(tmp_path: Path) -> None:
    library = write(tmp_path / "site", {"library/__init__.py": b"pass\n"})
    part = component("py-library", "code", "MIT", environment=True)
    made = inputs(tmp_path, row(part))
    made = replace(made, contents={**made.contents, "py-library": packed(library)})
    contents = files(bundled(tmp_path, made))
    assert contents["components/py-library/library/__init__.py"] == b"pass\n"
    assert "LICENSES/MIT.txt" in contents
    unasked = inputs(tmp_path, row(part, uncounted=frozenset(Use)))
    unasked = replace(unasked, contents={**unasked.contents, "py-library": packed(library)})
    contents = files(bundled(tmp_path, unasked))
    assert not any("py-library" in path for path in contents)
    assert b"py-library" not in contents["sbom.cdx.json"]


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(GlmserveError, match="cannot be written"):
        make_bundle(inputs(tmp_path), tmp_path / "none" / "b.tar", use=USE, strict=False)


def test_weights_with_a_manifest_are_packed_whole(tmp_path: Path) -> None:
    model = write(tmp_path / "second", {"a.safetensors": safetensors({"a": (3, 3)}, seed=9), "LICENSE": b"Apache\n"})
    part = replace(weights(model), manifest=weights(model, files=entries({})).manifest)
    made = inputs(tmp_path)
    rows = tuple(row(part) if one.component.id == "tiny" else one for one in made.report.rows)
    made = replace(made, report=replace(made.report, rows=rows), contents={**made.contents, "tiny": packed(model)})
    made = replace(made, trees=(model,))
    assert verify_bundle(bundled(tmp_path, made)) == ()
