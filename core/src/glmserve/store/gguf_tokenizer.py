"""A tokenizer from the metadata of a GGUF file: byte-level BPE ("gpt2") and SentencePiece-style BPE ("llama")."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmserve.api import CheckpointError, IntegrityError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
"""Values of tokenizer.ggml.token_type; 1 is an ordinary token."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "qwen2": (_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),),
}
"""tokenizer.ggml.pre -> patterns that cut the text, each within the pieces that the one before it left."""
_LLAMA3_NAMES = frozenset({"llama-bpe", "llama3", "llama-v3"})


def build_tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer that `metadata` describes, special tokens included.

    Raises CheckpointError when its kind is not supported, IntegrityError when the metadata contradict themselves.
    """
    from tokenizers import AddedToken

    tokens = _list(metadata, "tokens", str, path)
    types = _list(metadata, "token_type", int, path) if "tokenizer.ggml.token_type" in metadata else [1] * len(tokens)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or len(types) != len(tokens) or not tokens:
        raise _damaged(path, "its vocabulary repeats a token, is empty, or lacks token types")
    kind = metadata.get("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            tokenizer = _byte_level(metadata, vocabulary, path)
        elif kind == "llama":
            tokenizer = _sentencepiece(metadata, tokens, types, vocabulary, path)
        else:
            raise CheckpointError(
                f"{path} has a tokenizer of kind {str(kind)[:40]!r}; only 'gpt2' and 'llama' are supported in GGUF, "
                "so use a safetensors checkpoint with a tokenizer.json."
            )
        added = [
            AddedToken(token, special=role != _USER_DEFINED, normalized=False)
            for token, role in zip(tokens, types, strict=True)
            if token and role in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
        tokenizer.add_tokens([token for token in added if not token.special])
        tokenizer.add_special_tokens([token for token in added if token.special])
        if adds_bos(metadata) and (bos := token_id(metadata, "bos", len(tokens), path)) is not None:
            _prefix(tokenizer, tokens[bos], bos)
    except (CheckpointError, IntegrityError):
        raise
    except Exception as error:  # The library raises bare Exceptions for merges that do not fit the vocabulary.
        raise _damaged(path, f"its tokenizer cannot be built: {str(error)[:120]}") from None
    return tokenizer


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether a text starts with the beginning-of-sequence token; where the file is silent, what its kind implies."""
    implied = metadata.get("tokenizer.ggml.model") == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3_NAMES
    return bool(metadata.get("tokenizer.ggml.add_bos_token", implied))


def count_tokens(metadata: Mapping[str, Any]) -> int:
    """One more than the largest id in use: converters fill a padded vocabulary up with unused tokens. For metadata
    that `build_tokenizer` accepted."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type", ())
    count = len(tokens)
    while count and count <= len(types) and types[count - 1] == _UNUSED:
        count -= 1
    return count


def token_id(metadata: Mapping[str, Any], role: str, size: int, path: Path) -> int | None:
    """The id of a role ("bos", "eos", "eot", "eom"), or None. Raises IntegrityError outside the vocabulary."""
    value = metadata.get(f"tokenizer.ggml.{role}_token_id")
    # 2**32 - 1 is how some converters write "none".
    if value is None or value in (-1, 0xFFFFFFFF):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        raise _damaged(path, f"its {role} token is {str(value)[:40]} and the vocabulary has {size}")
    return value


def _byte_level(metadata: Mapping[str, Any], vocabulary: dict[str, int], path: Path) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    patterns = _PATTERNS.get(name)
    if patterns is None:
        raise CheckpointError(
            f"{path} needs the pre-tokenizer {name[:40]!r}, which is not supported; supported are "
            f"{', '.join(sorted(_PATTERNS))}, so use a safetensors checkpoint with a tokenizer.json."
        )
    merges = []
    for merge in _list(metadata, "merges", str, path):
        left, space, right = merge.partition(" ")
        if not space:
            raise _damaged(path, f"the merge {merge[:40]!r} has no second part")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=name in _LLAMA3_NAMES))
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _cutter(patterns)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _cutter(patterns: tuple[str, ...]) -> PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    steps: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str], types: list[int], vocabulary: dict[str, int], path: Path
) -> Tokenizer:
    """SentencePiece merges the pair whose union has the best score, so the scores are the merges' ranks."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = _list(metadata, "scores", float, path)
    if len(scores) != len(tokens):
        raise _damaged(path, f"it has {len(scores)} scores for {len(tokens)} tokens")
    special = (_UNKNOWN, _CONTROL, _BYTE, _UNUSED)
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, role, score in zip(tokens, types, scores, strict=True):
        # The cuts of a piece cost its length squared; the longest of a real vocabulary has 16 to 64 letters.
        if role in special or not 1 < len(token) <= 256:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-score, vocabulary[left], vocabulary[right], left, right))
    ranked.sort()
    unknown = next((token for token, role in zip(tokens, types, strict=True) if role == _UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for *_, left, right in ranked],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = [normalizers.Replace(" ", "▁")]
    ends = []
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("▁"))  # type: ignore[arg-type]
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    return tokenizer


def _prefix(tokenizer: Tokenizer, token: str, index: int) -> None:
    from tokenizers import processors

    # The templates use a name of their own for the token, since its text could be read as template syntax.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="BOS $A",
        pair="BOS $A BOS:1 $B:1",
        special_tokens=[{"id": "BOS", "ids": [index], "tokens": [token]}],
    )


def _list(metadata: Mapping[str, Any], key: str, kind: type, path: Path) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    # The arrays of a GGUF file are of one type, so the first item speaks for all.
    if not isinstance(value, list) or (value and not isinstance(value[0], kind)):
        raise _damaged(path, f"tokenizer.ggml.{key} is missing or of the wrong type")
    return value


def _damaged(path: Path, why: str) -> IntegrityError:
    return IntegrityError(f"{path} is a damaged GGUF file ({why}); fetch it again.")
