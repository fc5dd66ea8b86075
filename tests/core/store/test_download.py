"""One file from a server that misbehaves."""

import hashlib
import random
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from glmserve.api import IntegrityError, SourceError
from glmserve.store import download as module
from glmserve.store.download import ATTEMPTS, Remote, download

from .conftest import FileServer

CONTENT = random.Random(1).randbytes(2_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PATH = "/m.gguf"

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def remote(server: FileServer) -> Remote:
    server.files[PATH] = CONTENT
    return Remote(server.url + PATH, SHA256)


def partial(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "a" / "b" / "m.gguf"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk on which no file grows beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_arrives_for_the_user_only_and_tells_how_far_it_is(
    server: FileServer, remote: Remote, target: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    download(remote, target, lambda *state: told.append(state))
    assert target.read_bytes() == CONTENT
    assert not partial(target).exists()
    assert [path.stat().st_mode & 0o777 for path in (target, *target.parents[:2])] == [0o600, 0o700, 0o700]
    fetched = [state for state in told if state[0] == "m.gguf"]
    assert fetched[-1] == ("m.gguf", len(CONTENT), len(CONTENT))
    assert fetched == sorted(fetched)


def test_a_file_that_is_there_is_not_fetched_again(server: FileServer, remote: Remote, target: Path) -> None:
    download(remote, target)
    download(remote, target)
    assert server.paths() == [PATH]


def test_dropped_connections_lose_no_byte(server: FileServer, remote: Remote, target: Path) -> None:
    # More drops than attempts: each brought something, so none counts.
    server.drops[PATH] = [300_000] * 6
    download(remote, target)
    assert target.read_bytes() == CONTENT
    assert [request.start for request in server.requests] == [300_000 * n for n in range(7)]
    assert server.sent(PATH) == len(CONTENT)


def test_what_arrived_is_kept_for_the_next_call(server: FileServer, remote: Remote, target: Path) -> None:
    server.drops[PATH] = [300_000, *[0] * ATTEMPTS]
    with pytest.raises(SourceError, match="what has arrived is kept"):
        download(remote, target)
    assert len(server.requests) == 1 + ATTEMPTS
    assert partial(target).read_bytes() == CONTENT[:300_000]
    download(remote, target)
    assert target.read_bytes() == CONTENT
    assert server.sent(PATH) == len(CONTENT)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_busy_server_is_asked_again(server: FileServer, remote: Remote, target: Path, status: int) -> None:
    server.statuses[PATH] = [status] * (ATTEMPTS - 1)
    assert download(remote, target).read_bytes() == CONTENT


def test_a_server_that_stays_broken_is_named(server: FileServer, remote: Remote, target: Path) -> None:
    server.statuses[PATH] = [503] * 99
    with pytest.raises(SourceError, match="answered 503, after 5 attempts"):
        download(remote, target)
    assert len(server.requests) == ATTEMPTS


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_not_asked_again(server: FileServer, remote: Remote, target: Path, status: int) -> None:
    server.statuses[PATH] = [status] * 99
    with pytest.raises(SourceError, match=f"answered {status}"):
        download(remote, target)
    assert len(server.requests) == 1


def test_an_unreachable_server_is_a_sentence(target: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(SourceError, match="ConnectError"):
        download(Remote(f"http://127.0.0.1:{port}/m", SHA256), target)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/m", "http://a\x00/m", "m"])
def test_an_address_that_cannot_be_used_is_refused_at_once(
    target: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 60.0)
    with pytest.raises(SourceError, match="cannot be fetched"):
        download(Remote(url, SHA256), target)


def test_wrong_bytes_are_thrown_away(server: FileServer, remote: Remote, target: Path) -> None:
    server.files[PATH] = CONTENT[:-1] + b"?"
    with pytest.raises(IntegrityError, match=SHA256):
        download(remote, target)
    assert list(target.parent.iterdir()) == []


def test_a_server_without_ranges_starts_over(server: FileServer, remote: Remote, target: Path) -> None:
    server.ranges = False
    server.drops[PATH] = [300_000]
    assert download(remote, target).read_bytes() == CONTENT
    assert server.sent(PATH) == 300_000 + len(CONTENT)


def test_a_server_without_ranges_that_always_drops_ends_in_a_refusal(
    server: FileServer, remote: Remote, target: Path
) -> None:
    server.ranges = False
    server.drops[PATH] = [300_000] * 99
    with pytest.raises(SourceError, match="after 5 attempts"):
        download(remote, target)
    assert len(server.requests) == 1 + ATTEMPTS


def test_a_file_that_ends_too_early_is_continued(server: FileServer, target: Path) -> None:
    server.files[PATH] = CONTENT[:500_000]
    remote = Remote(server.url + PATH, SHA256, size=len(CONTENT))
    with pytest.raises(SourceError, match="after 5 attempts"):
        download(remote, target)
    server.files[PATH] = CONTENT
    assert download(remote, target).read_bytes() == CONTENT


def test_a_truncated_file_of_unknown_size_is_refused(server: FileServer, remote: Remote, target: Path) -> None:
    server.files[PATH] = CONTENT[:500_000]
    with pytest.raises(IntegrityError):
        download(remote, target)


def test_a_file_that_is_longer_than_pinned_is_refused(server: FileServer, target: Path) -> None:
    server.files[PATH] = CONTENT + bytes(9_000_000)
    with pytest.raises(IntegrityError):
        download(Remote(server.url + PATH, SHA256, size=len(CONTENT)), target)
    assert server.sent(PATH) < 9_000_000


@pytest.mark.parametrize("left", [b"another beginning", CONTENT, CONTENT + b"and more"])
def test_whatever_an_earlier_run_left_the_file_gets_right(
    server: FileServer, remote: Remote, target: Path, left: bytes
) -> None:
    target.parent.mkdir(parents=True)
    partial(target).write_bytes(left)
    assert download(remote, target).read_bytes() == CONTENT


def test_a_file_that_changes_on_the_server_midway_is_started_over(
    server: FileServer, remote: Remote, target: Path
) -> None:
    server.files[PATH] = bytes(len(CONTENT))
    server.drops[PATH] = [300_000]

    def replace(name: str, done: int, total: int) -> None:
        server.files[PATH] = CONTENT

    assert download(remote, target, replace).read_bytes() == CONTENT
    # By If-Range the second answer is the whole file; without, its digest would be found wrong only at the end.
    assert [request.sent_bytes for request in server.requests] == [300_000, len(CONTENT)]


def test_a_full_disk_keeps_what_fits_and_says_so(server: FileServer, remote: Remote, target: Path) -> None:
    with largest_file(700_000), pytest.raises(SourceError, match=r"no room for it.*what has arrived is kept"):
        download(remote, target)
    assert partial(target).read_bytes() == CONTENT[:700_000]
    assert download(remote, target).read_bytes() == CONTENT
    assert server.requests[-1].start == 700_000


def test_a_directory_that_cannot_be_made_is_a_sentence(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file where a directory has to be")
    with pytest.raises(SourceError, match="cannot be written"):
        download(remote, tmp_path / "a" / "b" / "m.gguf")


def test_a_small_file_is_checked_by_the_id_that_git_gives_it(server: FileServer, target: Path) -> None:
    server.files[PATH] = b"{}\n"
    # git hash-object of a file with {} and a line break
    blob = "0967ef424bce6791893e9a57bb952f80fd536e93"
    assert download(Remote(server.url + PATH, blob_sha1=blob), target).read_bytes() == b"{}\n"
    target.unlink()
    server.files[PATH] = b"[]\n"
    with pytest.raises(IntegrityError, match=blob):
        download(Remote(server.url + PATH, blob_sha1=blob), target)
