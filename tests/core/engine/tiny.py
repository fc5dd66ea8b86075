"""A random llama of a few thousand parameters, and engines around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import torch
from glmserve.api import Drafter, PrefixCache, Topology
from glmserve.cluster.local import LocalTransport
from glmserve.engine.caches import NoCache
from glmserve.engine.drafters import NgramDrafter
from glmserve.engine.engine import Engine
from glmserve.engine.kv import PageMemory
from glmserve.engine.ranks import Ranks
from glmserve.engine.request import Output, Request, SamplingParams
from glmserve.engine.scheduler import EngineOptions
from glmserve.engine.worker import Worker
from glmserve.models.dense import Dense
from glmserve.models.llama import Llama
from glmserve.store.checkpoint import open_checkpoint
from safetensors.torch import save_file

VOCAB = 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}


def write_checkpoint(directory: Path) -> Path:
    """Weights large enough that the logits are far from flat."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.35

    hidden, inner, heads, kv, dim = 48, 80, 6, 2, 8
    tensors = {"model.embed_tokens.weight": random(VOCAB, hidden), "lm_head.weight": random(VOCAB, hidden)}
    tensors["model.norm.weight"] = torch.ones(hidden)
    for i in range(2):
        at = f"model.layers.{i}."
        tensors[at + "input_layernorm.weight"] = torch.ones(hidden)
        tensors[at + "post_attention_layernorm.weight"] = torch.ones(hidden)
        tensors[at + "self_attn.q_proj.weight"] = random(heads * dim, hidden)
        tensors[at + "self_attn.k_proj.weight"] = random(kv * dim, hidden)
        tensors[at + "self_attn.v_proj.weight"] = random(kv * dim, hidden)
        tensors[at + "self_attn.o_proj.weight"] = random(hidden, heads * dim)
        tensors[at + "mlp.gate_proj.weight"] = random(inner, hidden)
        tensors[at + "mlp.up_proj.weight"] = random(inner, hidden)
        tensors[at + "mlp.down_proj.weight"] = random(hidden, inner)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, directory / "model.safetensors")
    return directory


def load_model(directory: Path) -> Any:
    checkpoint = open_checkpoint(directory)
    family = Llama()
    return family.load(checkpoint, Dense(), family.describe(checkpoint.config, "float32"))


def new_worker(model: Any, options: EngineOptions, drafter: Drafter) -> Worker:
    return Worker(model, PageMemory(model.info, options.num_pages, options.page_tokens), drafter)


def make_engine(
    model: Any,
    drafter: type[Drafter] = NgramDrafter,
    cache: type[PrefixCache] = NoCache,
    start: bool = True,
    num_tokens: int | None = None,
    **options: int,
) -> Engine:
    sizes = {"max_context": 256, "kv_tokens": 1024, "page_tokens": 8, "prefill_chunk": 16} | options
    engine = Engine(
        ranks=Ranks(
            new_worker(model, EngineOptions(**sizes), drafter(model.info, {})), LocalTransport().open(Topology(), 0)
        ),
        eos_ids=frozenset({2}),
        options=EngineOptions(**sizes),
        cache=cache,
        cache_options={},
        fingerprint="tiny",
        exact=model.row_invariant,
        num_tokens=num_tokens,
    )
    if start:
        engine.start()
    return engine


def request(prompt: Seq[int], max_tokens: int = 24, **kwargs: Any) -> Request:
    sampling = {
        k: kwargs.pop(k)
        for k in list(kwargs)
        if k in SamplingParams.__dataclass_fields__  # the rest belongs to the request
    }
    sampling.setdefault("temperature", 0.0)
    return Request(prompt=tuple(prompt), max_tokens=max_tokens, sampling=SamplingParams(**sampling), **kwargs)


async def collect(engine: Engine, one: Request) -> list[Output]:
    return [output async for output in engine.submit(one)]


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def generate(engine: Engine, requests: Seq[Request]) -> list[list[int]]:
    """All at once; the tokens of each."""

    async def run() -> list[list[Output]]:
        return await asyncio.gather(*(collect(engine, one) for one in requests))

    return [tokens_of(outputs) for outputs in asyncio.run(run())]
