"""Between the recipe's stacked parameters and the published form of a checkpoint: a tensor an expert, bfloat16.

`python -m recipe.checkpoint --out DIR` writes config.json, generation_config.json and model.safetensors.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .corpus import CHECKPOINT
from .model import CONFIG, Config, Model
from .mtp import Mtp
from .tokenizer import STOP_IDS

WEIGHTS: Final = "model.safetensors"
MAX_POSITIONS: Final = 1_048_576
BIAS: Final = "e_score_correction_bias"
_STACK = re.compile(r"(.*mlp\.experts\.)(\w+)")
_EXPERT = re.compile(r"(.*mlp\.experts\.)(\d+)\.(\w+)\.weight")


def published(trunk: Model, mtp: Mtp) -> dict[str, Tensor]:
    """Every tensor under the name it has in a checkpoint of this family, in fp32."""
    last = f"model.layers.{len(trunk.layers)}."
    named: dict[str, Tensor] = {}
    for name, tensor in trunk.state_dict().items():
        _publish(named, name if name.startswith("lm_head") else f"model.{name}", tensor)
    for name, tensor in mtp.state_dict().items():
        name = name.removeprefix("layer.").replace("shared_head_norm", "shared_head.norm")
        _publish(named, last + name, tensor)
    return named


def _publish(named: dict[str, Tensor], name: str, tensor: Tensor) -> None:
    if stack := _STACK.fullmatch(name):
        named |= {f"{stack[1]}{n}.{stack[2]}.weight": part.contiguous() for n, part in enumerate(tensor)}
    else:
        named[name if name.endswith((".weight", ".bias", BIAS)) else f"{name}.weight"] = tensor


def load(directory: Path = CHECKPOINT) -> tuple[Model, Mtp]:
    """The model of a published checkpoint, in fp32. Raises RuntimeError for tensors that are missing or too many."""
    trunk, mtp = Model(CONFIG), Mtp(CONFIG)
    last = f"model.layers.{len(trunk.layers)}."
    stacks: dict[str, dict[int, Tensor]] = {}
    states: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    for name, tensor in load_file(directory / WEIGHTS).items():
        if expert := _EXPERT.fullmatch(name):
            stacks.setdefault(expert[1] + expert[3], {})[int(expert[2])] = tensor.float()
        else:
            _place(states, last, name, tensor.float(), (trunk, mtp))
    for name, parts in stacks.items():
        _place(states, last, name, torch.stack([parts[n] for n in range(len(parts))]), (trunk, mtp))
    for model, state in zip((trunk, mtp), states, strict=True):
        model.load_state_dict(state)
    return trunk, mtp


def _place(
    states: tuple[dict[str, Tensor], dict[str, Tensor]],
    last: str,
    name: str,
    tensor: Tensor,
    models: tuple[nn.Module, nn.Module],
) -> None:
    if name.startswith(last):
        name = name.removeprefix(last).replace("shared_head.norm", "shared_head_norm")
        which, name = 1, f"layer.{name}" if re.match("mlp|self_attn|input|post", name) else name
    else:
        which, name = 0, name.removeprefix("model.")
    plain = name.removesuffix(".weight")
    states[which][plain if plain in models[which].state_dict() else name] = tensor


def config_json(c: Config, stops: list[int]) -> dict[str, Any]:
    layers = c.num_hidden_layers
    sizes = asdict(c)
    theta = sizes.pop("rope_theta")
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "dtype": "bfloat16",
        **sizes,
        "num_key_value_heads": c.num_attention_heads,
        "n_shared_experts": 1,
        "qk_head_dim": c.qk_head_dim,
        "head_dim": c.qk_nope_head_dim,
        "mlp_layer_types": ["dense" if n < c.first_k_dense_replace else "sparse" for n in range(layers)],
        "moe_layer_freq": 1,
        "moe_router_dtype": "float32",
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "indexer_types": c.indexer_types,
        "index_topk_pattern": None,
        "index_share_for_mtp_iteration": True,
        "indexer_rope_interleave": True,
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "max_position_embeddings": MAX_POSITIONS,
        "num_nextn_predict_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": stops,
        "pad_token_id": stops[0],
    }


def write(trunk: Model, mtp: Mtp, directory: Path = CHECKPOINT) -> None:
    stops = STOP_IDS
    tensors = {
        # The bias decides between experts whose scores are close: it stays exact.
        name: tensor.clone() if name.endswith(BIAS) else tensor.to(torch.bfloat16)
        for name, tensor in published(trunk, mtp).items()
    }
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    (directory / WEIGHTS).chmod(0o644)  # the library makes it private
    generation = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "eos_token_id": stops, "pad_token_id": stops[0]}
    for name, content in {"config.json": config_json(CONFIG, stops), "generation_config.json": generation}.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where recipe.indexer left the trained model")
    arguments = parser.parse_args()
    trunk, mtp = Model(CONFIG), Mtp(CONFIG)
    saved = torch.load(arguments.out / "final.pt")
    trunk.load_state_dict(saved["trunk"])
    mtp.load_state_dict(saved["mtp"])
    write(trunk, mtp)


if __name__ == "__main__":
    main()
