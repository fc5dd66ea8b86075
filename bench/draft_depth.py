"""What drafting with the next-token layer gains on Tiny GLM, by the number of drafts in a chain.

Every held-out question of models/tiny_glm/held_out.json is answered greedily, one at a time, by an engine of each
depth in turn; rates are medians over the rounds. Depth 0 is serial decoding. That the answers are the same at every
depth is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from glmserve.deployment import Deployment, build
from glmserve.engine.request import Request, SamplingParams
from glmserve.plugins import load_plugins
from glmserve.profiles import load_profile
from glmserve.server.chat_template import ChatTemplate

HELD_OUT = Path(__file__).parents[1] / "models" / "tiny_glm" / "held_out.json"
LONGEST = 128
"""Tokens of an answer."""


def deployed(depth: int) -> Deployment:
    drafter = ["drafter.name=mtp", f"drafter.depth={depth}"] if depth else ["drafter.name=none"]
    deployment = build(load_profile("tiny-glm", drafter), load_plugins())
    deployment.engine.start()
    return deployment


def prompts(deployment: Deployment) -> list[tuple[int, ...]]:
    tokenizer = deployment.tokenizer
    template = ChatTemplate(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)
    found = []
    for entry in json.loads(HELD_OUT.read_text("utf-8")):
        text = template.render(
            entry["messages"], entry.get("tools", ()), {"reasoning_effort": entry["reasoning_effort"]}
        )
        found.append(tuple(tokenizer.tokenizer.encode(text, add_special_tokens=False).ids))
    return found


async def answered(deployment: Deployment, prompt: tuple[int, ...]) -> tuple[int, ...]:
    request = Request(prompt=prompt, max_tokens=LONGEST, sampling=SamplingParams(temperature=0))
    return tuple([token async for output in deployment.engine.submit(request) for token in output.token_ids])


async def round_of(deployment: Deployment, asked: list[tuple[int, ...]]) -> tuple[list[Any], float]:
    """The answers, and seconds for all of them."""
    begin = time.perf_counter()
    answers = [await answered(deployment, prompt) for prompt in asked]
    return answers, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    engines = {depth: deployed(depth) for depth in range(5)}
    asked = prompts(engines[0])
    seconds: dict[int, list[float]] = {depth: [] for depth in engines}
    told: list[Any] = []
    for _ in range(rounds):
        for depth, deployment in engines.items():
            answers, spent = asyncio.run(round_of(deployment, asked))
            seconds[depth].append(spent)
            told.append(answers)
    if any(answers != told[0] for answers in told):
        raise SystemExit("drafting changed an answer")
    tokens = sum(len(answer) + 1 for answer in told[0])  # and the one that ends it
    print("| drafts | accepted | tokens a step | tokens/s | against serial |\n|---:|---:|---:|---:|---:|")
    serial = median(seconds[0])
    for depth, deployment in engines.items():
        status = deployment.engine.status()
        deployment.engine.stop()
        accepted = status.accepted_tokens / rounds
        share = f"{status.accepted_tokens / status.drafted_tokens:.0%}" if status.drafted_tokens else "-"
        spent = median(seconds[depth])
        print(
            f"| {depth} | {share} | {tokens / (tokens - accepted):.2f} | {tokens / spent:.0f} | {serial / spent:.2f} |"
        )


if __name__ == "__main__":
    main()
