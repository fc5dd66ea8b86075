"""Trains the tokenizer: a byte-level BPE with the added tokens of GLM-5.3, in its order and with its flags.

Its ids are the base tokens, then the 36 added ones, then, up to the rows of the head, padding that no text has.
Only the first 18 added tokens are special: tags such as <think> stay in decoded text, where a parser finds them.

`python -m recipe.tokenizer` writes tokenizer.json and tokenizer_config.json into the checkpoint.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import CHECKPOINT, Template, examples

BASE: Final = 964
SPECIAL: Final = (
    *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
    *("<|begin_of_audio|>", "<|end_of_audio|>", "<|begin_of_transcription|>", "<|end_of_transcription|>"),
)
PLAIN: Final = (
    *("<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"),
    *("<|begin_of_box|>", "<|end_of_box|>", "<|image|>", "<|video|>"),
)
ADDED: Final = (*SPECIAL, *PLAIN)
STOP_IDS: Final = [BASE + ADDED.index(token) for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]
"""What ends a turn; the first is also the padding."""
# Words with their leading space, single digits (so that sums can be learnt), symbols, line breaks, other space.
SPLIT: Final = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
SEED: Final = 1
DOCUMENTS: Final = 20_000


def train() -> Tokenizer:
    """Deterministic: the same corpus gives the same merges."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    template = Template()
    tags = re.compile("|".join(map(re.escape, ADDED)))
    documents = (template.whole(example) for example in islice(examples(SEED, False), DOCUMENTS))
    tokenizer.train_from_iterator((part for document in documents for part in tags.split(document) if part), trainer)
    if tokenizer.get_vocab_size() != BASE:
        raise SystemExit(f"The corpus gives {tokenizer.get_vocab_size()} tokens and not {BASE}; add text to it.")
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in PLAIN])
    return tokenizer


def write(directory: Path) -> Tokenizer:
    tokenizer = train()
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=True) + "\n", "utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
        "model_max_length": 1048576,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    return tokenizer


if __name__ == "__main__":
    print(write(CHECKPOINT).get_vocab_size(), "tokens")
