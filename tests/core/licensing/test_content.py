"""What bytes are, whatever they are called and however deep they lie."""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import io
import lzma
import os
import pickle
import random
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from glmserve.licensing.content import unpack
from glmserve.licensing.content.walk import MAX_DEPTH, Item, sniff, walk
from hypothesis import given, settings
from hypothesis import strategies as st

from .wheels import safetensors, zipped

GGUF = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(4))
    return buffer.getvalue()


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(4))
    return buffer.getvalue()


def torch_zip() -> bytes:
    return zipped({"archive/data.pkl": pickle.dumps({}), "archive/data/0": bytes(16)})


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def one(name: str, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), data


def link(name: str, target: str, type: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type, target
    return info, b""


def items(path: Path, data: bytes) -> list[Item]:
    path.write_bytes(data)
    return list(walk(path))


WEIGHTS: dict[str, bytes] = {
    "safetensors": safetensors(),
    "gguf": GGUF,
    "npy": npy(),
    "npz": npz(),
    "torch-zip": torch_zip(),
    "pickle": pickle.dumps({"w": [1.0] * 10}),
}


@pytest.mark.parametrize("kind", sorted(WEIGHTS))
def test_weights_are_known_by_their_bytes(kind: str) -> None:
    assert sniff(WEIGHTS[kind][:512], len(WEIGHTS[kind])) == kind


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [{"a": 1}, [1, 2], (1,), 7, 1.5, "text", b"bytes", None, {1}, 1 << 70])
def test_pickles_of_every_protocol_are_known(protocol: int, value: object) -> None:
    data = pickle.dumps(value, protocol)
    assert sniff(data[:512], len(data)) == "pickle"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"G", b"GGUF is a file format", b"{}", b"\x80", b"\x80\x02 and so on", b"PK\x03\x04"),
        *((20).to_bytes(8, "little") + b"not json at all.....", (1 << 40).to_bytes(8, "little") + b'{"w"'),
        zipped({"readme.txt": b"hello"}),
    ],
)
def test_other_bytes_are_not_weights(data: bytes) -> None:
    assert sniff(data[:512], len(data)) is None


def test_an_item_has_the_digest_and_size_of_the_bytes(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3 << 20)
    (item,) = items(tmp_path / "x.dat", data)
    assert (item.names, item.size, item.sha256) == (("x.dat",), len(data), hashlib.sha256(data).hexdigest())
    assert (item.kind, item.problem, item.warning) == (None, "", "")


def test_a_walk_takes_the_same_memory_for_any_size(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(zipped({"big": bytes(48 << 20)})))
    tracemalloc.start()
    try:
        assert [item.size for item in walk(tmp_path)][-1] == 48 << 20
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_a_tree_is_walked_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "a/z", "a/y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [item.names for item in walk(tmp_path)] == [("a/y",), ("a/z",), ("b",)]


PACK: dict[str, Callable[[bytes], bytes]] = {
    "zip": lambda data: zipped({"inner": data}),
    "tar": lambda data: tarred(one("inner", data)),
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("outer", sorted(PACK))
@pytest.mark.parametrize("inner", sorted(PACK))
def test_renamed_weights_are_found_two_archives_deep(outer: str, inner: str, tmp_path: Path) -> None:
    data = safetensors()
    found = [item for item in items(tmp_path / "notes.txt", PACK[outer](PACK[inner](data))) if item.kind]
    assert [(item.kind, item.sha256) for item in found] == [("safetensors", hashlib.sha256(data).hexdigest())]
    assert len(found[0].names) == 3


def test_an_archive_that_lies_too_deep_is_a_problem(tmp_path: Path) -> None:
    data = safetensors()
    for _ in range(MAX_DEPTH):
        data = zipped({"inner": data})
    assert [item.kind for item in items(tmp_path / "x", data)][-1] == "safetensors"
    *_, last = items(tmp_path / "x", zipped({"inner": data}))
    assert f"more than {MAX_DEPTH} archives deep" in last.problem


def test_a_zip_behind_a_program_is_looked_into(tmp_path: Path) -> None:
    found = items(tmp_path / "run", b"#!/bin/sh\nexit\n" + zipped({"w": safetensors()}))
    assert [item.kind for item in found] == [None, "safetensors"]


def test_weights_in_a_damaged_archive_do_not_pass_silently(tmp_path: Path) -> None:
    whole = zipped({"w": random.Random(2).randbytes(9000)})
    damaged = bytearray(whole)
    damaged[5000] ^= 1
    short_gz, short_tar = gzip.compress(b"x" * 99)[:-9], tarred(one("a", bytes(999)))[:800]
    for data in (bytes(damaged), whole[:-40] + bytes(40), short_gz, short_tar):
        assert any(item.problem for item in items(tmp_path / "x", data))


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (link("a", "/etc/passwd"), "link"),
        (link("a", "b", tarfile.LNKTYPE), "link"),
        (link("a", "", tarfile.FIFOTYPE), "no regular file"),
        (link("a", "", tarfile.CHRTYPE), "no regular file"),
        (one("../a", b""), "leaves"),
        (one("/a", b""), "leaves"),
        (one("a\\b", b""), "characters"),
        (one("a\x1b[2Jb", b""), "characters"),
    ],
)
def test_what_is_no_file_in_a_tar_is_reported_and_not_followed(
    member: tuple[tarfile.TarInfo, bytes], why: str, tmp_path: Path
) -> None:
    _, item = items(tmp_path / "x.tar", tarred(member))
    assert why in item.problem
    assert (item.size, item.sha256) == (0, "")


def test_what_is_no_file_in_a_zip_is_reported_and_not_followed(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        a_link = zipfile.ZipInfo("link")
        a_link.external_attr = 0o120777 << 16
        archive.writestr(a_link, "/etc/passwd")
        archive.writestr("../outside", "x")
        archive.writestr("C:/x", "x")
    found = items(tmp_path / "x.zip", buffer.getvalue())
    assert len([item for item in found if item.problem]) == 3


def test_a_name_that_is_there_twice_is_a_problem(tmp_path: Path) -> None:
    assert any("twice" in i.problem for i in items(tmp_path / "x", tarred(one("a", b"1"), one("a", b"2"))))
    twice = zipped({"a": b"1", "b": b"2"}).replace(b"b", b"a")
    assert any("twice" in i.problem for i in items(tmp_path / "x", twice))


def test_bytes_behind_the_end_of_a_tar_are_a_problem(tmp_path: Path) -> None:
    assert not any(item.problem for item in items(tmp_path / "x", tarred(one("a", b"1"))))
    *_, last = items(tmp_path / "x", tarred(one("a", b"1")) + safetensors())
    assert "follow the end" in last.problem


def test_links_and_pipes_on_disk_are_reported_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(safetensors())
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(tmp_path / "target")
    (tree / "loop").symlink_to(tree)
    os.mkfifo(tree / "pipe")
    found = list(walk(tree))
    assert [(item.names, item.kind) for item in found] == [(("link",), None), (("loop",), None), (("pipe",), None)]
    assert all(item.problem for item in found)
    assert [item.problem for item in walk(tree / "link")] == ["it is a symbolic link"]


def test_a_bomb_stops_the_walk_of_its_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "FREE_BYTES", 1 << 20)
    (tmp_path / "a").write_bytes(gzip.compress(gzip.compress(bytes(32 << 20))))
    (tmp_path / "b").write_bytes(safetensors())
    found = list(walk(tmp_path))
    assert any("unpacks to more than" in item.problem for item in found)
    assert found[-1].kind == "safetensors"
    assert sum(item.size for item in found) < 2 << 20


def test_archives_that_nobody_here_can_open_are_a_problem(tmp_path: Path) -> None:
    for start in (b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07\x01\x00"):
        (item,) = items(tmp_path / "x", start + bytes(100))
        assert "cannot be looked into" in item.problem


def test_weights_that_are_spelt_as_text_are_conspicuous(tmp_path: Path) -> None:
    noise = random.Random(3).randbytes(120_000)
    spelt = {
        "a.py": b'W = "' + base64.b64encode(noise) + b'"\n',
        "b.py": b"W = (\n" + b"".join(b'    "%s"\n' % line for line in base64.encodebytes(noise).split()) + b")\n",
        "c.py": b'W = b"' + "".join(f"\\x{byte:02x}" for byte in noise).encode() + b'"\n',
    }
    for name, data in spelt.items():
        (item,) = items(tmp_path / name, data)
        assert "binary data as text" in item.warning, name


def test_honest_text_is_not_conspicuous(tmp_path: Path) -> None:
    digests = "".join(f"{hashlib.sha256(bytes([i % 256, i // 256])).hexdigest()}  file{i}\n" for i in range(3000))
    prose = "a line of ordinary text, as people write it\n" * 9000
    for name, text in {"sums.txt": digests, "prose.md": prose, "icon.py": f"I = '{'A' * 900}'\n"}.items():
        (item,) = items(tmp_path / name, text.encode())
        assert item.warning == "", name


BEGINNINGS = [
    *(b"PK\x03\x04", b"\x1f\x8b\x08", b"BZh91AY&SY", b"\xfd7zXZ\0"),
    *(zipped({"a": b"1"}), tarred(one("a", b"1")), gzip.compress(b"1"), lzma.compress(b"1")),
]


@settings(max_examples=150, deadline=None)
@given(start=st.sampled_from(BEGINNINGS), cut=st.integers(0, 400), rest=st.binary(max_size=400))
def test_no_bytes_make_a_walk_fail(
    start: bytes, cut: int, rest: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    found = items(path, start[:cut] + rest + start[cut:])
    assert found[0].names == ("fuzzed",)
