"""Some rows and columns of a tensor are those of the whole, and no more than they is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import Checkpoint, CheckpointError, IntegrityError
from glmserve.store.block_types import BLOCK_SIZES
from glmserve.store.checkpoint import open_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from .files import write_gguf, write_matrices

ROWS, COLUMNS = 24, 512
MATRICES = dict.fromkeys((*(f"model.layers.0.self_attn.{p}_proj" for p in "qkv"), "model.embed_tokens"), ROWS)
NAMES = QUERY, _, VALUE, EMBEDDING = [f"{name}.weight" for name in MATRICES]
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
FLOAT8 = {"F8_E4M3": torch.float8_e4m3fn}


def write_safetensors(folder: Path, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    made = {n: torch.randn(ROWS, COLUMNS, generator=generator).to(dtype) for n in NAMES}
    made["model.norm.weight"] = torch.ones(COLUMNS)
    save_file(made, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))


@pytest.fixture(
    scope="module",
    params=[*(("safetensors", t) for t in FLOATS | FLOAT8), *(("gguf", t) for t in FLOATS | BLOCK_SIZES)],
    ids=" ".join,
)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    form, dtype = request.param
    folder = tmp_path_factory.mktemp("stored")
    if form == "gguf":
        write_matrices(folder / "m.gguf", dtype, MATRICES, COLUMNS)
    else:
        write_safetensors(folder, (FLOATS | FLOAT8)[dtype])
    return open_checkpoint(folder)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def parts(size: int, step: int = 1) -> st.SearchStrategy[range | None]:
    bounds = st.lists(st.integers(0, size // step), min_size=2, max_size=2).map(sorted)
    return st.none() | bounds.map(lambda ends: range(ends[0] * step, ends[1] * step))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(st.data())
def test_a_part_is_that_part_of_the_whole(checkpoint: Checkpoint, name: str, data: st.DataObject) -> None:
    elements, size = BLOCK_SIZES.get(checkpoint.tensors[name].dtype, (1, 1))
    rows, columns = data.draw(parts(ROWS)), data.draw(parts(COLUMNS, elements))
    whole = checkpoint.read(name)
    down = range(ROWS) if rows is None else rows
    across = range(COLUMNS) if columns is None else columns
    expected = whole[down.start : down.stop, across.start // elements * size : across.stop // elements * size]
    found = checkpoint.read(name, rows, columns)
    assert found.dtype == whole.dtype
    assert found.shape == expected.shape
    assert torch.equal(bits(found), bits(expected))


@pytest.mark.parametrize("name", [QUERY, VALUE])
def test_a_part_is_a_view_of_the_file_or_a_copy_of_no_more_than_the_part(checkpoint: Checkpoint, name: str) -> None:
    whole = checkpoint.read(name, range(ROWS), range(COLUMNS))
    rows, columns = range(4, 9), range(256, COLUMNS)
    part = checkpoint.read(name, rows, columns)
    if name == QUERY and checkpoint.format == "gguf":
        assert part.untyped_storage().nbytes() == part.nbytes < whole.nbytes
    else:
        start = whole[rows.start :, whole.shape[1] // 2 :]
        assert part.data_ptr() == start.data_ptr()
        assert part.stride() == start.stride()


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        (range(3, ROWS + 1), None, "has no part"),
        (range(-1, 3), None, "has no part"),
        (range(4, 3), None, "has no part"),
        (range(0, 4, 2), None, "has no part"),
        (None, range(COLUMNS + 256), "has no part"),
    ],
)
def test_a_part_that_is_not_there_is_refused(checkpoint: Checkpoint, rows: Any, columns: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        checkpoint.read(EMBEDDING, rows, columns)


def test_only_matrices_have_parts_and_only_tensors_that_are_there(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="only 2-D"):
        checkpoint.read("model.norm.weight", range(3))
    assert len(checkpoint.read("model.norm.weight")) == COLUMNS
    with pytest.raises(CheckpointError, match=r"no tensor 'lm_head\.weight'"):
        checkpoint.read("lm_head.weight", range(3))


@pytest.mark.parametrize(("dtype", "columns"), [("Q8_0", range(16, 64)), ("Q8_0", range(33)), ("Q6_K", range(128))])
def test_a_part_of_a_block_is_refused(tmp_path: Path, dtype: str, columns: range) -> None:
    write_matrices(tmp_path / "m.gguf", dtype, MATRICES, COLUMNS)
    with pytest.raises(CheckpointError, match=r"in blocks of \d+ columns.*no whole number of them\.$"):
        open_checkpoint(tmp_path).read(VALUE, None, columns)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_a_file_that_shrinks_after_opening_is_noticed_by_a_part(tmp_path: Path, form: str) -> None:
    if form == "gguf":
        write_gguf(tmp_path / "m.gguf", "F32")
    else:
        write_safetensors(tmp_path, torch.float32)
    checkpoint = open_checkpoint(tmp_path)
    file = next(f for f in tmp_path.iterdir() if f.suffix != ".json")
    last = max(checkpoint.tensors, key=lambda name: checkpoint.tensors[name].nbytes)
    with file.open("r+b") as opened:
        opened.truncate(2000)
    with pytest.raises(IntegrityError, match="shorter"):
        checkpoint.read(last, range(2))
