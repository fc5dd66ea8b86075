"""Checking bundles: damage anywhere is found, and an index that was made to fit hides nothing."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from glmserve.api import ConfigError
from glmserve.licensing.bundle.archive import member_of, write_archive
from glmserve.licensing.bundle.index import FILE_NAME
from glmserve.licensing.bundle.verify import verify_bundle
from glmserve.licensing.report import Reason
from hypothesis import given, settings
from hypothesis import strategies as st

from .assembly import DRAFTER_FILES, bundled, files, rebuilt, safetensors
from .reports import DRAFTER


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundled(tmp_path_factory.mktemp("bundle"))


@settings(max_examples=200, deadline=None)
@given(chosen=st.data())
def test_any_bit_that_flips_is_found(
    bundle: Path, tmp_path_factory: pytest.TempPathFactory, chosen: st.DataObject
) -> None:
    data = bytearray(bundle.read_bytes())
    bit = chosen.draw(st.integers(0, 8 * len(data) - 1))
    data[bit // 8] ^= 1 << bit % 8
    target = tmp_path_factory.getbasetemp() / "flipped.tar"
    target.write_bytes(data)
    assert verify_bundle(target)


def test_a_corpus_of_damaged_bundles_is_found_out(bundle: Path, tmp_path: Path) -> None:
    whole = bundle.read_bytes()
    chance = random.Random(5)
    target = tmp_path / "harmed.tar"
    for round_ in range(60):
        data = bytearray(whole)
        at = chance.randrange(len(data))
        match round_ % 6:
            case 0:
                del data[at:]
            case 1:
                data[at : at + 100] = chance.randbytes(100)
            case 2:
                del data[at // 512 * 512 : at // 512 * 512 + 512]
            case 3:
                data[at:at] = chance.randbytes(chance.randrange(1, 2000))
            case 4:
                data += chance.randbytes(chance.randrange(1, 2000))
            case _:
                other = chance.randrange(len(data)) // 512 * 512
                data[at // 512 * 512 : at // 512 * 512 + 512] = data[other : other + 512]
        if data == whole:
            continue
        target.write_bytes(data)
        assert verify_bundle(target), round_
    with pytest.raises(ConfigError):
        verify_bundle(tmp_path / "missing.tar")


def test_an_archive_that_was_packed_again_by_another_tool_is_found_out(bundle: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, data in files(bundle).items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (tmp_path / "again.tar").write_bytes(buffer.getvalue())
    assert verify_bundle(tmp_path / "again.tar")


def test_files_that_are_added_removed_changed_or_renamed_are_named(bundle: Path, tmp_path: Path) -> None:
    def found(contents: dict[str, bytes]) -> list[tuple[Reason, str]]:
        write_archive(tmp_path / "a.tar", [member_of(p, d) for p, d in contents.items()], epoch_s=0)
        return [(finding.code, finding.message.split()[0]) for finding in verify_bundle(tmp_path / "a.tar")]

    contents = files(bundle)
    assert found(contents) == []
    name = "components/tiny/config.json"
    assert found({**contents, name: b"{}"}) == [(Reason.HASH_MISMATCH, name)]
    assert found({**contents, "more": b"x"}) == [(Reason.UNOWNED_FILE, "more")]
    rest = {path: data for path, data in contents.items() if path != name}
    assert found(rest) == [(Reason.FILE_MISSING, name)]
    assert found({**rest, "moved": contents[name]}) == [(Reason.FILE_MISSING, name), (Reason.UNOWNED_FILE, "moved")]
    assert found({path: data for path, data in contents.items() if path != FILE_NAME})[0][0] is Reason.FILE_MISSING
    assert found({**contents, FILE_NAME: contents[FILE_NAME].replace(b"four-spark", b"five-spark")})
    assert found({**contents, FILE_NAME: b"{}"})
    assert found({**contents, FILE_NAME: b"[" * 100_000})


def test_an_index_made_to_fit_does_not_hide_what_it_vouches_for(bundle: Path, tmp_path: Path) -> None:
    def found(changes: dict[str, bytes | None], change: Callable[[dict[str, Any]], object] = len) -> set[Reason]:
        contents = {p: d for p, d in {**files(bundle), **changes}.items() if d is not None}
        return {finding.code for finding in verify_bundle(rebuilt(tmp_path, contents, change))}

    assert found({}) == set()
    stub = files(bundle)["stubs/drafter.fetch.json"]
    secret = DRAFTER_FILES["model.safetensors"]
    assert Reason.RESTRICTED_CONTENT in found({"docs/readme.txt": secret})
    zipped = io.BytesIO()
    with tarfile.open(fileobj=zipped, mode="w:gz") as tar:
        info = tarfile.TarInfo("x")
        info.size = len(secret)
        tar.addfile(info, io.BytesIO(secret))
    assert Reason.RESTRICTED_CONTENT in found({"docs/readme.txt": zipped.getvalue()})
    for bad in (b"", b"{}", b"[]", stub[:-2], stub.replace(DRAFTER.encode(), b"main"), stub + b" ", b'{"a":1,"a":1}'):
        assert Reason.HASH_MISMATCH in found({"stubs/drafter.fetch.json": bad}), bad
    assert found({"stubs/other.fetch.json": stub})
    assert Reason.FILE_MISSING in found({"stubs/drafter.fetch.json": None})
    for name in ("sbom.cdx.json", "sbom.spdx.json"):
        for bad in (b"", b"{}", b"[]", b'{"bomFormat": "CycloneDX", "components": []}', b"\xff", b"[" * 99_999):
            assert Reason.HASH_MISMATCH in found({name: bad}), bad
        assert Reason.FILE_MISSING in found({name: None})
    assert Reason.FILE_MISSING in found({"NOTICE": None})
    assert Reason.TEXT_MISSING in found({"LICENSES/Apache-2.0.txt": None})

    def included(value: dict[str, Any]) -> None:
        value["components"][0]["included"] = True

    assert Reason.RESTRICTED_CONTENT in found({"stubs/drafter.fetch.json": None}, included)

    def swapped(value: dict[str, Any]) -> None:
        value["files"][4]["component"] = "tiny"

    assert Reason.UNOWNED_FILE in found({}, swapped)

    def strict(value: dict[str, Any]) -> None:
        value["mode"] = "strict"

    assert found({}, strict)


def test_weights_that_are_made_to_look_like_code_are_found_in_a_finished_bundle(bundle: Path, tmp_path: Path) -> None:
    contents = {**files(bundle), "components/glmserve/data.dat": safetensors({"a": (4, 4)})}

    def owned(value: dict[str, Any]) -> None:
        for file in value["files"]:
            if file["path"].endswith("data.dat"):
                file["component"] = "glmserve"

    assert {f.code for f in verify_bundle(rebuilt(tmp_path, contents, owned))} == {Reason.WEIGHTS_IN_WHEEL}
