"""Verification returns what serial decoding would, whatever was drafted; the n-gram drafter repeats what it saw."""

import pytest
from glmserve.api import ConfigError, ModelInfo
from glmserve.engine.drafters import NgramDrafter
from glmserve.engine.speculation import verify
from hypothesis import given
from hypothesis import strategies as st

INFO = ModelInfo("t", 8, 4, 1, 64, (), (), "e", ())


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_any_draft_leaves_the_tokens_unchanged(serial: list[int], data: st.DataObject) -> None:
    out: list[int] = []
    while len(out) < len(serial):
        drafts = data.draw(st.lists(st.integers(0, 3), max_size=5))

        def next_token(_: int) -> int | None:
            if len(out) == len(serial):
                return None
            out.append(serial[len(out)])
            return out[-1]

        tokens, accepted = verify(drafts, next_token)
        assert accepted == sum(1 for _ in range(accepted))
        assert tokens[:accepted] == drafts[:accepted]
        assert len(tokens) >= 1
    assert out == serial


def drafter(**options: object) -> NgramDrafter:
    return NgramDrafter(INFO, options)


def test_ngram_proposes_what_followed_last_time() -> None:
    ngram = drafter()
    ngram.observe(1, 0, [1, 2, 3, 4, 5, 1, 2], {})
    assert ngram.propose(1, 3, 2).tokens == (4, 5)
    assert ngram.propose(1, 3, 9).tokens == (4, 5, 1, 2)
    assert ngram.propose(1, 9, 2).tokens == ()
    assert ngram.propose(2, 3, 2).tokens == ()


def test_ngram_prefers_the_longest_ending() -> None:
    ngram = drafter(min=1, max=3)
    ngram.observe(1, 0, [1, 2, 3, 9, 2, 3, 7, 1, 2], {})
    assert ngram.propose(1, 3, 1).tokens == (9,)


def test_ngram_forgets() -> None:
    ngram = drafter()
    ngram.observe(1, 0, [1, 2, 1], {})
    ngram.forget(1)
    ngram.forget(1)
    assert ngram.propose(1, 2, 2).tokens == ()


@pytest.mark.parametrize("options", [{"mim": 2}, {"min": 3, "max": 2}, {"min": "2"}, {"max": 99}])
def test_ngram_refuses_wrong_options(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        drafter(**options)
