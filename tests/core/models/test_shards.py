"""The shards of a layer, however it is cut, are the layer when put together, and each reads no more than itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from glmserve.api import Checkpoint, Linear, LinearSpec, Shard
from glmserve.models import dense
from glmserve.models.block_fp8 import BlockFp8
from glmserve.models.dense import Dense
from glmserve.models.gguf import Gguf
from glmserve.store.block_types import BLOCK_SIZES
from glmserve.store.checkpoint import open_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.core.store.files import write_matrices

from .counting import Counting

COLUMNS = 512
FP8_BLOCK = (5, 48)
"""Neither divides the layers' rows or columns."""
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
AT = "model.layers.0.self_attn"
QKV = LinearSpec("qkv", tuple(f"{AT}.{p}_proj" for p in "qkv"), (24, 12, 13), COLUMNS)
"""Of GGUF, the rows of the first two are interleaved by heads: four and two."""
OUT = LinearSpec("o", (f"{AT}.o_proj",), (11,), COLUMNS)
SPECS = (QKV, OUT)
EMBEDDING = "model.embed_tokens"
FEATURES = {name: rows for spec in SPECS for name, rows in zip(spec.parts, spec.part_features, strict=True)}


class Kept(Linear):
    """A layer that shows what it was built from."""

    row_invariant = True
    nbytes = 0

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def write_safetensors(folder: Path, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors, config = {}, {}
    for name, rows in FEATURES.items():
        tensors[f"{name}.weight"] = torch.randn(rows, COLUMNS, generator=generator).to(dtype)
        tensors[f"{name}.bias"] = torch.randn(rows, generator=generator)
        if dtype == torch.float8_e4m3fn:
            blocks = [-(-size // block) for size, block in zip((rows, COLUMNS), FP8_BLOCK, strict=True)]
            tensors[f"{name}.weight_scale_inv"] = torch.rand(*blocks, generator=generator)
            config = {"quantization_config": {"weight_block_size": list(FP8_BLOCK)}}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(
    scope="module",
    params=[*(("safetensors", t) for t in (*FLOATS, "F8_E4M3")), *(("gguf", t) for t in FLOATS | BLOCK_SIZES)],
    ids=" ".join,
)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Dense]:
    form, dtype = request.param
    folder = tmp_path_factory.mktemp("stored")
    if form == "gguf":
        write_matrices(folder / "m.gguf", dtype, {EMBEDDING: 4, **FEATURES}, COLUMNS, biased=True)
        return open_checkpoint(folder), Gguf()
    write_safetensors(folder, FLOATS.get(dtype, torch.float8_e4m3fn))
    return open_checkpoint(folder), BlockFp8() if dtype == "F8_E4M3" else Dense()


def load(stored: tuple[Checkpoint, Dense], spec: LinearSpec, shard: Shard | None = None) -> Kept:
    checkpoint, quantization = stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "PackedLinear", Kept)
        layer = quantization.load_linear(checkpoint, spec, shard)
    assert isinstance(layer, Kept)
    return layer


def between(points: Sequence[int]) -> list[range]:
    return [range(a, b) for a, b in pairwise(points)]


@st.composite
def grids(draw: st.DrawFn, spec: LinearSpec) -> tuple[list[tuple[range, ...]], list[range]]:
    """The rows of each part for each rank, some of them empty, and columns, none of them empty."""
    ranks = draw(st.integers(1, 4))
    parts = []
    for rows in spec.part_features:
        inner = draw(st.lists(st.integers(0, rows), min_size=ranks - 1, max_size=ranks - 1))
        parts.append(between([0, *sorted(inner), rows]))
    columns = draw(st.sets(st.integers(1, COLUMNS - 1), max_size=3))
    return list(zip(*parts, strict=True)), between([0, *sorted(columns), COLUMNS])


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@settings(max_examples=40)
@given(st.data())
def test_the_shards_of_any_cut_put_together_are_the_layer(
    stored: tuple[Checkpoint, Dense], spec: LinearSpec, data: st.DataObject
) -> None:
    by_rows, by_columns = data.draw(grids(spec))
    whole = load(stored, spec)
    offsets = [sum(spec.part_features[:i]) for i in range(len(spec.parts))]
    weight, bias = torch.full_like(whole.weight, torch.nan), torch.full((spec.out_features,), torch.nan)
    for rows in by_rows:
        at = torch.cat([torch.arange(r.start, r.stop) + offset for r, offset in zip(rows, offsets, strict=True)])
        for columns in by_columns:
            shard = load(stored, spec, Shard(rows, columns))
            assert shard.weight.is_contiguous()
            assert (shard.out_features, shard.in_features) == (sum(map(len, rows)), len(columns))
            weight[at, columns.start : columns.stop] = shard.weight
            # A sum over the columns' ranks has the bias once.
            if columns.start == 0:
                assert shard.bias is not None
                bias[at] = shard.bias
            else:
                assert shard.bias is None
    assert torch.equal(weight, whole.weight)
    assert whole.bias is not None
    assert torch.equal(bias, whole.bias)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@settings(max_examples=40)
@given(st.data())
def test_a_shard_asks_for_its_own_rows_and_the_blocks_that_cover_its_columns(
    stored: tuple[Checkpoint, Dense], spec: LinearSpec, data: st.DataObject
) -> None:
    by_rows, by_columns = data.draw(grids(spec))
    rows, columns = data.draw(st.sampled_from(by_rows)), data.draw(st.sampled_from(by_columns))
    counting = Counting(stored[0])
    load((counting, stored[1]), spec, Shard(rows, columns))
    for name, part in zip(spec.parts, rows, strict=True):
        info = stored[0].tensors[f"{name}.weight"]
        elements, _ = BLOCK_SIZES.get(info.dtype, (1, 1))
        blocks = -(-columns.stop // elements) - columns.start // elements
        row_bytes = info.nbytes // info.shape[0]
        assert counting.asked[f"{name}.weight"] == len(part) * row_bytes * blocks * elements // COLUMNS
        scales = f"{name}.weight_scale_inv"
        assert counting.asked[scales] == (stored[0].tensors[scales].nbytes if "F8" in info.dtype else 0)


def test_products_of_shards_are_those_of_the_layer(stored: tuple[Checkpoint, Dense]) -> None:
    checkpoint, quantization = stored
    x = torch.randn(3, COLUMNS, generator=torch.Generator().manual_seed(2)) / 16
    whole = quantization.load_linear(checkpoint, OUT)(x)
    scale = whole.abs().max()
    total = torch.zeros_like(whole)
    for columns in (range(200), range(200, 299), range(299, COLUMNS)):
        shard = quantization.load_linear(checkpoint, OUT, Shard((range(11),), columns))
        total += shard(x[:, columns.start : columns.stop])
    assert (total - whole).abs().max() < 1e-5 * scale
    rows = [quantization.load_linear(checkpoint, OUT, Shard((r,), range(COLUMNS)))(x) for r in between([0, 4, 4, 11])]
    assert [tuple(part.shape) for part in rows] == [(3, 4), (3, 0), (3, 7)]
    assert (torch.cat(rows, 1) - whole).abs().max() < 1e-5 * scale


def test_a_whole_layer_is_read_as_a_whole(stored: tuple[Checkpoint, Dense]) -> None:
    counting = Counting(stored[0])
    for shard in (None, Shard.whole(QKV)):
        load((counting, stored[1]), QKV, shard)
    for name in QKV.parts:
        for kind in ("weight", "bias"):
            assert counting.asked[f"{name}.{kind}"] == 2 * stored[0].tensors[f"{name}.{kind}"].nbytes
