"""The head of a language model, its vocabulary cut over the ranks."""

from __future__ import annotations

import torch

from glmserve.api import Checkpoint, Group, Linear, LinearSpec, Quantization, Shard

from .cuts import spread
from .layers import Layers

LOGITS = "logits"
"""The name of the exchange."""


class VocabularyHead:
    """Hidden rows to logits. Each rank reads and computes the logits of its own part of the vocabulary."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        quantization: Quantization,
        spec: LinearSpec,
        group: Group,
        resident: bool = True,
    ) -> None:
        """spec: one part, [vocabulary, hidden]. Raises ConfigError when a rank would have no token."""
        self._group = group
        self._tokens = spread(spec.out_features, group.size, "tokens in its vocabulary")
        self._vocab_size = spec.out_features
        shard = Shard((self._tokens[group.rank],), range(spec.in_features))

        def load(index: int) -> Linear:
            return quantization.load_linear(checkpoint, spec, shard)

        self._linear = Layers(load, 1, resident)
        self.nbytes = self._linear.nbytes
        self.row_invariant = self._linear.row_invariant

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [rows, hidden], after the final norm. Returns [rows, vocabulary] on rank 0, [0, vocabulary] on others."""
        if not len(x):
            return x.new_empty(0, self._vocab_size)
        own, group = self._linear[0](x), self._group
        if group.rank:
            group.exchange(LOGITS, {0: own.contiguous()}, {})
            return x.new_empty(0, self._vocab_size)
        others = {rank: own.new_empty(len(x), len(self._tokens[rank])) for rank in range(1, group.size)}
        if others:
            group.exchange(LOGITS, {}, others)
        return torch.cat([own, *others.values()], 1) if others else own

    def everywhere(self, x: torch.Tensor) -> torch.Tensor:
        """x: [rows, hidden]. Returns [rows, vocabulary] on every rank."""
        if not len(x):
            return x.new_empty(0, self._vocab_size)
        own, group = self._linear[0](x), self._group
        if group.size == 1:
            return own
        shapes = [(len(x), len(tokens)) for tokens in self._tokens]
        return torch.cat(group.gather(LOGITS, own, shapes, range(group.size)), 1)
