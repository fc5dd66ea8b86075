"""Headers over HTTP: what is asked for, what is refused, and that it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from glmserve.api import CheckpointError, GlmserveError, IntegrityError, SourceError
from glmserve.store import remote
from glmserve.store.remote import read_headers
from glmserve.store.safetensors_reader import SafetensorsCheckpoint
from glmserve.store.sources import HubSource

from ..distributions import glmserve
from ..engine import tiny
from . import files
from .conftest import FileServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB = HubSource("org/model", COMMIT)

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def hub(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """In a process of its own HF_ENDPOINT names it; here the library has read that."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    return server


def offer(hub: FileServer, folder: Path, **changed: bytes) -> None:
    """Answer for the model in `folder`, with some files' bytes changed after their digests were told."""
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.add_repository("org/model", COMMIT, contents, {name for name in contents if name.endswith("safetensors")})
    for name, content in changed.items():
        hub.files[at(name.replace("__", "."))] = content


def at(name: str) -> str:
    return f"/org/model/resolve/{COMMIT}/{name}"


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("first_bytes", [16, 1 << 17])
def test_headers_from_a_hub_are_those_of_the_files(
    hub: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, ranges: bool, first_bytes: int
) -> None:
    monkeypatch.setattr(remote, "FIRST_BYTES", first_bytes)
    hub.ranges = ranges
    files.write_safetensors(tmp_path, shards)
    offer(hub, tmp_path)
    found, expected = read_headers(HUB), SafetensorsCheckpoint(tmp_path)
    assert found.config == expected.config
    assert found.tensors == expected.tensors


def test_only_headers_are_sent(hub: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_BYTES", 512)
    files.write_safetensors(tmp_path, 2)
    offer(hub, tmp_path)
    read_headers(HUB)
    for shard in tmp_path.glob("*.safetensors"):
        header = 8 + int.from_bytes(shard.read_bytes()[:8], "little")
        assert hub.sent(at(shard.name)) == max(header, 512)
        assert hub.paths().count(at(shard.name)) <= 2
        assert shard.stat().st_size > 10 * header


def test_a_short_header_costs_one_request(hub: FileServer, tmp_path: Path) -> None:
    files.write_safetensors(tmp_path)
    offer(hub, tmp_path)
    read_headers(HUB)
    assert hub.paths().count(at("model.safetensors")) == 1


def test_weights_cannot_be_read_from_headers(hub: FileServer, tmp_path: Path) -> None:
    files.write_safetensors(tmp_path)
    offer(hub, tmp_path)
    with pytest.raises(CheckpointError, match=r"is not here: only its headers were read; fetch it with `glmserve pull"):
        read_headers(HUB).read("model.norm.weight")


def test_a_dropped_connection_is_tried_again(hub: FileServer, tmp_path: Path) -> None:
    files.write_safetensors(tmp_path)
    offer(hub, tmp_path)
    hub.drops[at("model.safetensors")] = [5, 40]
    hub.statuses[at("config.json")] = [503]
    assert read_headers(HUB).tensors == SafetensorsCheckpoint(tmp_path).tensors


def test_a_server_that_trickles_is_left_at_the_deadline(
    hub: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "DEADLINE_S", 0.0)
    monkeypatch.setattr(remote, "FIRST_BYTES", 1 << 20)
    files.write_safetensors(tmp_path)
    offer(hub, tmp_path, config__json=b" " * 300_000)
    with pytest.raises(SourceError, match=r"config\.json of .* cannot be fetched \(ReadTimeout: no answer within 0 s,"):
        read_headers(HUB)


def test_a_configuration_that_is_not_the_commits_is_refused(hub: FileServer, tmp_path: Path) -> None:
    files.write_safetensors(tmp_path)
    good = (tmp_path / "config.json").read_bytes()
    offer(hub, tmp_path, config__json=good.replace(b"64", b"65"))
    with pytest.raises(IntegrityError, match=r"^config\.json of .* does not have the digest that the hub gives for it"):
        read_headers(HUB)


def test_a_shard_of_another_size_is_refused(hub: FileServer, tmp_path: Path) -> None:
    files.write_safetensors(tmp_path)
    offer(hub, tmp_path, model__safetensors=(tmp_path / "model.safetensors").read_bytes() + b"0")
    with pytest.raises(IntegrityError, match=r"^model\.safetensors of hf:org/model@\w+ has \d+ bytes on the server"):
        read_headers(HUB)


def test_an_index_that_names_what_no_shard_holds_is_refused(hub: FileServer, tmp_path: Path) -> None:
    files.write_safetensors(tmp_path, 2)
    index = tmp_path / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    told["weight_map"]["model.absent.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(told))
    offer(hub, tmp_path)
    with pytest.raises(IntegrityError, match=r"names 'model\.absent\.weight', which its shard does not hold\.$"):
        read_headers(HUB)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"model.safetensors": b"x"}, "has no config.json"),
        ({"config.json": b"{}", "model.gguf": b"x"}, "holds no safetensors file"),
        (
            {"config.json": b"{}", "a.safetensors": b"x", "b.safetensors": b"y"},
            "holds 2 safetensors files and no model",
        ),
        ({"config.json": b"[]", "model.safetensors": b"x"}, "is not a JSON object"),
        (
            {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"w": "absent.safetensors"}}'},
            "lacks 1 shard(s), first absent.safetensors",
        ),
        (
            {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"w": "../w.safetensors"}}'},
            "which is not a safetensors file beside it",
        ),
    ],
)
def test_a_repository_without_a_model_is_refused_in_a_sentence(
    hub: FileServer, contents: dict[str, bytes], message: str
) -> None:
    hub.add_repository("org/model", COMMIT, contents, set())
    with pytest.raises(GlmserveError) as caught:
        read_headers(HUB)
    assert message in str(caught.value)
    assert str(caught.value).endswith(".")


def test_damaged_headers_are_refused_in_a_sentence(hub: FileServer, tmp_path: Path) -> None:
    files.write_safetensors(tmp_path)
    good = (tmp_path / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    for bad in files.damaged(good, header, 40, seed=3):
        contents = {"config.json": (tmp_path / "config.json").read_bytes(), "model.safetensors": bad}
        hub.add_repository("org/model", COMMIT, contents, {"model.safetensors"})
        files.survives(lambda: read_headers(HUB), 64 << 20)


def test_a_dry_run_asks_the_hub_only_when_told_to(hub: FileServer, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    tiny.write_checkpoint(model)
    offer(hub, model)
    profile = tmp_path / "tiny.toml"
    profile.write_text(
        f'[model]\nsource = "{HUB}"\nserved_name = "tiny"\nlicense = "CC0-1.0"\n[engine]\nmax_context = 256\n'
    )
    asked = ("run", "--dry-run", "--format", "json", "--profile", str(profile))
    home = {"HF_ENDPOINT": hub.url, "GLMSERVE_HOME": str(tmp_path / "home")}
    silent = glmserve(*asked, **home)
    assert (silent.returncode, json.loads(silent.stdout)["figures"]) == (0, None)
    assert hub.requests == []
    plan = json.loads(glmserve(*asked, "--fetch-headers", **home).stdout)
    assert plan["present"] is False
    assert plan["providers"]["quantization"] == "dense"
    stored = sum(info.nbytes for info in SafetensorsCheckpoint(model).tensors.values())
    assert plan["figures"]["disk"]["model_bytes"] == stored
    assert not (tmp_path / "home").exists()
