"""A checkpoint's tokenizer, chat template and sampling defaults, from its JSON files or from GGUF metadata.

There is no cache of built tokenizers: building one from a 49k-token GGUF takes 0.1 s, less than reading it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmserve.api import CheckpointError, IntegrityError

from .checkpoint import find_gguf
from .generation import SamplingDefaults, sampling_defaults
from .gguf_reader import read_metadata
from .gguf_tokenizer import adds_bos, build_tokenizer, count_tokens, token_id
from .safetensors_reader import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>")
"""Control tokens that end a turn; GGUF files often name only one of theirs."""


@dataclass(frozen=True)
class TokenizerBundle:
    """What is needed between text and token ids."""

    tokenizer: Tokenizer
    """`encode(text)` puts the beginning-of-sequence token first when `add_bos`; with add_special_tokens=False never."""
    chat_template: str | None
    """Jinja source; None when the checkpoint has none."""
    bos_token: str | None
    eos_token: str | None
    eos_ids: tuple[int, ...]
    """Every token that ends a generation, ascending."""
    add_bos: bool
    num_tokens: int
    """One more than the largest id that is a token. A model's vocabulary may be padded beyond."""
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    """What the model's authors recommend."""


def load_tokenizer(path: Path) -> TokenizerBundle:
    """The tokenizer of a checkpoint, given as `open_checkpoint` takes it.

    Raises CheckpointError when there is none or its kind is not supported, IntegrityError when it is damaged.
    """
    gguf = find_gguf(path)
    return _from_files(path) if gguf is None else _from_gguf(gguf)


def _from_gguf(path: Path) -> TokenizerBundle:
    metadata = read_metadata(path)
    tokenizer = build_tokenizer(metadata, path)
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {role: token_id(metadata, role, len(tokens), path) for role in ("bos", "eos", "eot", "eom")}
    bos, eos = ids.pop("bos"), ids["eos"]
    special = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    ends = {*ids.values(), *(special.get(token) for token in _TURN_ENDS)}
    template = metadata.get("tokenizer.chat_template")
    return TokenizerBundle(
        tokenizer=tokenizer,
        chat_template=template if isinstance(template, str) else None,
        bos_token=None if bos is None else tokens[bos],
        eos_token=None if eos is None else tokens[eos],
        eos_ids=tuple(sorted(end for end in ends if end is not None)),
        add_bos=bos is not None and adds_bos(metadata),
        num_tokens=count_tokens(metadata),
    )


def _from_files(path: Path) -> TokenizerBundle:
    from tokenizers import Tokenizer

    file = path / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(
            f"{path} has no tokenizer.json, so its text cannot be read; fetch one beside the weights."
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises bare Exceptions.
        raise IntegrityError(f"{file} is not a usable tokenizer ({str(error)[:120]}); fetch it again.") from None
    # A checkpoint may hold fewer of these files; the ones that are there must be sound.
    settings, config, generation = (
        read_json(path / name) if (path / name).is_file() else {}
        for name in ("tokenizer_config.json", "config.json", "generation_config.json")
    )
    bos, eos = _token(settings, "bos_token", path), _token(settings, "eos_token", path)
    ends = {end for source in (config, generation) for end in _ids(source.get("eos_token_id"), path)}
    if eos is not None and (eos_id := tokenizer.token_to_id(eos)) is not None:
        ends.add(eos_id)
    bos_id = None if bos is None else tokenizer.token_to_id(bos)
    return TokenizerBundle(
        tokenizer=tokenizer,
        chat_template=_template(path, settings),
        bos_token=bos,
        eos_token=eos,
        eos_ids=tuple(sorted(ends)),
        # Asked of the tokenizer itself: the settings are often silent or wrong about it.
        add_bos=bos_id is not None and tokenizer.encode("a").ids[:1] == [bos_id],
        num_tokens=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        sampling=sampling_defaults(generation, path),
    )


def _token(settings: Mapping[str, Any], key: str, path: Path) -> str | None:
    """A token named by its text or by an object with `content`."""
    value = settings.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise IntegrityError(f"{path / 'tokenizer_config.json'} has a {key} that is not a text; fetch it again.")
    return text


def _ids(value: Any, path: Path) -> list[int]:
    """One id, a list of them, or none. Raises IntegrityError for what is not a token id."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for index in ids:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise IntegrityError(f"{path} has an eos_token_id of {str(index)[:40]!r}, which is not a token id.")
    return ids


def _template(path: Path, settings: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise IntegrityError(f"{file} cannot be read as text ({error}); fetch it again.") from None
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
