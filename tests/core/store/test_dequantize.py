"""Every block type gives the bits of the reference implementation."""

import gguf
import numpy as np
import pytest
import torch
from glmserve.api import CheckpointError
from glmserve.store.block_types import BLOCK_SIZES
from glmserve.store.dequantize import block_bytes, block_elements, dequantize

from .files import random_blocks


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


@pytest.mark.parametrize("dtype", BLOCK_SIZES)
@pytest.mark.parametrize(("rows", "per_row"), [(1, 1), (37, 3), (700, 2)])
def test_random_bytes_are_bit_equal(dtype: str, rows: int, per_row: int) -> None:
    blocks = random_blocks(dtype, rows, per_row)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[dtype])
    result = dequantize(torch.from_numpy(blocks), dtype)
    assert result.dtype == torch.float32
    assert np.array_equal(bits(result.numpy()), bits(expected))


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_weights_are_bit_equal(dtype: str) -> None:
    weight = np.random.default_rng(1).standard_normal((24, 256), np.float32)
    weight[3] = 0
    kind = gguf.GGMLQuantizationType[dtype]
    blocks = gguf.quants.quantize(weight, kind)
    result = dequantize(torch.from_numpy(blocks), dtype).numpy()
    assert np.array_equal(bits(result), bits(gguf.quants.dequantize(blocks, kind)))
    assert np.abs(result - weight).max() < 0.5


@pytest.mark.parametrize("dtype", BLOCK_SIZES)
def test_sizes_are_those_of_the_format(dtype: str) -> None:
    kind = gguf.GGMLQuantizationType[dtype]
    assert (block_elements(dtype), block_bytes(dtype)) == gguf.GGML_QUANT_SIZES[kind]


def test_a_slice_of_rows_is_the_same_rows() -> None:
    blocks = torch.from_numpy(random_blocks("Q4_K", 9, 2))
    assert torch.equal(dequantize(blocks, "Q4_K")[4:6], dequantize(blocks[4:6], "Q4_K"))


def test_no_rows_give_no_rows() -> None:
    assert dequantize(torch.empty((0, 34), dtype=torch.uint8), "Q8_0").shape == (0, 32)


@pytest.mark.parametrize(
    ("blocks", "dtype"),
    [
        (torch.zeros((2, 35), dtype=torch.uint8), "Q8_0"),
        (torch.zeros(34, dtype=torch.uint8), "Q8_0"),
        (torch.zeros((2, 34)), "Q8_0"),
        (torch.zeros((2, 84), dtype=torch.uint8), "Q2_K"),
    ],
)
def test_what_does_not_fit_is_refused(blocks: torch.Tensor, dtype: str) -> None:
    with pytest.raises(CheckpointError, match=dtype):
        dequantize(blocks, dtype)
