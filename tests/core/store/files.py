"""Tiny checkpoints, written by the libraries that define the formats, and ways to damage them."""

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from glmserve.api import GlmserveError
from glmserve.store.block_types import BLOCK_SIZES
from safetensors.torch import save_file

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, VOCABULARY = 64, 4, 2, 96, 40


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of query and key projections."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(shape)


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """One layer in Hugging Face's names, shapes and row order, float32."""
    shapes = {
        "model.embed_tokens": (VOCABULARY, HIDDEN),
        "model.norm": (HIDDEN,),
        "model.layers.0.input_layernorm": (HIDDEN,),
        "model.layers.0.post_attention_layernorm": (HIDDEN,),
        "model.layers.0.self_attn.q_proj": (HIDDEN, HIDDEN),
        "model.layers.0.self_attn.k_proj": (HIDDEN // 2, HIDDEN),
        "model.layers.0.self_attn.v_proj": (HIDDEN // 2, HIDDEN),
        "model.layers.0.self_attn.o_proj": (HIDDEN, HIDDEN),
        "model.layers.0.mlp.gate_proj": (FEED_FORWARD, HIDDEN),
        "model.layers.0.mlp.up_proj": (FEED_FORWARD, HIDDEN),
        "model.layers.0.mlp.down_proj": (HIDDEN, FEED_FORWARD),
    }
    generator = np.random.default_rng(seed)
    return {f"{name}.weight": generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


_GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "input_layernorm": "blk.0.attn_norm",
    "post_attention_layernorm": "blk.0.ffn_norm",
    "q_proj": "blk.0.attn_q",
    "k_proj": "blk.0.attn_k",
    "v_proj": "blk.0.attn_v",
    "o_proj": "blk.0.attn_output",
    "gate_proj": "blk.0.ffn_gate",
    "up_proj": "blk.0.ffn_up",
    "down_proj": "blk.0.ffn_down",
}


def write_gguf(
    path: Path,
    dtype: str = "Q8_0",
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """A one-layer llama whose matrices are stored as `dtype`; returns its weights. `change` adds to the metadata."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    change(writer)
    kind = gguf.GGMLQuantizationType[dtype]
    made = weights() if tensors is None else tensors
    for name, weight in made.items():
        part = name.split(".")[-2]
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(part)
        stored = weight if heads is None else permute(weight, heads)
        if weight.ndim == 1:
            writer.add_tensor(f"{_GGUF_NAMES[part]}.weight", stored)
        else:
            writer.add_tensor(f"{_GGUF_NAMES[part]}.weight", gguf.quants.quantize(stored, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


_SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where the float16 scales of a block are."""


def random_blocks(dtype: str, rows: int, per_row: int) -> np.ndarray:
    """Any bytes, but scales that are finite numbers."""
    generator = np.random.default_rng(7)
    size = BLOCK_SIZES[dtype][1]
    blocks = generator.integers(0, 256, (rows * per_row, size), dtype=np.uint8)
    for at in _SCALES[dtype]:
        scales = generator.standard_normal((rows * per_row, 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, per_row * size)


def write_matrices(path: Path, dtype: str, rows: Mapping[str, int], columns: int, biased: bool = False) -> None:
    """A GGUF file of random matrices [rows, columns] stored as `dtype`; their rows come by Hugging Face's names.

    Of its four query heads and two key-value heads the rows lie interleaved. They may have biases, in float32.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(columns)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    kind = gguf.GGMLQuantizationType[dtype]
    generator = np.random.default_rng(1)
    for name, count in rows.items():
        stored = _GGUF_NAMES[name.rpartition(".")[2]]
        if dtype in BLOCK_SIZES:
            data = random_blocks(dtype, count, columns // BLOCK_SIZES[dtype][0])
        else:
            data = gguf.quants.quantize(generator.standard_normal((count, columns), np.float32), kind)
        writer.add_tensor(f"{stored}.weight", data, raw_dtype=kind)
        if biased:
            writer.add_tensor(f"{stored}.bias", generator.standard_normal(count).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(columns, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_safetensors(folder: Path, shards: int = 1, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The same layer as a safetensors directory."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "num_attention_heads": HEADS}
    (folder / "config.json").write_text(json.dumps(config))
    made = {name: torch.from_numpy(weight).to(dtype) for name, weight in weights().items()}
    if shards == 1:
        save_file(made, folder / "model.safetensors")
        return made
    index: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(made.items())[shard::shards])
        save_file(part, folder / name)
        index |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return made


def damaged(good: bytes, header: int, count: int, seed: int) -> Iterator[bytes]:
    """`count` variants of a file: cut short, or with bytes of its header flipped, set high or repeated."""
    choose = random.Random(seed)
    for number in range(count):
        if number % 4 == 0:
            yield good[: choose.randrange(len(good)) if number % 8 else choose.randrange(header)]
            continue
        data = bytearray(good)
        for _ in range(choose.randint(1, 3)):
            at = choose.randrange(header)
            kind = choose.randrange(4)
            if kind == 0:
                data[at] ^= 1 << choose.randrange(8)
            elif kind == 1:
                data[at] = choose.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif kind == 2:
                data[at : at + 8] = choose.choice((1 << 60, 2**64 - 1, 1 << 32)).to_bytes(8, "little")
            else:
                data[at:at] = data[at : at + choose.randint(1, 16)]
        yield bytes(data)


def survives(read: Callable[[], Any], limit_bytes: int) -> bool:
    """True when `read` works, False when it refuses with one sentence; anything else fails the test."""
    refusal: GlmserveError | None = None
    tracemalloc.start()
    try:
        read()
    except GlmserveError as error:
        refusal = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < limit_bytes
    assert refusal is None or ("\n" not in str(refusal) and str(refusal).endswith("."))
    return refusal is None
