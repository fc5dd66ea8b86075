"""The sweep: a restricted file is found renamed, wrapped, saved again, cut up or spelt as text."""

from __future__ import annotations

import base64
import gzip
import io
import random
import tarfile
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from glmserve.api.provenance import FILE_NAME, Provenance, SourceComponent, write_origin
from glmserve.licensing.bundle.restricted import Restricted, parse_tensors, recognise, tensors_of
from glmserve.licensing.bundle.sweep import Sweep
from glmserve.licensing.bundle.windows import PIECE_BYTES, Search, Windows
from glmserve.licensing.report import Component, Finding, Reason, Verdict
from hypothesis import given, settings
from hypothesis import strategies as st

from .assembly import DRAFTER_FILES, TENSORS, code, drafter, entries, safetensors, weights, write
from .reports import component

WEIGHTS = DRAFTER_FILES["model.safetensors"]
PLAIN = {"readme.md": b"# Notes\n" * 20, "data.json": b'{"a": 1}'}


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Restricted:
    """The traits of a drafter whose files are on this machine."""
    return recognise([drafter(write(tmp_path_factory.mktemp("drafter"), DRAFTER_FILES))])


@pytest.fixture(scope="module")
def elsewhere() -> Restricted:
    """Those of one of which only the manifest is known."""
    return recognise([drafter()])


def sweep(
    folder: Path, restricted: Restricted, files: Mapping[str, bytes], part: Component | None = None
) -> list[Finding]:
    part = part or component("pack", "weights", "MIT")
    found = []
    write(folder, files)
    for path in files:
        member, findings = Sweep(restricted, {part.id: part}).file(f"x/{path}", folder / path, part, path.count("/"))
        assert member is not None
        assert member.size == len(files[path])
        found += findings
    return found


def codes(findings: list[Finding]) -> set[Reason]:
    return {finding.code for finding in findings}


def test_what_is_not_restricted_passes(tmp_path: Path, here: Restricted) -> None:
    other = safetensors(TENSORS | {"more": (2, 2)} | {f"other.{i}": (4, 4) for i in range(9)}, seed=99)
    packed = {"a.zip": zipped(PLAIN), "b.tar.gz": tarred(PLAIN), "c.safetensors": other}
    assert sweep(tmp_path, here, {**PLAIN, **packed}) == []


WRAPPED = {
    "notes.txt": WEIGHTS,
    "a.zip": zipped({"notes.txt": WEIGHTS}),
    "b.dat": zipped({"inner.dat": zipped({"x": WEIGHTS})}),
    "c.whl": zipped({"lib/data.tar.gz": tarred({"w": WEIGHTS})}),
    "d.gz": gzip.compress(WEIGHTS),
    "e.tar": tarred({"a/b/c": WEIGHTS}, "w"),
    "f.tar.xz": tarred({"w": WEIGHTS}, "w:xz"),
    "config.txt": DRAFTER_FILES["config.json"],
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_file_that_is_renamed_or_wrapped_is_found_by_its_digest(
    tmp_path: Path, here: Restricted, elsewhere: Restricted, name: str
) -> None:
    for restricted in (here, elsewhere):
        findings = sweep(tmp_path, restricted, {name: WRAPPED[name]})
        assert {(f.code, f.verdict) for f in findings} == {(Reason.RESTRICTED_CONTENT, Verdict.DENY)}
        assert all(finding.message.startswith(f"x/{name} ") for finding in findings)
        assert any("is a file of a restricted component, drafter: " in finding.message for finding in findings)


def test_licence_texts_are_no_secret(tmp_path: Path, here: Restricted) -> None:
    assert sweep(tmp_path, here, {"LICENSE": DRAFTER_FILES["LICENSE"]}) == []


def test_a_copy_that_was_saved_again_is_found_by_its_tensors(tmp_path: Path, here: Restricted) -> None:
    again = safetensors(dict(reversed(TENSORS.items())), seed=1234, format="pt")
    assert len(again) != len(WEIGHTS)
    for files in ({"other.dat": again}, {"other.zip": zipped({"x.dat": again})}, {"x.gz": gzip.compress(again)}):
        (finding,) = sweep(tmp_path, here, files)
        assert finding.code is Reason.RESTRICTED_CONTENT
        assert "likely a copy of drafter" in finding.message
    shard = dict(list(TENSORS.items())[:2])
    assert codes(sweep(tmp_path, here, {"shard": safetensors(shard, seed=4)})) == {Reason.RESTRICTED_CONTENT}
    assert sweep(tmp_path, here, {"one": safetensors({"fc.weight": (33, 96), "b": (2,)}, seed=4)}) == []


LARGE = random.Random(3).randbytes(400_000)


@pytest.mark.parametrize("shift", [0, 1, 63])
def test_a_piece_of_the_weights_is_found_wherever_it_lies(tmp_path: Path, shift: int) -> None:
    root = write(tmp_path / "drafter", {"model.bin": LARGE})
    restricted = recognise([drafter(root, files=[])])
    piece = LARGE[100_000:110_000]
    around = bytes(shift) + b"some text before" + piece + b"and after"
    for data in (around, zipped({"x": around}), zipped({"x": around}, zipfile.ZIP_STORED)):
        findings = sweep(tmp_path / "tree", restricted, {"a.dat": data})
        assert findings
        assert all("holds bytes of the weights of drafter" in finding.message for finding in findings)
    altered = bytes(byte ^ 0x21 for byte in piece)
    assert sweep(tmp_path / "tree", restricted, {"a.dat": altered}) == []


@pytest.mark.parametrize("width", [76, 100_000])
def test_base64_of_a_restricted_file_in_a_source_is_found(tmp_path: Path, here: Restricted, width: int) -> None:
    text = base64.b64encode(WEIGHTS).decode()
    source = 'DATA = """\n' + "\n".join(textwrap.wrap(text, width)) + '\n"""\n'
    (finding,) = sweep(tmp_path, here, {"data.py": source.encode()}, code())
    assert "spells in base64" in finding.message
    assert sweep(tmp_path, here, {"data.py": base64.b64encode(random.Random(1).randbytes(9999))}, code()) == []


def test_what_is_written_for_the_bundle_is_swept_too(here: Restricted) -> None:
    swept = Sweep(here, {})
    assert swept.text("requirements.txt", b"glmserve==0.1\n") == []
    assert codes(swept.text("requirements.txt", WEIGHTS)) == {Reason.RESTRICTED_CONTENT}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.dat", safetensors({"w": (2, 2)})),
        ("a.py", b"GGUF" + (3).to_bytes(4, "little") + bytes(500)),
        ("a.zip", zipped({"x.py": safetensors({"w": (2, 2)})})),
        ("model.pt", zipped({"archive/data.pkl": b"\x80\x02}q\x00." + bytes(2 << 20)}, zipfile.ZIP_STORED)),
        ("big.npy", b"\x93NUMPY\x01\x00" + bytes(2 << 20)),
    ],
)
def test_weights_in_a_component_of_code_are_refused_whoever_made_them(
    tmp_path: Path, elsewhere: Restricted, name: str, data: bytes
) -> None:
    assert codes(sweep(tmp_path, elsewhere, {name: data}, code())) == {Reason.WEIGHTS_IN_WHEEL}
    assert sweep(tmp_path, elsewhere, {name: data}) == []


def test_small_arrays_of_tests_and_tables_pass(tmp_path: Path, elsewhere: Restricted) -> None:
    assert sweep(tmp_path, elsewhere, {"t.npy": b"\x93NUMPY\x01\x00" + bytes(900)}, code()) == []


def test_what_cannot_be_looked_into_is_refused(tmp_path: Path, elsewhere: Restricted) -> None:
    deep = zipped({"x": PLAIN["readme.md"]})
    for _ in range(4):
        deep = zipped({"x": deep})
    bomb = zipped({"x": bytes(200 << 20)})
    for data in (deep, bomb, b"7z\xbc\xaf\x27\x1c" + bytes(600), tarred({"../x": b"x"})):
        (finding,) = sweep(tmp_path, elsewhere, {"a.bin": data})
        assert finding.code is Reason.UNOWNED_FILE
        assert "cannot be vouched for" in finding.message


def origin(folder: Path, id: str, relation: str = "quantize") -> None:
    source = {"id": id, "relation": relation, "license": "CC-BY-NC-ND-4.0"}
    write_origin(folder, Provenance(tool="test", derived_from=(SourceComponent.model_validate(source),)))


def test_derived_files_inherit_from_the_record_beside_or_above_them(tmp_path: Path, elsewhere: Restricted) -> None:
    files = {"cache/rank0/pages.bin": b"quantised beyond recognition", "other/x": b"x"}
    assert sweep(tmp_path, elsewhere, files) == []
    origin(tmp_path / "cache", "drafter")
    (finding,) = sweep(tmp_path, elsewhere, files)
    assert finding.code is Reason.RESTRICTED_CONTENT
    assert "cache/rank0/pages.bin is made from drafter" in finding.message
    linked = component("pack", "weights", "MIT", root=tmp_path)
    (tmp_path / "flat").symlink_to(tmp_path / "cache" / "rank0" / "pages.bin")
    _, found = Sweep(elsewhere, {}).file("x/flat", (tmp_path / "flat").resolve(), linked, 0)
    assert codes(found) == {Reason.RESTRICTED_CONTENT}
    origin(tmp_path / "cache", "drafter", "distill")
    assert sweep(tmp_path, elsewhere, files) == []


def test_a_record_that_the_manifest_does_not_repeat_is_refused(tmp_path: Path, elsewhere: Restricted) -> None:
    origin(tmp_path, "glm-5.3")
    (finding,) = sweep(tmp_path, elsewhere, {"a": b"a"})
    assert (finding.code, finding.verdict) == (Reason.ANCESTOR_UNRESOLVED, Verdict.UNKNOWN)
    derived = component("pack", "weights", "MIT", derived_from=[{"id": "glm-5.3", "relation": "quantize"}])
    assert sweep(tmp_path, elsewhere, {"a": b"a"}, derived) == []
    (tmp_path / FILE_NAME).write_bytes(b"{}")
    (finding,) = sweep(tmp_path, elsewhere, {"a": b"a"}, derived)
    assert "cannot be read" in finding.message
    packed = zipped({f"cache/{FILE_NAME}": b"{}"})
    assert codes(sweep(tmp_path / "new", elsewhere, {"a.zip": packed}, derived)) == {Reason.ANCESTOR_UNRESOLVED}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, len(LARGE) - 20_000), st.binary(max_size=200), st.integers(1, 70_000))
def test_long_pieces_are_found_and_foreign_ones_never(at: int, before: bytes, chunk: int) -> None:
    windows = Windows(len(LARGE))
    assert windows.add(io.BytesIO(LARGE), "mine", len(LARGE)) == len(LARGE)
    for data, owner in ((before + LARGE[at : at + 20_000], "mine"), (random.Random(at).randbytes(20_000), "")):
        search = Search(windows)
        for start in range(0, len(data), chunk):
            search.feed(data[start : start + chunk])
        assert search.found == owner


def test_pieces_of_large_files_are_thinned_and_padding_is_no_piece() -> None:
    whole, thin, empty = Windows(len(LARGE)), Windows(1 << 40), Windows(0)
    for windows in (whole, thin):
        windows.add(io.BytesIO(LARGE), "x", len(LARGE))
    assert len(thin) < len(whole) // 16
    empty.add(io.BytesIO(b"\x5a" * 5000 + b"\x5a\0" * 5000 + b"Z short" + bytes(PIECE_BYTES)), "x", 1 << 30)
    assert len(empty) == 0
    assert empty.find(LARGE) == ""


def test_what_is_here_counts_beside_what_the_manifest_lists(tmp_path: Path) -> None:
    root = write(tmp_path, {**DRAFTER_FILES, ".gitattributes": b"*.safetensors filter=lfs\n" * 9, "small": b"x"})
    restricted = recognise([drafter(root, files=[])])
    assert set(restricted.digests.values()) == {"drafter: config.json", "drafter: model.safetensors"}
    assert restricted.tensors["drafter"] == frozenset(TENSORS.items())
    listed = recognise([weights(root, files=entries({"a": b"a" * 100, "b": b"short"}))])
    assert set(listed.digests.values()) == {"tiny: a"}


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"{", b'{"a": 1}', b'{"a": {"shape": 3}}', b'{"a": {"shape": ["x"]}}', b"[" * 99_999, b"\xff"],
)
def test_a_damaged_header_has_no_tensors(header: bytes) -> None:
    assert parse_tensors(header) == frozenset()
    assert tensors_of(io.BytesIO(len(header).to_bytes(8, "little") + header)) == frozenset()
    assert tensors_of(io.BytesIO(header)) == frozenset()
