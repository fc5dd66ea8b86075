"""Whatever the tokens, the pieces add up to the whole text, and a stop string never leaks."""

import pytest
from glmserve.engine.detokenizer import Detokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


def byte_tokenizer() -> Tokenizer:
    """One token per byte, so that every character beyond ASCII is cut."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


TOKENIZER = byte_tokenizer()


def pieces(ids: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER, stop)
    out = [detokenizer.push(i) for i in ids]
    return [*out, detokenizer.finish()]


@given(st.text())
def test_pieces_add_up(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert "".join(pieces(ids)) == text


@given(st.text(alphabet="ab🦀é", max_size=40), st.lists(st.text(alphabet="ab🦀é", min_size=1, max_size=4), max_size=4))
def test_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    out = "".join(pieces(TOKENIZER.encode(text).ids, tuple(stop)))
    assert not any(s in out for s in stop)
    # The cut is where some stop string ends first while the text grows character by character.
    expected = text
    for end in range(len(text) + 1):
        hits = [text[:end].find(s) for s in stop if s in text[:end]]
        if hits:
            expected = text[: min(hits)]
            break
    assert out == expected


@given(st.text(alphabet="ab", min_size=1, max_size=40))
def test_no_piece_has_to_be_taken_back(text: str) -> None:
    """At any moment what is out is a beginning of the final text."""
    final = "".join(pieces(TOKENIZER.encode(text).ids, ("abab",)))
    out = ""
    for piece in pieces(TOKENIZER.encode(text).ids, ("abab",)):
        out += piece
        assert final.startswith(out)


def test_incomplete_utf8_at_the_end_becomes_one_replacement() -> None:
    ids = TOKENIZER.encode("ok🦀").ids[:-1]
    assert "".join(pieces(ids)) == "ok\ufffd"


def test_no_replacement_while_a_character_is_incomplete() -> None:
    assert all("\ufffd" not in piece for piece in pieces(TOKENIZER.encode("🦀é🦀").ids))


def test_special_tokens_have_no_text() -> None:
    end = TOKENIZER.token_to_id("<end>")
    ids = TOKENIZER.encode("a").ids
    assert "".join(pieces([*ids, end, *ids])) == "aa"
