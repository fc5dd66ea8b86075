"""The training text: the same from the same seed, and without what is held out."""

from __future__ import annotations

from hashlib import sha256
from itertools import islice

from recipe.batches import Encoder
from recipe.corpus import Template, examples
from recipe.tokenizer import SEED, STOP_IDS

DOCUMENTS = 2000


def text(seed: int, held_out: bool = False) -> str:
    template = Template()
    return "\n".join(template.whole(example) for example in islice(examples(seed, held_out), DOCUMENTS))


def test_a_seed_gives_the_bytes_that_the_model_was_trained_on() -> None:
    digest = sha256(text(SEED).encode()).hexdigest()
    assert digest == "a2de89abf14349513846640d96d32a9c1504bda03262b197b023725b3175cf07"


def test_seeds_give_different_text() -> None:
    assert text(1) != text(2)


def test_no_question_that_is_held_out_is_trained_on() -> None:
    trained = {key for example in islice(examples(1, False), DOCUMENTS) for key in example.keys}
    held_out = [set(example.keys) for example in islice(examples(1, True), DOCUMENTS)]
    assert all(not keys <= trained for keys in held_out)


def test_every_category_of_the_corpus_is_also_held_out() -> None:
    categories = [{example.category for example in islice(examples(1, h), DOCUMENTS)} for h in (False, True)]
    assert categories[0] == categories[1]
    assert {"tool call", "json", "copy", "arithmetic", "reasoning", "list", "fact"} <= categories[0]


def test_the_answer_continues_the_prompt_and_ends_with_a_stop() -> None:
    encoder = Encoder()
    for example in islice(examples(3, False), 300):
        whole = encoder.template.whole(example)
        assert encoder.encode(example).ids[-1] in STOP_IDS
        if not example.text:
            assert whole.startswith(encoder.template.prompt(example))


def test_what_the_assistant_says_is_learnt_whole_and_the_rest_a_little() -> None:
    encoder = Encoder()
    for example in islice(examples(4, False), 100):
        tokens = encoder.encode(example)
        if example.text or example.only_last:
            continue
        learnt = [id for id, weight in zip(tokens.ids, tokens.weights, strict=True) if weight == 1.0]
        said = encoder.tokenizer.decode(learnt, skip_special_tokens=False)
        for message in example.messages:
            assert message["role"] != "assistant" or message["content"] in said
            assert message["role"] != "user" or f"<|user|>{message['content']}" not in said
