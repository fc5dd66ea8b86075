"""Where a rank's layers come from, and which part of them it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from glmserve.api import Checkpoint, Linear, LinearSpec, Parallel, Quantization, Shard

from ..cuts import even, spread
from .config import GlmConfig


@dataclass(frozen=True)
class Source:
    """What every layer is made from."""

    checkpoint: Checkpoint
    quantization: Quantization
    config: GlmConfig
    kv_dtype: str
    parallel: Parallel

    def linear(self, spec: LinearSpec, rows: range | None = None, columns: range | None = None) -> Linear:
        """The layer; or some output rows, the same of each of its parts; or some input columns."""
        whole = Shard.whole(spec)
        shard = Shard(whole.rows if rows is None else (rows,) * len(spec.parts), columns or whole.columns)
        return self.quantization.load_linear(self.checkpoint, spec, shard)

    def vector(self, name: str) -> torch.Tensor:
        return self.quantization.load_vector(self.checkpoint, name)

    @property
    def heads(self) -> list[range]:
        """The attention heads of each rank."""
        return even(self.config.heads, self.parallel.size)

    def own(self, columns: int) -> range:
        """This rank's part of the intermediate columns of an MLP."""
        return even(columns, self.parallel.size)[self.parallel.rank]


def check_spread(config: GlmConfig, ranks: int) -> None:
    """Raises ConfigError when there is a rank without a head, or without a column of some MLP."""
    spread(config.heads, ranks, "attention heads")
    for sparse, columns in ((False, config.dense_inner), (True, config.expert_inner)):
        if sparse in config.sparse_mlp or (sparse and config.nextn_layers):
            spread(columns, ranks, "intermediate columns in an MLP")
