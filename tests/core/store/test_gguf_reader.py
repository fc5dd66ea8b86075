"""GGUF files under Hugging Face's names, shapes and row order; damaged ones refused in one sentence."""

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from glmserve.api import CheckpointError, GlmserveError, IntegrityError
from glmserve.store.checkpoint import open_checkpoint
from glmserve.store.dequantize import dequantize
from glmserve.store.gguf_reader import translate_name
from glmserve.store.tokenizer import load_tokenizer

from .files import HEADS, HIDDEN, VOCABULARY, damaged, survives, weights, write_gguf

QUERY = "model.layers.0.self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_float_tensors_come_back(tmp_path: Path, dtype: str) -> None:
    made = write_gguf(tmp_path / "m.gguf", dtype)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.format == "gguf"
    assert set(checkpoint.tensors) == set(made)
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    for name, weight in made.items():
        stored = checkpoint.read(name)
        assert checkpoint.tensors[name].shape == weight.shape == tuple(stored.shape)
        assert torch.equal(stored, torch.from_numpy(weight).to(stored.dtype))
        assert stored.dtype == (torch.float32 if weight.ndim == 1 else kind)


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_block_tensors_come_back_with_their_rows_in_order(tmp_path: Path, dtype: str) -> None:
    made = write_gguf(tmp_path / "m.gguf", dtype)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    kind = gguf.GGMLQuantizationType[dtype]
    for name, weight in made.items():
        if weight.ndim == 2:
            stored = checkpoint.read(name)
            assert stored.numel() == checkpoint.tensors[name].nbytes
            assert np.array_equal(stored.numpy(), gguf.quants.quantize(weight, kind))
            assert tuple(dequantize(stored, dtype).shape) == weight.shape


@pytest.mark.parametrize("name", [QUERY, "model.layers.0.self_attn.k_proj.weight", EMBEDDING])
@pytest.mark.parametrize("dtype", ["F16", "Q4_1"])
def test_rows_are_rows_of_the_whole(tmp_path: Path, name: str, dtype: str) -> None:
    write_gguf(tmp_path / "m.gguf", dtype)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    rows = torch.tensor([3, 0, 31, 17, 3])
    assert torch.equal(checkpoint.read_rows(name, rows), checkpoint.read(name)[rows])
    assert checkpoint.read_rows(name, rows[:0]).shape[0] == 0
    for beyond in (-1, 1000):
        with pytest.raises(CheckpointError, match="row"):
            checkpoint.read_rows(name, torch.tensor([beyond]))


def test_reading_does_not_copy_and_writing_does_not_reach_the_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "F32")
    before = (tmp_path / "m.gguf").read_bytes()
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.read(EMBEDDING).data_ptr() == checkpoint.read(EMBEDDING).data_ptr()
    checkpoint.read(EMBEDDING).zero_()
    assert (tmp_path / "m.gguf").read_bytes() == before


def test_metadata_become_a_configuration(tmp_path: Path) -> None:
    def scaled(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    write_gguf(tmp_path / "m.gguf", change=scaled)
    assert open_checkpoint(tmp_path).config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "head_dim": HIDDEN // HEADS,
        "intermediate_size": 96,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    }


def test_fingerprint_follows_the_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    first = open_checkpoint(tmp_path).fingerprint
    assert open_checkpoint(tmp_path / "m.gguf").fingerprint == first
    write_gguf(tmp_path / "m.gguf", change=lambda writer: writer.add_eos_token_id(3))
    assert open_checkpoint(tmp_path).fingerprint != first


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("token_embd.weight", EMBEDDING),
        ("output.weight", "lm_head.weight"),
        ("blk.12.ffn_gate.weight", "model.layers.12.mlp.gate_proj.weight"),
        ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
        ("rope_freqs.weight", "rope_freqs.weight"),
        ("blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp.weight"),
    ],
)
def test_names(stored: str, name: str) -> None:
    assert translate_name(stored) == name


@pytest.mark.parametrize(
    ("change", "architecture", "sentence"),
    [
        (lambda writer: None, "qwen2", "architecture 'qwen2'"),
        (lambda writer: writer.add_expert_count(8), "llama", "mixture of experts"),
        (lambda writer: writer.add_rope_dimension_count(8), "llama", "rotates 8 of 16"),
        (lambda writer: writer.add_uint16("split.count", 3), "llama", "several parts"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, change: Callable[[gguf.GGUFWriter], None], architecture: str, sentence: str
) -> None:
    write_gguf(tmp_path / "m.gguf", change=change, architecture=architecture)
    with pytest.raises(CheckpointError, match=sentence):
        open_checkpoint(tmp_path)


def test_a_type_that_is_not_supported_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "Q8_0")
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    record = data.index(b"blk.0.attn_v.weight") + len("blk.0.attn_v.weight") + 4 + 16
    data[record : record + 4] = struct.pack("<I", gguf.GGMLQuantizationType.IQ4_NL)
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match="IQ4_NL"):
        open_checkpoint(tmp_path)


def header(pairs: bytes = b"", pair_count: int = 0, records: bytes = b"", count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, count, pair_count) + pairs + records


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def record(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "empty"),
        (b"GGUF", "ends early"),
        (b"GGML" + bytes(60), "letters GGUF"),
        (header(version=1), "version 1"),
        (header(version=3 << 24), "big-endian"),
        (header(count=1 << 60), "ends early"),
        (header(pair_count=1 << 60), "ends early"),
        (header(struct.pack("<Q", 1 << 60) + b"a", 1), "claims"),
        (header(text(b"a") + struct.pack("<I", 99), 1), "unknown metadata type 99"),
        (header(text(b"a") + struct.pack("<IQ", 8, 1 << 62), 1), "claims"),
        (header(text(b"a") + struct.pack("<IIQ", 9, 4, 1 << 60), 1), "claims"),
        (header(text(b"a") + struct.pack("<IIQ", 9, 8, 1 << 60), 1), "claims"),
        (header(text(b"a") + struct.pack("<IIQ", 9, 9, 1), 1), "array type 9"),
        (header((text(b"a") + struct.pack("<II", 4, 1)) * 2, 2), "twice"),
        (header(text(b"\xff") + struct.pack("<II", 4, 1), 1), "UTF-8"),
        (header(text(b"general.alignment") + struct.pack("<II", 4, 24), 1), "power of two"),
        (header(text(b"general.alignment") + struct.pack("<II", 4, 0), 1), "power of two"),
        (header(records=record(b"t", (8,), 0, 0), count=1), "ends at byte"),
        (header(records=record(b"t", (8,), 0, 1 << 63), count=1), "ends at byte"),
        (header(records=record(b"t", (1 << 40, 1 << 40), 0, 0), count=1), "ends at byte"),
        (header(records=record(b"t", (8,), 0, 8), count=1), "multiple of 32"),
        (header(records=record(b"t", (0,), 0, 0), count=1), "shape"),
        (header(records=record(b"t", (33,), 8, 0), count=1), "cannot store"),
        (header(records=record(b"t", (8,), 77, 0), count=1), "unknown type 77"),
        (header(records=record(b"t", (1,) * 5, 0, 0), count=1), "5 dimensions"),
        (header(records=record(b"t", (8,), 0, 0) * 2, count=2) + bytes(200), "twice"),
        (header(records=record(b"t", (16,), 0, 0) + record(b"u", (8,), 0, 32), count=2) + bytes(200), "overlaps"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, data: bytes, sentence: str) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(GlmserveError, match=sentence):
        open_checkpoint(tmp_path)


def test_a_file_that_shrinks_after_opening_is_noticed(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path)
    with (tmp_path / "m.gguf").open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(IntegrityError, match="shorter"):
        checkpoint.read(max(checkpoint.tensors, key=lambda name: checkpoint.tensors[name].nbytes))


def test_damaged_headers_are_refused_or_read(tmp_path: Path) -> None:
    def vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list([chr(97 + i) for i in range(20)] + ["ab", "cd"] + [f"<{i}>" for i in range(18)])
        writer.add_token_types([1] * 22 + [3] * 18)
        writer.add_token_merges(["a b", "c d"])
        writer.add_eos_token_id(30)

    path = tmp_path / "m.gguf"
    write_gguf(path, "Q4_1", vocabulary)
    good = path.read_bytes()
    start = good.index(b"blk.0.ffn_down.weight") + 200

    def read() -> None:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.tensors:
            checkpoint.read(name)
        load_tokenizer(path)

    outcomes = []
    for data in damaged(good, start, 400, seed=3):
        path.write_bytes(data)
        outcomes.append(survives(read, 20 << 20))
    assert 20 < sum(outcomes) < 380


def test_the_real_model_opens_as_it_was_made(smollm2: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    assert len(checkpoint.tensors) == 272
    assert checkpoint.config["rope_theta"] == 100000.0
    assert checkpoint.tensors[EMBEDDING].shape == (49152, 576)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2).tensors}["blk.3.attn_k.weight"]
    reference = gguf.quants.dequantize(stored.data, stored.tensor_type)
    name = "model.layers.3.self_attn.k_proj.weight"
    undone = reference.reshape(3, 32, 2, -1).swapaxes(1, 2).reshape(reference.shape)
    assert np.array_equal(dequantize(checkpoint.read(name), "Q4_1").numpy(), undone)


def test_what_is_not_a_checkpoint_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="neither"):
        open_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        open_checkpoint(tmp_path / "notes.txt")
    write_gguf(tmp_path / "a.gguf", tensors=weights())
    write_gguf(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match="2 GGUF files"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no tensor 'lm_head"):
        open_checkpoint(tmp_path / "a.gguf").read("lm_head.weight")
