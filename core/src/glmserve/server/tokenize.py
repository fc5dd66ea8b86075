"""Between text and token ids: the routes /tokenize and /detokenize, and what the other routes need of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field, StrictBool, StrictInt, StrictStr

from glmserve.api import RequestError

from .errors import declared
from .limits import JsonRoute
from .openai.messages import Message, Strict
from .openai.prompt import TemplateInput, TemplateOptions
from .openai.types import Reply

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from .app import Serving

router = APIRouter(tags=["tokens"], route_class=JsonRoute)

T = TypeVar("T")

INLINE_CHARACTERS = 4096
"""Longer texts are encoded in a thread: the event loop must keep every other stream flowing."""


class TokenizeRequest(TemplateOptions):
    """Either a text or messages, which the chat template turns into one."""

    prompt: StrictStr | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_special_tokens: StrictBool = Field(True, description="For a prompt: begin with the tokenizer's own start.")


class TokenizeReply(Reply):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(Strict):
    tokens: list[StrictInt]


class DetokenizeReply(Reply):
    prompt: str


class TokenText:
    """What a single token reads as, for log-probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = tokenizer.decoder
        self._byte_level = decoder is not None and b"ByteLevel" in decoder.__getstate__()
        self._special = frozenset(tokenizer.get_added_tokens_decoder())

    def raw(self, token_id: int) -> bytes:
        """The token's bytes; they need not be whole characters. Empty for an id that is no token."""
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if token_id in self._special:
            return piece.encode()
        if self._byte_level:
            try:
                return bytes(_BYTES[character] for character in piece)
            except KeyError:
                return piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("\u2581", " ").encode()

    def text(self, token_id: int) -> str:
        return self.raw(token_id).decode("utf-8", "replace")


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes: printable ones as themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work` here when its input of `size` characters is small, in a thread when not."""
    return work() if size <= INLINE_CHARACTERS else await asyncio.to_thread(work)


async def encode_text(serving: Serving, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
    tokenizer = serving.tokenizer.tokenizer
    return await off_loop(len(text), lambda: tuple(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids))


async def encode_chat(serving: Serving, given: TemplateInput) -> tuple[str, tuple[int, ...]]:
    """The prompt of a chat and its ids. The template writes the start token itself, so the tokenizer adds none."""

    def work() -> tuple[str, tuple[int, ...]]:
        text = serving.template.render(given.messages, given.tools.described, given.options)
        return text, tuple(serving.tokenizer.tokenizer.encode(text, add_special_tokens=False).ids)

    return await off_loop(given.size, work)


def check_token_ids(tokens: Sequence[int], num_tokens: int, param: str) -> None:
    """Raises RequestError when an id is outside the vocabulary."""
    for token in tokens:
        if not 0 <= token < num_tokens:
            raise RequestError(
                f"{param!r} holds {token}, which is outside the vocabulary (0 to {num_tokens - 1}).", param=param
            )


@router.post("/tokenize", responses=declared(400, 401, 413, 415, 503))
async def tokenize(body: TokenizeRequest, request: Request) -> TokenizeReply:
    """The token ids of a text or of a chat."""
    serving: Serving = request.app.state.serving
    engine = serving.require_engine()
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Send either 'prompt' or 'messages'.", param="prompt")
    if body.messages is not None:
        _, tokens = await encode_chat(serving, serving.template_input(body.messages, body))
    else:
        tokens = await encode_text(serving, body.prompt or "", body.add_special_tokens)
    return TokenizeReply(tokens=list(tokens), count=len(tokens), max_model_len=engine.max_context)


@router.post("/detokenize", responses=declared(400, 401, 413, 415, 503))
async def detokenize(body: DetokenizeRequest, request: Request) -> DetokenizeReply:
    """The text of token ids, control tokens included."""
    serving: Serving = request.app.state.serving
    check_token_ids(body.tokens, serving.require_engine().num_tokens, "tokens")
    tokenizer = serving.tokenizer.tokenizer
    text = await off_loop(len(body.tokens), lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
    return DetokenizeReply(prompt=text)
