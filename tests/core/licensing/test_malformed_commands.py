"""What nobody should write, and some do: the licence commands answer it with the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from .commands import Run, audited, cc_token, profile, with_drafter

LONG = "9" * 5000
"""More digits than Python makes a number of."""
PAPER = f'document = "a\\u0000b"\nsha256 = "{"0" * 64}"\n'
GRANT = f'[[grants]]\ncomponent = "x"\nrevisions = ["x"]\nuses = ["run-local"]\nlicensor = "x"\n{PAPER}'


@pytest.mark.parametrize("policy", [f"service = {LONG}\n", 'catalogue = ["a\\u0000b"]\n'])
def test_numbers_and_names_that_cannot_be_are_exit_code_2(glmserve: Run, tmp_path: Path, policy: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(policy)
    assert glmserve("licenses", profile(tmp_path), "--policy", file).code == 2


def test_a_number_that_is_too_long_is_exit_code_2_in_a_profile_too(glmserve: Run, tmp_path: Path) -> None:
    assert glmserve("licenses", profile(tmp_path, tail=f"[engine]\nmax_queue = {LONG}\n")).code == 2
    assert glmserve("licenses", profile(tmp_path), "--set", f"engine.max_queue={LONG}").code == 2


def test_a_grant_whose_document_cannot_be_a_file_grants_nothing(glmserve: Run, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(GRANT.replace('component = "x"', 'component = "drafter-glm53-dflash2"'))
    verdict, reasons = audited(glmserve, with_drafter(tmp_path), "run-local", "--policy", file, code=3)
    assert verdict != "allow"
    assert "HASH_MISMATCH" in reasons["drafter-glm53-dflash2"]


@pytest.mark.parametrize("how", [["--drafter", "dflash"], ["--set", "drafter.name=dflsh2"]])
def test_a_misspelt_drafter_does_not_leave_its_terms_out(glmserve: Run, tmp_path: Path, how: list[str]) -> None:
    ran = glmserve("licenses", with_drafter(tmp_path), "--use", "run-commercial", *how)
    assert ran.code == 2
    assert "did you mean 'dflash2'" in ran.err


def test_a_directory_without_packages_is_no_environment_that_is_allowed(glmserve: Run, tmp_path: Path) -> None:
    ran = glmserve("licenses", profile(tmp_path, ""), "--env", "--python", tmp_path)
    assert ran.code == 2
    assert "No package is installed in" in ran.err


def test_a65_every_token_has_to_hold(glmserve: Run) -> None:
    ran = glmserve("licenses", "accept", "drafter-glm53-dflash2", "--accept", cc_token(), "--accept", "MIT")
    assert ran.code == 2
    assert "Recorded" not in ran.err


@pytest.mark.parametrize("second", ["CC-BY-NC-4.0", "no SPDX expression"])
def test_every_licence_tag_of_a_plugin_file_counts(glmserve: Run, tmp_path: Path, second: str) -> None:
    tag = "# SPDX-License-Identifier:"
    (tmp_path / "extra.py").write_text(f"{tag} MIT\nx = 1\n{tag} {second}\n")
    verdict, _ = audited(
        glmserve, profile(tmp_path, tail='[plugins]\nfiles = ["extra.py"]\n[licenses.facts]\nmaas_business = false\n'),
        "run-commercial", code=1,
    )  # fmt: skip
    assert verdict == ("deny" if second == "CC-BY-NC-4.0" else "unknown")
