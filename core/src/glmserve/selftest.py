"""The test at the start of several ranks: on a probe, their logits are those that one rank would give.

It sees what no comparison of settings sees: a layer that is cut wrong, ranks that each compute the whole, a sum that is
left out. One rank's logits are computed on rank 0, a layer at a time, in the memory of one layer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from glmserve.api import RankError
from glmserve.engine.kv import PageMemory
from glmserve.engine.plan import Rows, StepPlan
from glmserve.engine.runner import Runner

if TYPE_CHECKING:
    from glmserve.engine.ranks import Ranks
    from glmserve.engine.runner import RowsResult
    from glmserve.resolution import Resolved

log = logging.getLogger("glmserve.ranks")

CHUNK_ROWS, WINDOW_ROWS = 24, 4
"""Rows of the probe: as a chunk of a prompt, then as a window of decode rows."""
TOLERANCE = 1e-3
"""Of the largest logit. Sums in another order move logits by a millionth of it, a wrong cut by all of it."""
PARTING = 0.25
"""Of the rows, how many may lie further off: where two experts, or two tokens, are almost equally good, rounding may
choose either. A wrong cut shows in every row."""
PROBE = 0
"""Its sequence number, which no request has."""


def probe(vocab_size: int, page_tokens: int) -> list[StepPlan]:
    """Two steps of one sequence, in the first pages."""
    tokens = [(1 + 7919 * i) % vocab_size for i in range(CHUNK_ROWS + WINDOW_ROWS)]
    pages = tuple(range(-(-len(tokens) // page_tokens)))
    chunk, window = tuple(tokens[:CHUNK_ROWS]), tuple(tokens[CHUNK_ROWS:])
    return [
        StepPlan(0, (Rows(PROBE, 0, chunk, 0, pages, CHUNK_ROWS, chunk=True),)),
        StepPlan(0, (Rows(PROBE, CHUNK_ROWS, window, len(pages), (), WINDOW_ROWS, chunk=False),)),
    ]


def reference_of(resolved: Resolved) -> torch.Tensor:
    """float32 [rows, vocabulary]: what one rank gives."""
    quantization = resolved.plugins.quantization(resolved.names["quantization"])()
    model = resolved.family.load(resolved.checkpoint, quantization, resolved.info, resident=False)
    page_tokens = resolved.options.page_tokens
    memory = PageMemory(model.info, CHUNK_ROWS + WINDOW_ROWS, page_tokens)
    runner = Runner(model, memory)
    return _logits([runner.execute(plan) for plan in probe(model.info.vocab_size, page_tokens)])


def check_probe(ranks: Ranks, reference: torch.Tensor) -> None:
    """Raises RankError when the ranks' logits are not those of `reference`."""
    worker = ranks.worker
    found = _logits([ranks.execute(plan) for plan in probe(worker.model.info.vocab_size, worker.memory.page_tokens)])
    allowed = TOLERANCE * float(reference.abs().max())
    off = (found - reference).abs().amax(1)
    apart = int((~(off <= allowed)).sum())
    size = worker.group.size
    if apart > PARTING * len(off):
        raise RankError(
            f"The self-test failed: the logits of {size} ranks differ from those of one in {apart} of {len(off)} rows, "
            f"by up to {float(off.max()):.2g} where {allowed:.2g} is allowed.",
            range(size),
        )
    log.info("self-test: the logits of %d ranks are within %.1e of one rank's.", size, float(off.max()))


def _logits(results: list[list[RowsResult]]) -> torch.Tensor:
    return torch.cat([result.logits for step in results for result in step])
