"""The tokenizer: any text comes back, and the added tokens are those of GLM-5.3 in its order."""

from __future__ import annotations

import json

from glmserve_model_tiny_glm import CHECKPOINT
from hypothesis import given
from hypothesis import strategies as st
from recipe.tokenizer import ADDED, BASE, PLAIN, SPECIAL, STOP_IDS, train
from tokenizers import Tokenizer

TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
CONFIG = json.loads((CHECKPOINT / "config.json").read_text("utf-8"))


@given(st.text() | st.lists(st.sampled_from(ADDED) | st.text(max_size=4)).map("".join))
def test_text_comes_back_as_it_went_in(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    assert all(id < BASE + len(ADDED) for id in ids)


def test_nothing_is_added_to_a_text() -> None:
    assert TOKENIZER.encode("a").ids == TOKENIZER.encode("a", add_special_tokens=False).ids


def test_the_added_tokens_follow_the_base_in_order() -> None:
    assert [TOKENIZER.token_to_id(token) for token in ADDED] == list(range(BASE, BASE + len(ADDED)))
    assert (len(SPECIAL), len(ADDED)) == (18, 36)


def test_tags_that_a_parser_reads_stay_in_the_text() -> None:
    ids = TOKENIZER.encode("<|user|><think>x</think><tool_call>f</tool_call>").ids
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<think>x</think><tool_call>f</tool_call>"
    flags = {token.content: token.special for token in TOKENIZER.get_added_tokens_decoder().values()}
    assert flags == {**dict.fromkeys(SPECIAL, True), **dict.fromkeys(PLAIN, False)}


def test_digits_are_tokens_of_their_own() -> None:
    assert TOKENIZER.encode("2048").tokens == ["2", "0", "4", "8"]


def test_the_head_has_rows_that_no_text_uses() -> None:
    assert CONFIG["vocab_size"] - TOKENIZER.get_vocab_size() == 24


def test_a_turn_ends_with_the_next_speaker_as_in_glm() -> None:
    generation = json.loads((CHECKPOINT / "generation_config.json").read_text("utf-8"))
    names = [TOKENIZER.id_to_token(id) for id in STOP_IDS]
    assert names == ["<|endoftext|>", "<|user|>", "<|observation|>"]
    assert generation["eos_token_id"] == CONFIG["eos_token_id"] == STOP_IDS
    assert generation["pad_token_id"] == CONFIG["pad_token_id"] == STOP_IDS[0]


def test_training_it_again_gives_the_same_file() -> None:
    assert train().to_str(pretty=True) + "\n" == (CHECKPOINT / "tokenizer.json").read_text("utf-8")
