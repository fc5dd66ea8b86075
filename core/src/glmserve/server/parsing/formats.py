"""How a model's replies are written: told by its tokenizer, which has the tags as single tokens or has them not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import tags

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GLM_EFFORTS: Mapping[str, str] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
"""`reasoning_effort` of a request -> what GLM-5's templates are given. They know low, high and max, and would take any
other word for max, even "medium" and "none"."""


@dataclass(frozen=True)
class ChatFormat:
    """A model's format. Without any tag in its vocabulary, a reply is content and nothing else."""

    think: int | None = None
    """Id of the tag that opens the thinking; None: the model does not think in tags."""
    reasoning_ends: tuple[int, ...] = ()
    """Ids of the tags that end it: first its own, then that which opens a call."""
    tool_calls: bool = False
    """Calls are written in GLM's format."""
    efforts: Mapping[str, str] = field(default_factory=dict)
    """Reasoning efforts that mean another one to the template."""


def format_of(tokenizer: Tokenizer) -> ChatFormat:
    """The format that the vocabulary of `tokenizer` stands for."""
    ids = {tag: index for tag in tags.ALL if (index := tokenizer.token_to_id(tag)) is not None}
    if tags.THINK not in ids or tags.THINK_END not in ids:
        return ChatFormat()
    if len(ids) < len(tags.ALL):
        return ChatFormat(ids[tags.THINK], (ids[tags.THINK_END],))
    return ChatFormat(ids[tags.THINK], (ids[tags.THINK_END], ids[tags.CALL]), tool_calls=True, efforts=GLM_EFFORTS)
