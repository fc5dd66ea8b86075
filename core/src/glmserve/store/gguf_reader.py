"""A GGUF file as a checkpoint in Hugging Face's names, shapes and row order."""

from __future__ import annotations

import mmap
import os
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmserve.api import Checkpoint, CheckpointError, IntegrityError, TensorInfo

from .block_types import BLOCK_SIZES, TYPE_SIZES
from .fingerprint import fingerprint
from .gguf_metadata import GgufHeader, GgufTensor, read_header

if TYPE_CHECKING:
    import torch

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d{1,5})\.(\w+)\.(weight|bias)")


class GgufCheckpoint(Checkpoint):
    """An opened GGUF file of architecture llama. See `Checkpoint` for the contract."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        """Map the file and check its header. Raises IntegrityError (damaged) or CheckpointError (not supported)."""
        self.path = path
        self._file, self._map = _open(path)
        with memoryview(self._map) as view:
            header = read_header(view, path)
        self.metadata: Mapping[str, Any] = header.metadata
        """The file's own key-value pairs, the tokenizer's included."""
        self._stored: dict[str, GgufTensor] = {}
        for tensor in header.tensors:
            name = translate_name(tensor.name)
            if name in self._stored:
                raise IntegrityError(f"{path} is a damaged GGUF file (the tensor {name!r} is there twice).")
            self._stored[name] = tensor
        self.tensors = {n: TensorInfo(n, t.shape, t.dtype, t.nbytes) for n, t in self._stored.items()}
        self.config = build_config(header, self.tensors, path)
        self._heads = self._permuted_heads()
        self.fingerprint = fingerprint(self.format, {**self.config, "gguf": header.metadata}, self.tensors, [path])

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> torch.Tensor:
        info = self.require_part(name, rows, columns)
        stored = self._view(name)
        heads = self._heads.get(name)
        if columns is not None:
            stored = stored[:, self._stored_columns(info, columns)]
        if heads is None:
            return stored if rows is None else stored[rows.start : rows.stop]
        if rows is not None:
            import torch

            return stored[self._stored_rows(name, torch.arange(rows.start, rows.stop))]
        count, *width = stored.shape
        return stored.view(heads, count // heads // 2, 2, *width).transpose(1, 2).reshape(stored.shape)

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        self.require_rows(name, rows)
        return self._view(name)[self._stored_rows(name, rows)]

    def _stored_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Where the file has those rows."""
        heads = self._heads.get(name)
        if heads is None:
            return rows
        size = self.tensors[name].shape[0] // heads
        head, within = rows // size, rows % size
        return head * size + within % (size // 2) * 2 + within // (size // 2)

    def _stored_columns(self, info: TensorInfo, columns: range) -> slice:
        """The columns of the stored tensor, bytes for a block type. Raises CheckpointError for a part of a block."""
        if info.dtype not in BLOCK_SIZES:
            return slice(columns.start, columns.stop)
        elements, size = BLOCK_SIZES[info.dtype]
        if columns.start % elements or columns.stop % elements:
            raise CheckpointError(
                f"{self.path}: tensor {info.name!r} is stored in blocks of {elements} columns, and columns "
                f"{columns.start} to {columns.stop} are no whole number of them."
            )
        return slice(columns.start // elements * size, columns.stop // elements * size)

    def _view(self, name: str) -> torch.Tensor:
        """The tensor in the file's own row order, backed by the memory map."""
        import torch

        tensor = self._stored[name]
        if os.fstat(self._file.fileno()).st_size < tensor.offset + tensor.nbytes:
            raise IntegrityError(f"{self.path} has become shorter than its header says; fetch it again.")
        if tensor.dtype in BLOCK_SIZES:
            flat = torch.frombuffer(self._map, dtype=torch.uint8, count=tensor.nbytes, offset=tensor.offset)
            elements, size = BLOCK_SIZES[tensor.dtype]
            return flat.view(-1, tensor.shape[-1] // elements * size)
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[tensor.dtype]
        count = tensor.nbytes // TYPE_SIZES[tensor.dtype][1]
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=tensor.offset).view(tensor.shape)

    def _permuted_heads(self) -> dict[str, int]:
        """Tensors whose rows GGUF interleaves for its rotary embedding -> number of heads."""
        counts = {"q_proj": self.config["num_attention_heads"], "k_proj": self.config["num_key_value_heads"]}
        heads = {}
        for name, tensor in self._stored.items():
            count = counts.get(name.split(".")[-2]) if name.startswith("model.layers.") else None
            if count is None:
                continue
            if tensor.shape[0] % (2 * count) or len(tensor.shape) > 2:
                raise CheckpointError(
                    f"{self.path}: tensor {name!r} of shape {tensor.shape} does not hold {count} heads."
                )
            heads[name] = count
        return heads


def _open(path: Path) -> tuple[Any, mmap.mmap]:
    try:
        file = path.open("rb")
        if os.fstat(file.fileno()).st_size == 0:
            file.close()
            raise IntegrityError(f"{path} is empty; fetch it again.")
        # Private and writable, because torch has no read-only tensors and writing to one must not kill the process.
        # Without reservation, because a file larger than memory could not be mapped otherwise.
        flags = mmap.MAP_PRIVATE | (0x4000 if sys.platform == "linux" else 0)
        return file, mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error.strerror or error}.") from None


def read_metadata(path: Path) -> Mapping[str, Any]:
    """The key-value pairs of a GGUF file. Raises IntegrityError (damaged) or CheckpointError (not supported)."""
    file, mapped = _open(path)
    with file, mapped, memoryview(mapped) as view:
        return read_header(view, path).metadata


def translate_name(name: str) -> str:
    """GGUF's tensor name to Hugging Face's; a name that is not known comes back as it is."""
    if match := _LAYER.fullmatch(name):
        layer, part, kind = match.groups()
        if part in _LAYER_NAMES:
            return f"model.layers.{int(layer)}.{_LAYER_NAMES[part]}.{kind}"
    stem, _, kind = name.rpartition(".")
    return f"{_TOP_NAMES[stem]}.{kind}" if stem in _TOP_NAMES else name


def build_config(header: GgufHeader, tensors: Mapping[str, TensorInfo], path: Path) -> dict[str, Any]:
    """The metadata under the keys of a Hugging Face `config.json`. Raises CheckpointError naming what does not fit."""
    meta = header.metadata
    architecture = meta.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(
            f"{path} holds a model of architecture {architecture!r}; from GGUF only 'llama' is supported, "
            "so use a safetensors checkpoint of it."
        )

    def number(key: str, kind: type[int] | type[float], default: Any = None) -> Any:
        value = meta.get(f"llama.{key}", default)
        good = isinstance(value, (int, float)) if kind is float else isinstance(value, int)
        if not good or isinstance(value, bool) or not 0 < value < 1 << 40:
            raise CheckpointError(f"{path}: its metadata has llama.{key} = {str(value)[:40]}, not a positive number.")
        return value

    if meta.get("llama.expert_count"):
        raise CheckpointError(f"{path} is a mixture of experts, which the llama family does not run.")
    if meta.get("split.count", 1) not in (0, 1):
        raise CheckpointError(f"{path} is one of several parts; merge them with llama-gguf-split first.")
    hidden, heads = number("embedding_length", int), number("attention.head_count", int)
    head_dim = number("attention.key_length", int, max(1, hidden // heads))
    rotary = number("rope.dimension_count", int, head_dim)
    if rotary != head_dim:
        raise CheckpointError(f"{path} rotates {rotary} of {head_dim} dimensions of a head, which is not supported.")
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{path} has no token embedding (token_embd.weight), which every llama model needs.")
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": number("block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "intermediate_size": number("feed_forward_length", int),
        "rms_norm_eps": _shortest(number("attention.layer_norm_rms_epsilon", float)),
        "rope_theta": number("rope.freq_base", float, 10000.0),
        "max_position_embeddings": number("context_length", int),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }
    for key in ("bos", "eos"):
        if isinstance(token := meta.get(f"tokenizer.ggml.{key}_token_id"), int):
            config[f"{key}_token_id"] = token
    if meta.get("llama.rope.scaling.type", "none") != "none":
        config["rope_scaling"] = {
            "rope_type": str(meta["llama.rope.scaling.type"]),
            "factor": number("rope.scaling.factor", float),
        }
        if "llama.rope.scaling.original_context_length" in meta:
            config["rope_scaling"]["original_max_position_embeddings"] = number(
                "rope.scaling.original_context_length", int
            )
    return config


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 rather than 9.999999747378752e-06."""
    packed = struct.pack("<f", value)
    for digits in range(1, 10):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == packed:
            return candidate
    return value
