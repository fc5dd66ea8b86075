"""Records of origin: written whole or not at all, and read strictly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from glmserve.api import ConfigError, GlmserveError
from glmserve.api.provenance import (
    FILE_NAME,
    MAX_ORIGIN_BYTES,
    Provenance,
    SourceComponent,
    parse_origin,
    read_origin,
    write_origin,
)
from hypothesis import given
from hypothesis import strategies as st

RECORD = Provenance(
    tool="glmserve 0.1.0 quantize",
    derived_from=(
        SourceComponent(id="drafter", relation="quantize", revision="4" * 40, license="CC-BY-NC-ND-4.0"),
        SourceComponent(id="glm-5.3", relation="distill"),
    ),
)


def test_a_record_comes_back_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    assert read_origin(tmp_path) is None
    write_origin(tmp_path, Provenance(tool="old", derived_from=RECORD.derived_from))
    assert write_origin(tmp_path, RECORD) == tmp_path / ".glmserve-origin.json"
    assert read_origin(tmp_path) == RECORD
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert json.loads((tmp_path / FILE_NAME).read_bytes())["schema"] == "glmserve.origin/1"


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_whatever_is_no_record_is_a_sentence(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^here"):
        parse_origin(data, "here")


GOOD = json.loads(RECORD.model_dump_json(by_alias=True))


@pytest.mark.parametrize(
    "value",
    [
        {**GOOD, "schema": "glmserve.origin/2"},
        {**GOOD, "more": 1},
        {**GOOD, "tool": ""},
        {**GOOD, "derived_from": []},
        {**GOOD, "derived_from": [{"id": "a"}]},
        {**GOOD, "derived_from": [{"id": "A", "relation": "pad"}]},
        {**GOOD, "derived_from": [{"id": "a", "relation": "copied"}]},
        {**GOOD, "derived_from": [{"id": "a", "relation": "pad", "license": None}]},
        {key: value for key, value in GOOD.items() if key != "tool"},
        [],
        None,
    ],
)
def test_a_record_with_anything_wrong_is_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps(value))
    with pytest.raises(ConfigError) as refusal:
        read_origin(tmp_path)
    assert str(tmp_path / FILE_NAME) in str(refusal.value)


@pytest.mark.parametrize("data", [b'{"a": 1, "a": 1}', b"[" * 99_999, b"\xff\xfe", b" " * (MAX_ORIGIN_BYTES + 1)])
def test_a_record_that_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        parse_origin(data, "here")


def test_a_place_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(GlmserveError, match="cannot be written"):
        write_origin(tmp_path / "none", RECORD)
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(GlmserveError, match="cannot be written"):
        write_origin(tmp_path, RECORD)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_origin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
