"""Safetensors directories, single and sharded; damaged ones refused in one sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from glmserve.api import CheckpointError, GlmserveError, IntegrityError
from glmserve.store.checkpoint import open_checkpoint
from safetensors.torch import save_file

from .files import damaged, survives, write_safetensors

EMBEDDING = "model.embed_tokens.weight"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_come_back(tmp_path: Path, shards: int, dtype: torch.dtype) -> None:
    made = write_safetensors(tmp_path, shards, dtype)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.format == "safetensors"
    assert checkpoint.config["hidden_size"] == 64
    assert set(checkpoint.tensors) == set(made)
    for name, weight in made.items():
        info = checkpoint.tensors[name]
        assert info.shape == tuple(weight.shape)
        assert info.nbytes == weight.nbytes
        assert info.dtype == {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
        assert torch.equal(checkpoint.read(name), weight)


def test_rows_are_rows_of_the_whole(tmp_path: Path) -> None:
    made = write_safetensors(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    rows = torch.tensor([3, 0, 39, 3])
    assert torch.equal(checkpoint.read_rows(EMBEDDING, rows), made[EMBEDDING][rows])
    with pytest.raises(CheckpointError, match="row"):
        checkpoint.read_rows(EMBEDDING, torch.tensor([40]))
    with pytest.raises(CheckpointError, match="2-D"):
        checkpoint.read_rows("model.norm.weight", rows)
    with pytest.raises(CheckpointError, match=r"no tensor 'lm_head\.weight'"):
        checkpoint.read("lm_head.weight")


def test_integer_tensors_keep_their_type(tmp_path: Path) -> None:
    write_safetensors(tmp_path)
    trellis = torch.arange(-6, 6, dtype=torch.int16).reshape(3, 4)
    save_file({"q": trellis, "empty": torch.empty((0, 4))}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensors["q"].dtype == "I16"
    assert torch.equal(checkpoint.read("q"), trellis)
    assert checkpoint.read("empty").shape == (0, 4)


def test_fingerprint_follows_configuration_and_files(tmp_path: Path) -> None:
    write_safetensors(tmp_path, 2)
    first = open_checkpoint(tmp_path).fingerprint
    assert open_checkpoint(tmp_path).fingerprint == first
    shard = tmp_path / "model-00002-of-00002.safetensors"
    os.utime(shard, ns=(1, 1))
    second = open_checkpoint(tmp_path).fingerprint
    assert second != first
    (tmp_path / "config.json").write_text("{}")
    os.utime(tmp_path / "config.json", ns=(1, 1))
    assert open_checkpoint(tmp_path).fingerprint not in (first, second)


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda d: (d / "model-00002-of-00003.safetensors").unlink(), "lacks 1 shard"),
        (lambda d: change_index(d, lambda m: m.update(ghost="model-00001-of-00003.safetensors")), "'ghost'"),
        (lambda d: change_index(d, lambda m: m.update(ghost="../model.safetensors")), "beside it"),
        (lambda d: change_index(d, lambda m: m.update(ghost=7)), "beside it"),
        (lambda d: change_index(d, lambda m: m.clear()), "weight_map"),
        (lambda d: (d / INDEX).write_text("[]"), "not a JSON object"),
        (lambda d: (d / INDEX).write_text("{"), "not valid JSON"),
        (lambda d: (d / INDEX).unlink(), "3 safetensors files but no"),
        (lambda d: (d / "config.json").write_text("[" * 100_000), "not valid JSON"),
        (
            lambda d: (d / "model-00002-of-00003.safetensors").write_bytes(
                (d / "model-00001-of-00003.safetensors").read_bytes()
            ),
            "is in both",
        ),
    ],
)
def test_shards_and_index_that_disagree_are_named(
    tmp_path: Path, harm: Callable[[Path], object], sentence: str
) -> None:
    write_safetensors(tmp_path, 3)
    harm(tmp_path)
    with pytest.raises(GlmserveError, match=sentence):
        open_checkpoint(tmp_path)


def entry(shape: object = (2,), offsets: object = (0, 8), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({"t": entry()}, None),
        ({"t": entry(shape=(3,))}, "malformed"),
        ({"t": entry(shape=(-2,))}, "malformed"),
        ({"t": entry(shape=(True, 2))}, "malformed"),
        ({"t": entry(shape=(1 << 61,), offsets=(0, 1 << 63))}, "malformed"),
        ({"t": entry(offsets=(0,))}, "malformed"),
        ({"t": entry(dtype="F31")}, "malformed"),
        ({"t": entry(dtype=[])}, "malformed"),
        ({"t": []}, "malformed"),
        ({"t": entry(offsets=(8, 16))}, "gap"),
        ({"t": entry(), "u": entry()}, "overlaps"),
        ({"t": entry(shape=(4,), offsets=(0, 16))}, "take 16 bytes"),
        ({}, "take 0 bytes"),
        ([], "not a JSON object"),
    ],
)
def test_headers(tmp_path: Path, header: object, sentence: str | None) -> None:
    (tmp_path / "config.json").write_text("{}")
    raw = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    if sentence is None:
        assert torch.equal(open_checkpoint(tmp_path).read("t"), torch.zeros(2))
    else:
        with pytest.raises(IntegrityError, match=sentence):
            open_checkpoint(tmp_path)


def test_a_repeated_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    one = json.dumps(entry())
    raw = f'{{"t": {one}, "t": {one}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    with pytest.raises(IntegrityError, match="twice"):
        open_checkpoint(tmp_path)


def test_a_file_that_shrinks_after_opening_is_noticed(tmp_path: Path) -> None:
    write_safetensors(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 3000)
    with pytest.raises(IntegrityError, match="shorter"):
        checkpoint.read(EMBEDDING)


def test_damaged_headers_are_refused_or_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path)
    path = tmp_path / "model.safetensors"
    good = path.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")

    def read() -> None:
        checkpoint = open_checkpoint(tmp_path)
        for name in checkpoint.tensors:
            checkpoint.read(name)

    outcomes = []
    for data in damaged(good, header, 400, seed=5):
        path.write_bytes(data)
        outcomes.append(survives(read, 20 << 20))
    # Only a changed letter of a name leaves a file that is still sound.
    assert 1 < sum(outcomes) < 380


def test_damaged_configurations_are_refused_or_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path)
    path = tmp_path / "config.json"
    good = path.read_bytes()
    for data in damaged(good, len(good), 100, seed=6):
        path.write_bytes(data)
        survives(lambda: open_checkpoint(tmp_path), 20 << 20)
