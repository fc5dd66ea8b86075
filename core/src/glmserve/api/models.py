"""The fifth, smaller seam: model families. A family is the forward pass of an architecture and nothing of serving.

Memory layout. The engine owns one pool per paged tensor, shaped [pages, page_entries, *per_token], on every rank. The
entries that a rank keeps of a sequence, those of all its positions or every n-th (`ContextShare`), follow one another:
entry e lives in page `page_table[e // page_entries]` at offset `e % page_entries`, in every pool alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from .collectives import ContextShare, Parallel
from .errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from .checkpoint import Checkpoint
    from .quantization import LinearSpec, Quantization


ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class PagedTensor:
    """One tensor that stores something for every token of the context."""

    name: str
    per_token: tuple[int, ...]
    dtype: str = "float32"
    """A torch dtype's name: a key of ELEMENT_BYTES."""

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_BYTES:
            raise CheckpointError(f"{self.name} cannot be kept in {self.dtype}; there is {', '.join(ELEMENT_BYTES)}.")

    @property
    def token_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype] * math.prod(self.per_token)


@dataclass(frozen=True)
class ModelInfo:
    """What the engine and the plan must know of a model."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_context: int
    """Tokens, by the checkpoint's configuration."""
    paged: tuple[PagedTensor, ...]
    """Every tensor with a row per token; their images together are a page."""
    linears: tuple[LinearSpec, ...]
    embedding: str
    eos_ids: tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of one sequence within a call."""

    first_row: int
    num_rows: int
    start: int
    """Position of the first row; the rows before it are in the pages already."""
    pages: torch.Tensor
    """int64 [n]: the sequence's page table, long enough for position start + num_rows - 1."""
    chunk: bool
    """True for a prefill chunk: attention may treat its rows together, since the grid always cuts the same rows.
    False for decode rows: each row's attention is computed as if it were alone, so drafted equals serial."""


@dataclass
class ForwardBatch:
    """One call of a model: `rows` token rows, grouped in segments. A call holds either one chunk or decode rows."""

    token_ids: torch.Tensor
    """int64 [rows]"""
    positions: torch.Tensor
    """int64 [rows], absolute"""
    slots: torch.Tensor
    """int64 [stored rows]: page * page_entries + offset, where the entry of each row that this rank keeps is written in
    every pool."""
    segments: Sequence[Segment]
    logit_rows: torch.Tensor
    """int64 [n], rows that need logits"""
    page_entries: int
    stored: torch.Tensor | None = None
    """int64 [stored rows]: the rows whose entries this rank keeps, in order; None when it keeps all."""
    share: ContextShare = field(default=ContextShare())
    """The positions that this rank keeps."""
    taps: tuple[int, ...] = ()
    """Layers l whose output (after both residual adds) is wanted; `num_layers` itself stands for the final norm's."""


@dataclass
class ForwardOutput:
    logits: torch.Tensor
    """float32 [n, vocabulary], for `logit_rows` in order, on rank 0; [0, vocabulary] on the others"""
    hidden: torch.Tensor
    """float32 [rows, hidden], the last layer's output: arithmetic that every rank repeats, so the same bits on all"""
    taps: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """layer -> float32 [rows, hidden], the same on every rank"""


@dataclass(frozen=True)
class NextTokenOutput:
    """Of the rows of one call of a next-token layer."""

    hidden: torch.Tensor
    """float32 [rows, hidden], after the layer's own last norm: the `hidden` of the row that follows in a chain"""
    logits: torch.Tensor
    """float32 [n, vocabulary], for `logit_rows` in order, on every rank"""


class NextTokenLayer(ABC):
    """A layer behind the last one that predicts one token further than the model (multi-token prediction).

    The row of position p takes token p + 1 and the hidden state of p, and predicts token p + 2.
    """

    paged: tuple[PagedTensor, ...]
    """Its own caches, which are not among the model's. Every rank keeps all positions in them."""
    nbytes: int

    @abstractmethod
    def forward(self, batch: ForwardBatch, hidden: torch.Tensor, pools: Mapping[str, torch.Tensor]) -> NextTokenOutput:
        """`batch.token_ids` are those of the positions after `batch.positions`; hidden: float32 [rows, hidden], after
        the model's final norm, or in a chain the hidden of the row before. The place of a row in the caches follows
        its segment, its rotation `batch.positions`."""


class Model(ABC):
    """One rank's part of a model: the ranks make the same calls, which meet in the collectives of their group."""

    info: ModelInfo
    """`paged` is what this rank keeps."""
    row_invariant: bool
    """All linear layers are row-invariant, and so is the rest of the family's arithmetic."""
    nbytes: int

    @abstractmethod
    def forward(self, batch: ForwardBatch, pools: Mapping[str, torch.Tensor]) -> ForwardOutput:
        """Write the rows' entries into the pools, then attend. Touches no slot but `batch.slots`."""

    def load_next_token_layer(self) -> NextTokenLayer:
        """Raises CheckpointError when the checkpoint has none."""
        raise CheckpointError(
            f"Family {self.info.family!r} has no next-token layer; choose another drafter than 'mtp'."
        )


class ModelFamily(ABC):
    """A provider of the model-family seam."""

    name: ClassVar[str]
    architectures: ClassVar[frozenset[str]]
    """Values of `config["architectures"]` that this family runs, or refuses with a reason in `describe`."""
    options: ClassVar[frozenset[str]] = frozenset()
    """Keys of the configuration that a profile may set in model.options, because checkpoints do not say them."""
    capabilities: ClassVar[frozenset[str]] = frozenset()
    """"taps", "next-token"; "context": the positions of the cache can be dealt out over ranks."""
    requires: ClassVar[frozenset[str]] = frozenset()
    conflicts: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def describe(self, config: Mapping[str, Any], kv_dtype: str) -> ModelInfo:
        """Shapes from the configuration alone. Raises CheckpointError that names the key that does not fit."""

    @abstractmethod
    def load(
        self,
        checkpoint: Checkpoint,
        quantization: Quantization,
        info: ModelInfo,
        parallel: Parallel = Parallel(),  # noqa: B008 - immutable
        resident: bool = True,
    ) -> Model:
        """Load this rank's part of all layers, reading no more of the checkpoint than that.

        Without `resident`, a layer is read whenever it is called, and dropped after it: slow, in the memory of one.
        Raises CheckpointError naming missing, unexpected or misshapen tensors, and ConfigError when the model cannot be
        spread so.
        """
