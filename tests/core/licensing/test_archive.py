"""Archives: the same bytes for the same files, nothing half written, and no other archive taken for one."""

from __future__ import annotations

import io
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from glmserve.api import ConfigError, GlmserveError, IntegrityError
from glmserve.licensing.bundle.archive import Member, collision, member_of, path_fault, write_archive
from glmserve.licensing.bundle.archive_reader import read_archive
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=120)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join).filter(lambda path: not path_fault(path))
TREES = st.dictionaries(PATHS, st.binary(max_size=1500), max_size=6)


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Writes beyond `limit` bytes fail, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def members(files: dict[str, bytes]) -> list[Member]:
    return [member_of(path, data) for path, data in files.items()]


def written(folder: Path, files: dict[str, bytes], epoch_s: int = 0) -> bytes:
    write_archive(folder / "a.tar", members(files), epoch_s=epoch_s)
    return (folder / "a.tar").read_bytes()


SMALL = {"a": b"", "b/c": b"hello", "b/d": bytes(range(256)) * 3}


def test_the_order_of_files_and_the_time_of_day_do_not_show(tmp_path: Path) -> None:
    first = written(tmp_path, SMALL)
    time.sleep(0.01)
    assert written(tmp_path, dict(reversed(SMALL.items()))) == first
    assert written(tmp_path, SMALL, epoch_s=1) != first


def test_what_is_written_comes_back_and_other_tools_read_it(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"#!/bin/sh\n")
    program.chmod(0o755)
    long = "/".join(["x" * 60] * 4) + "/ünïcode.txt"
    made = [*members({**SMALL, long: b"long"}), member_of("bin/program", program)]
    write_archive(tmp_path / "a.tar", made, epoch_s=1_700_000_000)
    entries = read_archive(tmp_path / "a.tar")
    assert [(e.path, e.size, e.sha256, e.executable) for e in entries] == sorted(
        (m.path, m.size, m.sha256, m.executable) for m in made
    )
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == sorted(m.path for m in made)
        assert {(i.uid, i.gid, i.uname, i.gname, i.mtime) for i in tar} == {(0, 0, "", "", 1_700_000_000)}
        assert {(i.name, i.mode) for i in tar if i.mode != 0o644} == {("bin/program", 0o755)}


@settings(max_examples=30, deadline=None)
@given(TREES)
def test_any_files_come_back(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("tree")
    if collision(files):
        with pytest.raises(GlmserveError, match="both a file and a directory"):
            written(folder, files)
        assert list(folder.iterdir()) == []
        return
    written(folder, files)
    found = {entry.path: entry.sha256 for entry in read_archive(folder / "a.tar")}
    assert found == {member.path: member.sha256 for member in members(files)}


def is_seen(target: Path, data: bytes, harmed: bytes) -> bool:
    """Whether reading refuses the harmed archive, or at least finds other files in it."""
    target.write_bytes(data)
    before = read_archive(target)
    target.write_bytes(harmed)
    try:
        return read_archive(target) != before
    except IntegrityError:
        return True


def test_every_single_bit_of_a_tiny_archive_counts(tmp_path: Path) -> None:
    data = written(tmp_path, {"a": b"x"})
    assert len(data) == 2048
    for at in range(len(data)):
        flipped = bytearray(data)
        # Each byte once, and each place in a byte in turn.
        flipped[at] ^= 1 << at % 8
        assert is_seen(tmp_path / "a.tar", data, flipped), at


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_single_bit_of_any_archive_counts(tmp_path_factory: pytest.TempPathFactory, chosen: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("flip")
    data = written(folder, {**SMALL, "long/" * 30 + "x": b"y", "\N{SNOWMAN}": b"pax"})
    bit = chosen.draw(st.integers(0, 8 * len(data) - 1))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    assert is_seen(folder / "a.tar", data, flipped)


@pytest.mark.parametrize("cut", [0, 1, 511, 512, 513, 1024, 1535, 2047, 2048])
def test_a_piece_of_an_archive_is_none(tmp_path: Path, cut: int) -> None:
    data = written(tmp_path, {"a": b"hello"})
    assert len(data) == 2048
    (tmp_path / "cut.tar").write_bytes(data[:cut])
    if cut < len(data):
        with pytest.raises(IntegrityError):
            read_archive(tmp_path / "cut.tar")
    (tmp_path / "more.tar").write_bytes(data + bytes(512))
    with pytest.raises(IntegrityError, match="does not end where its last file does"):
        read_archive(tmp_path / "more.tar")


def foreign(kind: bytes = tarfile.REGTYPE, name: str = "a", link: str = "") -> bytes:
    """What tarfile writes by default for one member, with our owner, mode and time."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    return buffer.getvalue()[:512] + bytes(1024)


@pytest.mark.parametrize(
    "data",
    [
        foreign(tarfile.SYMTYPE, link="/etc/passwd"),
        foreign(tarfile.LNKTYPE, link="b"),
        foreign(tarfile.CHRTYPE),
        foreign(tarfile.BLKTYPE),
        foreign(tarfile.FIFOTYPE),
        foreign(tarfile.DIRTYPE),
        foreign(name="../a"),
        foreign(name="/a"),
        foreign(name="a/../b"),
        foreign(name="a//b"),
        foreign(name="./a"),
        foreign(name="a\\b"),
        foreign(name="C:a"),
        foreign(name="a\x1b[31m"),
        foreign()[:512] + foreign(),
        foreign(name="b")[:512] + foreign(name="a"),
        foreign(name="a")[:512] + foreign(name="a/b"),
        b"\x1f\x8b" + bytes(2000),
        b"PK\x03\x04" + bytes(2000),
        b"not an archive",
        b"",
        bytes(10240),
        random.Random(1).randbytes(4096),
    ],
)
def test_links_devices_and_names_that_lead_outside_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(IntegrityError, match="is not an undamaged bundle") as refusal:
        read_archive(tmp_path / "a.tar")
    assert "\x1b" not in str(refusal.value)


def test_the_plain_archive_of_that_test_would_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(foreign())
    assert [entry.path for entry in read_archive(tmp_path / "a.tar")] == ["a"]


def test_a_header_that_promises_terabytes_is_refused_at_once(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.size, info.mode = 1 << 45, 0o644
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))
    with pytest.raises(IntegrityError, match="ends in the middle"):
        read_archive(tmp_path / "a.tar")


def test_seeded_damage_is_always_refused(tmp_path: Path) -> None:
    data = written(tmp_path, {**SMALL, "long/" * 30 + "x": b"y" * 700})
    chance = random.Random(11)
    for _ in range(200):
        harmed = bytearray(data)
        start = chance.randrange(len(harmed))
        match chance.randrange(5):
            case 0:
                harmed[start : start + 512] = chance.randbytes(512)
            case 1:
                del harmed[start : start + chance.choice([1, 512, 513])]
            case 2:
                harmed[start:start] = chance.choice([b"\0", bytes(512), chance.randbytes(512)])
            case 3:
                block = start // 512 * 512
                harmed[block:block] = harmed[block : block + 1024]
            case _:
                harmed[start] ^= chance.randrange(1, 256)
        assert harmed == data or is_seen(tmp_path / "a.tar", data, harmed)


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    with file_size_limit(5000), pytest.raises(GlmserveError, match="no room for"):
        written(tmp_path, {"a": bytes(9000)})
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_no_file(tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(tmp_path / "a.tar", members(SMALL), epoch_s=0, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_interrupted_leaves_no_file(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from glmserve.licensing.bundle.archive import member_of, write_archive\n"
        "def slowly(what, done, total):\n    print('writing', flush=True)\n    time.sleep(30)\n"
        "write_archive(Path(sys.argv[1]), [member_of('a', b'x' * 9999)], epoch_s=0, progress=slowly)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.tar")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (partial,) = tmp_path.iterdir()
        assert stat.S_IMODE(partial.stat().st_mode) == 0o600
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_an_earlier_archive_as_it_was(tmp_path: Path) -> None:
    before = written(tmp_path, SMALL)
    source = tmp_path / "source"
    source.write_bytes(b"one")
    member = member_of("a", source)
    source.write_bytes(b"two")
    with pytest.raises(IntegrityError, match="changed while it was packed"):
        write_archive(tmp_path / "a.tar", [member], epoch_s=0)
    assert (tmp_path / "a.tar").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "source"]


@pytest.mark.parametrize("change", [b"", b"on", b"onex"])
def test_a_source_that_grew_or_shrank_is_refused(tmp_path: Path, change: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"one")
    member = member_of("a", source)
    source.write_bytes(change)
    with pytest.raises(IntegrityError, match="changed while it was packed"):
        write_archive(tmp_path / "a.tar", [member], epoch_s=0)


def test_only_regular_files_are_packed_and_nothing_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing"):
        with pytest.raises(GlmserveError, match="cannot be"):
            member_of("a", path)


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/..", "a//b", "./a", "a\\b", "c:/a", "a\n", "a" * 1025, "\ud800"])
def test_a_name_that_no_archive_holds_is_refused(path: str) -> None:
    with pytest.raises(GlmserveError, match="cannot be packed"):
        member_of(path, b"")


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "folder", tmp_path / "none" / "a.tar", Path("/dev/null"), tmp_path / ("x" * 300)):
        with pytest.raises(ConfigError):
            write_archive(out, members(SMALL), epoch_s=0)
    for epoch in (-1, 1 << 40):
        with pytest.raises(ConfigError, match="1970"):
            write_archive(tmp_path / "a.tar", members(SMALL), epoch_s=epoch)
    with pytest.raises(GlmserveError, match="there twice"):
        write_archive(tmp_path / "a.tar", [*members(SMALL), *members(SMALL)], epoch_s=0)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_no_file_no_pipe_and_no_directory_is_an_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError):
            read_archive(path)
