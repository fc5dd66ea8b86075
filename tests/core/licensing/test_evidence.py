"""What lies beside a component: texts, files, a model card, a record of origin."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from glmserve.api.components import Manifest
from glmserve.api.provenance import Provenance, SourceComponent, write_origin
from glmserve.licensing.card import CardError, claimed_license
from glmserve.licensing.evidence import gather
from glmserve.licensing.report import Component, Reason, Use, Verdict
from glmserve.licensing.texts import digest
from hypothesis import given, settings
from hypothesis import strategies as st

from .parts import CATALOGUE, judged

MIT = CATALOGUE.text_of("MIT") or ""
CC = CATALOGUE.text_of("CC-BY-NC-ND-4.0") or ""


def manifest(**changes: Any) -> Manifest:
    base = {
        "schema": "glmserve.component/1",
        "id": "x",
        "name": "x",
        "kind": "weights",
        "delivery": "user-supplied",
        "license": {"expression": "MIT", "texts": [{"path": "LICENSE"}]},
        "attribution": {"copyright": ["Copyright (c) 2026 Somebody"]},
    }
    return Manifest.model_validate({**base, **changes})


def found(root: Path, **changes: Any) -> Component:
    return gather(manifest(**changes), root, "a test", progress=lambda name, done, total: None)


def codes(component: Component) -> set[Reason]:
    return {finding.code for finding in component.findings}


def test_a39_a_missing_text_warns_who_runs_and_stops_who_shares(tmp_path: Path) -> None:
    report = judged([found(tmp_path)])
    assert report.verdicts[Use.RUN_LOCAL] is Verdict.ALLOW
    assert Reason.TEXT_MISSING in {f.code for f in report.find("x").rulings[Use.RUN_LOCAL].findings}
    assert report.verdicts[Use.PUBLISH_WEIGHTS] is Verdict.DENY


@pytest.mark.parametrize("content", [b"", b"\x00\x01binary", b"x" * (2 << 20)])
def test_an_empty_binary_or_huge_text_is_missing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "LICENSE").write_bytes(content)
    assert codes(found(tmp_path)) == {Reason.TEXT_MISSING}


@pytest.mark.parametrize("change", [lambda t: t, lambda t: "\ufeff" + t, lambda t: t.replace("\n", "\r\n")])
def test_the_digest_is_that_of_the_normalised_text(tmp_path: Path, change: Any) -> None:
    (tmp_path / "LICENSE").write_bytes(change(MIT).encode())
    pinned = {"expression": "MIT", "texts": [{"path": "LICENSE", "sha256": digest(MIT)}]}
    assert codes(found(tmp_path, license=pinned)) == set()


def test_another_text_than_the_pinned_one_is_an_integrity_failure(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text(MIT + "and a pony")
    pinned = {"expression": "MIT", "texts": [{"path": "LICENSE", "sha256": digest(MIT)}]}
    assert Reason.HASH_MISMATCH in codes(found(tmp_path, license=pinned))


def test_a_text_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(MIT)
    os.symlink(tmp_path / "secret", tmp_path / "LICENSE")
    assert codes(found(tmp_path)) == {Reason.TEXT_MISSING}


def test_a_pipe_in_place_of_a_text_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "LICENSE")
    assert codes(found(tmp_path)) == {Reason.TEXT_MISSING}


def test_a44_a_text_of_another_licence_than_the_declared_one_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text(CC)
    component = found(tmp_path)
    assert codes(component) == {Reason.TEXT_MISMATCH}
    assert judged([component]).verdicts[Use.RUN_LOCAL] is Verdict.UNKNOWN


def test_a42_a_changed_or_missing_file_is_an_integrity_failure(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text(MIT)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    entry = {"path": "model.safetensors", "sha256": hashlib.sha256(b"weights").hexdigest(), "size": 7}
    assert codes(found(tmp_path, files=[entry])) == set()
    (tmp_path / "model.safetensors").write_bytes(b"weightz")
    assert codes(found(tmp_path, files=[entry])) == {Reason.HASH_MISMATCH}
    (tmp_path / "model.safetensors").unlink()
    assert codes(found(tmp_path, files=[entry])) == {Reason.FILE_MISSING}


def test_without_hashing_a_wrong_size_is_still_noticed(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"1234")
    entry = {"path": "model.bin", "sha256": "0" * 64, "size": 5}
    assert Reason.HASH_MISMATCH in codes(gather(manifest(files=[entry]), tmp_path, "a test"))


def test_a_card_that_claims_something_else_makes_the_worse_of_both_count(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text(MIT)
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-nc-nd-4.0\n---\n")
    component = found(tmp_path)
    assert codes(component) == {Reason.METADATA_CONFLICT}
    assert judged([component]).verdicts[Use.RUN_COMMERCIAL] is Verdict.DENY


@pytest.mark.parametrize("tag", ["mit", "MIT", "other\nlicense_name: mit"])
def test_a_card_that_agrees_changes_nothing(tmp_path: Path, tag: str) -> None:
    (tmp_path / "LICENSE").write_text(MIT)
    (tmp_path / "README.md").write_text(f"---\nlicense: {tag}\n---\n# Model\n")
    named = "other" in tag
    assert codes(found(tmp_path)) == ({Reason.METADATA_CONFLICT} if named else set())


@pytest.mark.parametrize(
    "front",
    [
        "license: [mit, apache-2.0]",
        "license: mit\nlicense: apache-2.0",
        "license: !!python/object/apply:os.system [id]",
        "license: {a: b}",
        "license: other",
        "license: mit\n  broken: : :",
        "? [a]\n: b\nlicense: mit\n? [a]\n: c",
        "&a [*a]",
    ],
)
def test_a_card_that_cannot_be_relied_on_is_unknown(tmp_path: Path, front: str) -> None:
    (tmp_path / "LICENSE").write_text(MIT)
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n")
    component = found(tmp_path)
    if codes(component):
        assert judged([component]).verdicts[Use.RUN_LOCAL] is Verdict.UNKNOWN
    else:
        assert claimed_license(tmp_path / "README.md") is None


def test_a_card_without_front_matter_claims_nothing(tmp_path: Path) -> None:
    for text in ("# A model\n", "", "---\nlanguage: en\n---\n"):
        (tmp_path / "README.md").write_text(text)
        assert claimed_license(tmp_path / "README.md") is None


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_in_a_card_claim_something_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    card = tmp_path_factory.mktemp("card") / "README.md"
    card.write_bytes(b"---\n" + data + b"\n---\n")
    try:
        claim = claimed_license(card)
    except CardError:
        return
    assert claim is None or isinstance(claim, str)


def test_what_was_made_from_a_component_inherits_through_its_record_of_origin(tmp_path: Path) -> None:
    from .parts import drafter

    (tmp_path / "LICENSE").write_text(MIT)
    made = Provenance(tool="test", derived_from=(SourceComponent(id="drafter", relation="quantize"),))
    write_origin(tmp_path, made)
    report = judged([found(tmp_path)], ancestors=[drafter()])
    assert Reason.ANCESTOR_CONFLICT in {f.code for f in report.find("x").rulings[Use.PUBLISH_WEIGHTS].findings}
    assert report.verdicts[Use.RUN_COMMERCIAL] is Verdict.DENY
    (tmp_path / ".glmserve-origin.json").write_text("{")
    assert judged([found(tmp_path)]).verdicts[Use.RUN_LOCAL] is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "front", ['license: !!int ""', "license: !!bool x", "license: !!timestamp x", 'x: !!float ""', "? [a]\n: b"]
)
def test_a_tag_that_does_not_fit_its_value_is_a_card_that_cannot_be_relied_on(tmp_path: Path, front: str) -> None:
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n")
    with pytest.raises(CardError):
        claimed_license(tmp_path / "README.md")


def test_blank_lines_before_the_front_matter_hide_no_claim(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("\n \n---\nlicense: cc-by-nc-4.0\n---\n")
    assert claimed_license(tmp_path / "README.md") == "cc-by-nc-4.0"


@pytest.mark.parametrize("name", ["README.md", ".glmserve-origin.json"])
def test_a_pipe_beside_the_files_does_not_hang(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    (tmp_path / "LICENSE").write_text(MIT)
    for finding in found(tmp_path).findings:
        assert str(tmp_path) not in finding.message


UNDECLARED = {"expression": "MIT"}


@pytest.mark.parametrize("name", ["LICENSE.txt", "license.txt", "LICENSE-MODEL", "LICENCE.rst"])
def test_a_second_text_of_another_licence_is_not_overlooked(tmp_path: Path, name: str) -> None:
    (tmp_path / "LICENSE").write_text(MIT)
    (tmp_path / name).write_text(CC)
    component = found(tmp_path, license=UNDECLARED)
    assert Reason.TEXT_MISMATCH in codes(component)
    assert component.texts[0].path == "LICENSE"
    assert judged([component]).verdicts[Use.RUN_COMMERCIAL] is Verdict.UNKNOWN


def test_a_licence_with_one_more_condition_is_not_that_licence(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text(f"{MIT}\nThe Software shall not be used for any commercial purpose.\n")
    assert Reason.TEXT_MISMATCH in codes(found(tmp_path, license=UNDECLARED))


def test_an_undeclared_text_that_is_a_link_is_said_not_to_be_read(tmp_path: Path) -> None:
    (tmp_path / "other").write_text(CC)
    os.symlink(tmp_path / "other", tmp_path / "LICENSE")
    report = judged([found(tmp_path, license=UNDECLARED)])
    assert report.verdicts[Use.PUBLISH_WEIGHTS] is Verdict.UNKNOWN
    assert Reason.TEXT_MISSING in {f.code for f in report.find("x").rulings[Use.RUN_LOCAL].findings}
