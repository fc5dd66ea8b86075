"""How often the finished model is right on questions that it was never trained on, by category, and how well it drafts.

`python -m recipe.evaluate` reads the checkpoint as it is shipped. With `--write FILE` it also notes, for tests of a
server, some of the questions with the answers that are right and that the model gives.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch

from .batches import Encoder
from .checkpoint import load
from .corpus import Example, examples
from .model import Model
from .mtp import Mtp
from .tokenizer import ADDED, BASE, STOP_IDS

SEED: Final = 41
LONGEST: Final = 160
"""Tokens of an answer."""
CLEAR_MARGIN: Final = 0.5
"""Least distance of the best logit to the second at every token of a noted answer: no rounding turns it round."""
DRAFTS: Final = 4


@dataclass(frozen=True)
class Answer:
    ids: list[int]
    """The token that ends it included."""
    margin: float
    """The least distance of a chosen logit to the second best."""


@torch.no_grad()
def greedy(model: Model, prompts: Sequence[list[int]], stops: Sequence[int], dense: bool = False) -> list[Answer]:
    """The most likely continuation of each prompt, attending as a server does, or to everything if `dense`."""
    ids = [list(prompt) for prompt in prompts]
    margins = [torch.inf] * len(ids)
    running = list(range(len(ids)))
    for _ in range(LONGEST):
        if not running:
            break
        longest = max(len(ids[n]) for n in running)
        rows = torch.tensor([ids[n] + [0] * (longest - len(ids[n])) for n in running])
        ends = torch.tensor([len(ids[n]) - 1 for n in running])
        hidden = model(rows, sparse=not dense)[torch.arange(len(running)), ends]
        best = model.logits(hidden)[:, : BASE + len(ADDED)].topk(2, -1)
        for n, token, (first, second) in zip(running, best.indices[:, 0].tolist(), best.values.tolist(), strict=True):
            ids[n].append(token)
            margins[n] = min(margins[n], first - second)
        running = [n for n in running if ids[n][-1] not in stops]
    return [Answer(all[len(prompt) :], margin) for all, prompt, margin in zip(ids, prompts, margins, strict=True)]


@torch.no_grad()
def tokens_per_step(trunk: Model, mtp: Mtp, prompt: list[int], answer: list[int], drafts: int) -> tuple[int, int]:
    """(tokens, steps) of decoding `answer` greedily: a step gives one token and the drafts that agree with it."""
    ids = torch.tensor([prompt + answer])
    outputs = mtp(trunk.embed_tokens[ids[:, 1:]], trunk(ids[:, :-1]), drafts)
    guesses = [trunk.logits(output)[0].argmax(-1).tolist() for output in outputs]
    at, steps, sequence = len(prompt), 0, ids[0].tolist()
    while at < len(sequence):
        # The token at `at` comes from the trunk; row at - 1 + d of draft d guesses the token at + 1 + d.
        accepted = 0
        for draft in range(drafts):
            if at + 1 + draft >= len(sequence) or guesses[draft][at - 1 + draft] != sequence[at + 1 + draft]:
                break
            accepted += 1
        at += 1 + accepted
        steps += 1
    return len(answer), steps


def drawn(each: int) -> dict[str, list[Example]]:
    """`each` held-out examples of every category; an example is in it once."""
    found: dict[str, list[Example]] = defaultdict(list)
    seen: set[str] = set()
    for example in islice(examples(SEED, held_out=True), 400 * each):
        key = json.dumps([example.messages, example.text], sort_keys=True)
        if not example.text and key not in seen and len(found[example.category]) < each:
            seen.add(key)
            found[example.category].append(example)
    return {category: found[category] for category in sorted(found) if found[category]}


def shown(correct: Mapping[str, Sequence[bool]]) -> str:
    lines = [
        f"{name:12} {sum(right):4}/{len(right):<4} {sum(right) / len(right):6.1%}" for name, right in correct.items()
    ]
    every = [one for right in correct.values() for one in right]
    return "\n".join([*lines, f"{'all':12} {sum(every):4}/{len(every):<4} {sum(every) / len(every):6.1%}"])


def noted(example: Example) -> dict[str, Any]:
    *asked, answer = example.messages
    entry = {"category": example.category, "reasoning_effort": example.effort, "messages": asked}
    if example.tools:
        entry["tools"] = list(example.tools)
    return entry | {"answer": answer}


def evaluate(each: int, dense: bool, note: Path | None, notes: int) -> None:
    torch.set_num_threads(1)
    trunk, mtp = load()
    encoder = Encoder()
    correct: dict[str, list[bool]] = defaultdict(list)
    written: list[dict[str, Any]] = []
    drafted: dict[int, list[tuple[int, int]]] = {drafts: [] for drafts in range(1, DRAFTS + 1)}
    for category, chosen in drawn(each).items():
        wholes = [encoder.encode(example).ids for example in chosen]
        prompts = [_ids(encoder, encoder.template.prompt(example)) for example in chosen]
        for example, prompt, whole, answer in zip(
            chosen, prompts, wholes, greedy(trunk, prompts, STOP_IDS, dense), strict=True
        ):
            right = prompt + answer.ids == whole
            correct[category].append(right)
            for drafts, counts in drafted.items():
                counts.append(tokens_per_step(trunk, mtp, prompt, answer.ids, drafts))
            clear = right and answer.margin > CLEAR_MARGIN
            if clear and sum(entry["category"] == category for entry in written) < notes:
                written.append(noted(example))
            if not right:
                print(f"[{category}] {encoder.tokenizer.decode(prompt[-40:], False)!r}")
                print(f"    -> {encoder.tokenizer.decode(answer.ids, False)!r}")
    print(shown(correct))
    for drafts, counts in drafted.items():
        tokens, steps = (sum(column) for column in zip(*counts, strict=True))
        print(f"{drafts} drafts: {tokens / steps:.2f} tokens a step")
    if note is not None:
        note.write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n", "utf-8")


def _ids(encoder: Encoder, text: str) -> list[int]:
    return encoder.tokenizer.encode(text, add_special_tokens=False).ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=40, help="questions of a category")
    parser.add_argument("--dense", action="store_true", help="attend to every token, as no server of this family does")
    parser.add_argument("--write", type=Path, help="file for questions with their right answers")
    parser.add_argument("--notes", type=int, default=4, help="such questions of a category")
    arguments = parser.parse_args()
    evaluate(arguments.each, arguments.dense, arguments.write, arguments.notes)


if __name__ == "__main__":
    main()
