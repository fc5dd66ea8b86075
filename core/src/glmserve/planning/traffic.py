"""What the ranks exchange to decode one token of one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from glmserve.models.cuts import even
from glmserve.models.glm_moe_dsa.config import GlmConfig

FLOAT_BYTES = 4
"""Whatever is computed travels as float32."""
CANDIDATE_BYTES = 8
"""A candidate of the selection: its float32 score and its position."""


@dataclass(frozen=True)
class Collective:
    """An exchange, as the rank makes it that sends most: with uneven cuts the ranks differ a little."""

    name: str
    count: int
    """A token."""
    payload_bytes: int
    """What one rank contributes to one exchange."""
    peers: int
    """Ranks that it sends it to, each in one message."""

    @property
    def token_payload_bytes(self) -> int:
        return self.count * self.payload_bytes

    @property
    def token_sent_bytes(self) -> int:
        """What a rank sends for one token."""
        return self.token_payload_bytes * self.peers


def glm_traffic(glm: GlmConfig, tensor: int, context: int) -> tuple[Collective, ...]:
    """The exchanges of a trunk cut over `tensor` ranks whose cache is dealt out over `context` of them.

    Tensor parallelism sums the partial outputs of attention and of the MLP, once a layer each, and gathers the logits.
    Context parallelism brings the absorbed queries to where the positions lie, merges the partial attention by its
    logarithms of sums, and on layers with an indexer merges the best candidates of each rank.
    """
    found = []
    if tensor > 1:
        found += [
            Collective("layer sums", 2 * glm.layers, glm.hidden * FLOAT_BYTES, tensor - 1),
            Collective("logits", 1, -(-glm.vocab_size // tensor) * FLOAT_BYTES, 1),
        ]
    if context > 1:
        heads = len(even(glm.heads, tensor)[0])
        query = heads * glm.latent_width * FLOAT_BYTES
        partial = heads * (glm.kv_rank + 1) * FLOAT_BYTES
        found += [
            Collective("queries", glm.layers, query, context - 1),
            Collective("attention merge", glm.layers, partial, context - 1),
            Collective("index candidates", len(glm.full_indexers), glm.index_topk * CANDIDATE_BYTES, context - 1),
        ]
    return tuple(found)


def prefill_sum_bytes(glm: GlmConfig, rows: int) -> int:
    """One layer sum of a prompt chunk of `rows` tokens."""
    return rows * glm.hidden * FLOAT_BYTES
