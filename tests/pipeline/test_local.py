"""Profile `local`, from the package index to an answer."""

import asyncio

from glmserve.deployment import build
from glmserve.engine.detokenizer import Detokenizer
from glmserve.engine.request import Request, SamplingParams
from glmserve.plugins import load_plugins
from glmserve.profiles import load_profile

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def test_greedy_answer_names_paris() -> None:
    deployment = build(load_profile("local", environ={}), load_plugins(environ={}))
    tokenizer = deployment.tokenizer.tokenizer
    engine = deployment.engine
    engine.start()

    async def answer(draft: bool) -> str:
        request = Request(
            prompt=tuple(tokenizer.encode(QUESTION, add_special_tokens=False).ids),
            max_tokens=24,
            sampling=SamplingParams(temperature=0),
            text=Detokenizer(tokenizer),
            draft=draft,
        )
        return "".join([output.text async for output in engine.submit(request)])

    try:
        text = asyncio.run(answer(draft=True))
        assert "Paris" in text
        assert asyncio.run(answer(draft=False)) == text
        assert engine.exact
    finally:
        engine.stop()
    assert engine.check_integrity() == []
