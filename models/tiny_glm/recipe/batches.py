"""Token batches of the corpus, padded to the right, with a weight for each token to predict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import CHECKPOINT, Example, Template, examples

PROMPT_WEIGHT: Final = 0.1
"""What is asked is mostly chance; learning it a little still helps."""
STEP_TOKENS: Final = 4096
PADDING: Final = 400
"""Tokens of it in a part, at most, before another part is begun."""


@dataclass(frozen=True)
class Batch:
    ids: Tensor
    """[rows, tokens]."""
    weights: Tensor
    """[rows, tokens]: of token t as something to predict."""


@dataclass(frozen=True)
class Tokens:
    ids: list[int]
    weights: list[float]


class Encoder:
    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
        self.template = Template()
        names = ("<|assistant|>", "<|user|>", "<|observation|>")
        self._assistant, *self._ends = [self.tokenizer.token_to_id(name) for name in names]

    def encode(self, example: Example) -> Tokens:
        ids = self.tokenizer.encode(self.template.whole(example), add_special_tokens=False).ids
        if example.text:
            return Tokens(ids, [1.0] * len(ids))
        return Tokens(ids, self._weights(ids, example.only_last))

    def _weights(self, ids: list[int], only_last: bool) -> list[float]:
        """1 for what the assistant says, the token that ends its turn included; not for the <think> that is given."""
        weights = [PROMPT_WEIGHT] * len(ids)
        starts = [at for at, id in enumerate(ids) if id == self._assistant]
        for start in starts[-1:] if only_last else starts:
            for at in range(start + 2, len(ids)):
                weights[at] = 1.0
                if ids[at] in self._ends:
                    break
        return weights


def batches(
    seed: int,
    keep: Callable[[int], bool] = lambda length: True,
    held_out: bool = False,
) -> Iterator[list[Batch]]:
    """Without end: parts of one step, from short examples to long ones, so that each step sees the whole mixture.

    Each part is of one length, more or less, so that little of it is padding. `keep` chooses by length.
    """
    encoder = Encoder()
    source = (encoder.encode(example) for example in examples(seed, held_out))
    fitting = (one for one in source if keep(len(one.ids)))
    while True:
        step, tokens = list[Tokens](), 0
        while tokens < STEP_TOKENS:
            step.append(next(fitting))
            tokens += len(step[-1].ids)
        step.sort(key=lambda one: len(one.ids))
        parts, rows = list[Batch](), list[Tokens]()
        for one in step:
            if rows and len(rows) * (len(one.ids) - len(rows[0].ids)) > PADDING:
                parts.append(padded(rows))
                rows = []
            rows.append(one)
        yield [*parts, padded(rows)]


def padded(rows: Iterable[Tokens]) -> Batch:
    rows = list(rows)
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    weights = torch.zeros(len(rows), length)
    for n, row in enumerate(rows):
        ids[n, : len(row.ids)] = torch.tensor(row.ids)
        weights[n, : len(row.ids)] = torch.tensor(row.weights)
    return Batch(ids, weights)
