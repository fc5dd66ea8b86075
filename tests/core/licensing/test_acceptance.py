"""The record of what was accepted: it holds what was written, and notices everything else."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from glmserve.api import ConfigError
from glmserve.licensing.acceptance import accept, check_token, default_file, read_ledger
from glmserve.licensing.report import LicenseText
from hypothesis import given, settings
from hypothesis import strategies as st

from .parts import drafter

TEXT = LicenseText("", "ab" * 32, "You may.")
NOW = datetime(2026, 12, 1, tzinfo=UTC)


def write(path: Path, count: int = 3, now: datetime = NOW) -> None:
    for number in range(count):
        accept(
            path,
            drafter().manifest,
            f"LicenseRef-{number}",
            TEXT,
            uses=["run-local"],
            facts={"purpose": "noncommercial"},
            tool="glmserve test",
            catalogue="1",
            actor="somebody",
            now=now,
        )


def test_what_was_accepted_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "acceptances.jsonl"
    write(path)
    ledger = read_ledger(path, NOW)
    assert [record.license for record in ledger.records] == ["LicenseRef-0", "LicenseRef-1", "LicenseRef-2"]
    assert ledger.problems == ()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ledger.state(drafter().manifest, "licenseref-1", TEXT.sha256) == "valid"
    assert ledger.state(drafter().manifest, "LicenseRef-1", "cd" * 32) == "stale"
    assert ledger.state(drafter(revision="0" * 40).manifest, "LicenseRef-1", TEXT.sha256) == "stale"
    assert ledger.state(drafter().manifest, "MIT", TEXT.sha256) == "missing"
    assert ledger.state(drafter(id="other").manifest, "LicenseRef-1", TEXT.sha256) == "missing"


def test_no_file_is_no_problem(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "none").problems == ()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_changed_byte_before_the_last_line_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "acceptances.jsonl"
    write(path)
    whole = path.read_bytes()
    end = whole.rstrip(b"\n").rfind(b"\n")
    at = data.draw(st.integers(0, end))
    bit = data.draw(st.integers(0, 7))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
    ledger = read_ledger(path, NOW)
    assert ledger.problems != ()
    assert len(ledger.records) < 3


def test_a_cut_a_reordered_and_an_inserted_line_end_what_counts(tmp_path: Path) -> None:
    path = tmp_path / "acceptances.jsonl"
    write(path)
    one, two, three = path.read_text().splitlines(keepends=True)
    for text, kept in [
        (one + two + three[:-9], 2),
        (one + three, 1),
        (two + one + three, 0),
        (one + one + two, 1),
        (one + "{}\n" + two, 1),
        (one + "not json\n", 1),
        (one + two + three.rstrip("\n"), 2),
    ]:
        path.write_text(text)
        ledger = read_ledger(path, NOW)
        assert (len(ledger.records), len(ledger.problems)) == (kept, 1), text


def test_a_time_in_the_future_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "acceptances.jsonl"
    write(path, 1, NOW + timedelta(days=1))
    ledger = read_ledger(path, NOW)
    assert ledger.records == ()
    assert "future" in ledger.problems[0]


def test_a_file_that_others_can_write_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "acceptances.jsonl"
    write(path)
    path.chmod(0o666)
    assert read_ledger(path, NOW).records == ()


def test_nothing_is_added_to_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "acceptances.jsonl"
    write(path)
    path.write_text(path.read_text()[:-5])
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="away and accept again"):
        write(path, 1)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be recorded"):
        write(tmp_path / "file" / "acceptances.jsonl", 1)
    link = tmp_path / "acceptances.jsonl"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be recorded"):
        write(link, 1)


@pytest.mark.parametrize(
    "token",
    [
        "LicenseRef-GLM-5.3",
        "LicenseRef-GLM-5.3@sha256:ab",
        "LicenseRef-GLM-5.3@sha256:" + "c" * 12,
        "MIT@sha256:" + "ab" * 6,
    ],
)
def test_a65_a_token_without_the_right_digest_accepts_nothing(token: str) -> None:
    with pytest.raises(ConfigError, match="--accept"):
        check_token(token, "LicenseRef-GLM-5.3", TEXT)


def test_a65_a_token_with_at_least_twelve_right_digits_accepts() -> None:
    check_token(f"LicenseRef-GLM-5.3@sha256:{TEXT.sha256[:12]}", "LicenseRef-GLM-5.3", TEXT)
    check_token(f"licenseref-glm-5.3@sha256:{TEXT.sha256.upper()}", "LicenseRef-GLM-5.3", TEXT)


def test_records_lie_with_the_users_data_and_not_in_a_cache() -> None:
    assert default_file({"GLMSERVE_HOME": "/h"}) == Path("/h/acceptances.jsonl")
    assert default_file({"XDG_DATA_HOME": "/d"}) == Path("/d/glmserve/acceptances.jsonl")
    assert default_file({}).parts[-3:] == ("share", "glmserve", "acceptances.jsonl")


def test_a_record_says_who_when_what_and_with_which_tool(tmp_path: Path) -> None:
    path = tmp_path / "acceptances.jsonl"
    write(path, 1)
    record = json.loads(path.read_text())
    assert set(record) == {
        *("component", "revision", "license", "text_sha256", "uses", "facts", "time", "tool", "catalogue", "actor"),
        "prev",
    }
