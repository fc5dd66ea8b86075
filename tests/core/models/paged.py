"""Tiny random checkpoints that transformers writes, and calls of our model over pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import ALONE, Checkpoint, ForwardBatch, ForwardOutput, Group, Model, Parallel, Quantization, Segment
from glmserve.models.dense import Dense
from glmserve.models.llama import Llama
from glmserve.store.checkpoint import open_checkpoint

PAGE_TOKENS = 32
VOCABULARY = 97
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
Rows = tuple[Sequence[int], int, Sequence[int], bool]
"""Token ids, position of the first, page table, whether it is a prefill chunk."""


def write_random(directory: Path, mistral: bool = False, **changes: Any) -> Any:
    """A transformers model with weights that make its logits far from flat, saved in float32 to `directory`."""
    theirs = pytest.importorskip("transformers")
    torch.manual_seed(0)
    name = "Mistral" if mistral else "Llama"
    config = getattr(theirs, f"{name}Config")(**{**SHAPE, **changes})
    reference = getattr(theirs, f"{name}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
            else:
                parameter.uniform_(0.5, 1.5)
    reference.save_pretrained(directory)
    return reference


def load(
    path: Path, quantization: type[Quantization] = Dense, group: Group = ALONE, context: int = 1, resident: bool = True
) -> Model:
    return load_from(open_checkpoint(path), quantization, group, context, resident)


def load_from(
    checkpoint: Checkpoint,
    quantization: type[Quantization] = Dense,
    group: Group = ALONE,
    context: int = 1,
    resident: bool = True,
) -> Model:
    family = Llama()
    info = family.describe(checkpoint.config, "float32")
    return family.load(checkpoint, quantization(), info, Parallel(group, context), resident)


def new_pools(model: Model, pages: int, seed: int | None = None) -> dict[str, torch.Tensor]:
    """Zeros, or with a seed the random remains of a context."""
    made = {p.name: torch.zeros(pages, PAGE_TOKENS, *p.per_token) for p in model.info.paged}
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for pool in made.values():
            pool.normal_(generator=generator)
    return made


def forward(model: Model, pools: dict[str, torch.Tensor], *segments: Rows) -> torch.Tensor:
    """Logits of every row of every segment, in order."""
    return output(model, pools, *segments).logits


def output(model: Model, pools: dict[str, torch.Tensor], *segments: Rows, taps: tuple[int, ...] = ()) -> ForwardOutput:
    """The same with the outputs of layers."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    found = []
    for tokens, start, pages, chunk in segments:
        found.append(Segment(len(ids), len(tokens), start, torch.tensor(pages), chunk))
        places = range(start, start + len(tokens))
        ids += tokens
        positions += places
        slots += [pages[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for p in places]
    batch = ForwardBatch(
        torch.tensor(ids),
        torch.tensor(positions),
        torch.tensor(slots),
        found,
        torch.arange(len(ids)),
        PAGE_TOKENS,
        taps=taps,
    )
    with torch.inference_mode():
        return model.forward(batch, pools)
