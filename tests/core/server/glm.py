"""A chat model with GLM-5.3's special tokens and prompts, and no weights: a byte is a token, the tags are tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from glmserve.store.tokenizer import TokenizerBundle
from tokenizers import AddedToken

from .fake_engine import FakeEngine, byte_tokenizer

TEMPLATE = Path(__file__).with_name("glm.jinja").read_text("utf-8")
SWITCHED = (
    TEMPLATE.replace("'low': 'Low', ", "")
    .replace("<|system|>Reasoning", "{% if enable_thinking is not defined or enable_thinking %}<|system|>Reasoning")
    .replace("'Max') }}", "'Max') }}{% endif %}")
    .replace("<|assistant|><think>{%", "<|assistant|><think>{{ '</think>' if enable_thinking is false }}{%")
)
"""After GLM-5.2's: thinking can be turned off, and there is no low effort."""
CONTROL = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
ARGUMENTS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
PADDING = 6
"""Rows of the vocabulary that are no token."""


def bundle(template: str = TEMPLATE) -> TokenizerBundle:
    """The tokenizer marks control tokens as special and tags not, as GLM's does."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in (*TAGS, *ARGUMENTS)])
    ends = (tokenizer.token_to_id(token) for token in ("<eos>", "<|user|>", "<|observation|>"))
    return TokenizerBundle(tokenizer, template, None, "<eos>", tuple(ends), False, tokenizer.get_vocab_size())


BUNDLE = bundle()


def ids(text: str) -> list[int]:
    """Token ids of `text`, tags and control tokens as single ones."""
    found: list[int] = BUNDLE.tokenizer.encode(text, add_special_tokens=False).ids
    return found


def text_of(token_ids: tuple[int, ...]) -> str:
    text: str = BUNDLE.tokenizer.decode(list(token_ids), skip_special_tokens=False)
    return text


def engine(reply: str, step: int = 1, **settings: int) -> FakeEngine:
    """Says `reply`, then the role that comes next, `step` tokens at a time."""
    fake = FakeEngine(ids(reply), step=step, **settings)
    fake.eos_ids = frozenset(BUNDLE.eos_ids)
    fake.num_tokens = BUNDLE.num_tokens
    fake.info.vocab_size = BUNDLE.num_tokens + PADDING
    fake.max_context = 4096
    return fake


def without_tags() -> TokenizerBundle:
    """The same model without a word for a tag."""
    return replace(BUNDLE, tokenizer=byte_tokenizer())
