"""A head whose vocabulary is cut over ranks computes what the whole one does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import ALONE, ConfigError, Group
from glmserve.models.dense import Dense
from glmserve.models.head import VocabularyHead
from glmserve.models.llama import Llama
from glmserve.store.checkpoint import open_checkpoint

from .paged import SHAPE, VOCABULARY, write_random
from .ranks import on_ranks

X = torch.randn(5, SHAPE["hidden_size"], generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=[False, True], ids=["own", "tied"])
def head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("model")
    write_random(directory, tie_word_embeddings=request.param, num_hidden_layers=1)
    checkpoint = open_checkpoint(directory)
    spec = Llama().describe(checkpoint.config, "float32").linears[-1]

    def head(group: Group, resident: bool = True) -> VocabularyHead:
        return VocabularyHead(checkpoint, Dense(), spec, group, resident)

    return head


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_rank_0_gathers_the_logits_of_all_tokens_in_order(head: Any, ranks: int) -> None:
    expected = head(ALONE)(X)
    found = on_ranks(ranks, lambda group: head(group)(X))
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)
    assert [tuple(logits.shape) for logits in found[1:]] == [(0, VOCABULARY)] * (ranks - 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_logits_can_be_had_on_every_rank_with_the_same_bits(head: Any, ranks: int) -> None:
    def both(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        made = head(group)
        return made(X), made.everywhere(X)

    found = on_ranks(ranks, both)
    for _, everywhere in found:
        assert torch.equal(everywhere, found[0][0])


def test_no_rows_have_no_logits_and_nobody_exchanges_them(head: Any) -> None:
    def work(group: Any) -> Any:
        made = head(group)
        return made(X[:0]).shape, made.everywhere(X[:0]).shape, group.names

    assert on_ranks(3, work) == [((0, VOCABULARY), (0, VOCABULARY), [])] * 3


def test_the_ranks_hold_one_head_between_them(head: Any) -> None:
    assert sum(on_ranks(3, lambda group: head(group).nbytes)) == head(ALONE).nbytes > 0


def test_a_head_that_is_read_at_each_call_has_the_same_bits_and_holds_nothing(head: Any) -> None:
    made = head(ALONE, resident=False)
    assert torch.equal(made(X), head(ALONE)(X))
    assert (made.nbytes, made.row_invariant) == (0, False)


def test_more_ranks_than_tokens_are_refused(tmp_path: Path) -> None:
    write_random(tmp_path, vocab_size=3, num_hidden_layers=1)
    checkpoint = open_checkpoint(tmp_path)
    spec = Llama().describe(checkpoint.config, "float32").linears[-1]
    with pytest.raises(ConfigError, match=r"parallel\.tensor is 4, .* only 3 tokens"):
        on_ranks(4, lambda group: VocabularyHead(checkpoint, Dense(), spec, group))
