"""Tokenizers from GGUF metadata and from tokenizer.json, checked against llama.cpp's own results."""

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import gguf
import pytest
from glmserve.api import CheckpointError, GlmserveError, IntegrityError
from glmserve.store.generation import SamplingDefaults
from glmserve.store.tokenizer import TokenizerBundle, load_tokenizer
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors
from tokenizers.pre_tokenizers import ByteLevel

from .files import write_gguf

VECTORS = [tuple(pair) for pair in json.loads((Path(__file__).parent / "smollm2_tokens.json").read_text())]
"""(text, ids): what llama.cpp answers at /tokenize for this model, with special tokens parsed."""


@pytest.fixture(scope="module")
def bundle(smollm2: Path) -> TokenizerBundle:
    return load_tokenizer(smollm2)


def ids(bundle: TokenizerBundle, text: str) -> list[int]:
    result: list[int] = bundle.tokenizer.encode(text, add_special_tokens=False).ids
    return result


def test_smollm2_says_what_it_is(bundle: TokenizerBundle) -> None:
    assert (bundle.bos_token, bundle.eos_token, bundle.eos_ids) == ("<|im_start|>", "<|im_end|>", (2,))
    assert not bundle.add_bos
    assert bundle.chat_template is not None
    assert "<|im_start|>" in bundle.chat_template
    assert ids(bundle, "<|im_start|>") == [1]
    assert bundle.tokenizer.decode([1, 28120, 2], skip_special_tokens=True) == "hello"


def test_smollm2_is_cut_as_llama_cpp_does(bundle: TokenizerBundle) -> None:
    wrong = [text for text, expected in VECTORS if ids(bundle, text) != expected]
    assert wrong == []


@settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(text=st.text(max_size=60))
def test_smollm2_decodes_what_it_encoded(bundle: TokenizerBundle, text: str) -> None:
    # The vocabulary lacks 21 bytes that hardly any text uses (control characters); llama.cpp drops them too.
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assume(all(bundle.tokenizer.token_to_id(letter) is not None for piece, _ in pieces for letter in piece))
    assert bundle.tokenizer.decode(ids(bundle, text), skip_special_tokens=False) == text


BYTES = sorted(ByteLevel.alphabet())


def byte_level(pre: str, **changes: object) -> Callable[[gguf.GGUFWriter], None]:
    """Metadata of a byte-level tokenizer that knows every byte, a few merges and two special tokens."""
    parts = {
        "tokens": [*BYTES, "12", "123", "34", "Ġa", "ab", "<s>", "<|eot_id|>", "[TOOL]"],
        "types": [*[1] * (len(BYTES) + 5), 3, 3, 4],
        "merges": ["1 2", "12 3", "3 4", "Ġ a", "a b"],
        "bos": len(BYTES) + 5,
        **changes,
    }

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(parts["tokens"])
        writer.add_token_types(parts["types"])
        writer.add_token_merges(parts["merges"])
        writer.add_bos_token_id(parts["bos"])
        writer.add_eos_token_id(parts["bos"])

    return write


def made(tmp_path: Path, change: Callable[[gguf.GGUFWriter], None]) -> TokenizerBundle:
    write_gguf(tmp_path / "m.gguf", change=change)
    return load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["1", "2", "3", "4", "Ġa", "!", "[TOOL]"]),
        ("qwen2", ["1", "2", "3", "4", "Ġa", "!", "[TOOL]"]),
        ("gpt-2", ["123", "4", "Ġa", "!", "[TOOL]"]),
        ("llama-bpe", ["123", "4", "Ġa", "!", "[TOOL]"]),
        ("default", ["123", "4", "Ġa", "!", "[TOOL]"]),
    ],
)
def test_pre_tokenizers_cut_digits_their_own_way(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    bundle = made(tmp_path, byte_level(pre))
    assert bundle.tokenizer.encode("1234 a![TOOL]", add_special_tokens=False).tokens == pieces
    assert bundle.add_bos == (pre == "llama-bpe")
    assert bundle.tokenizer.encode("ab").tokens == (["<s>", "ab"] if pre == "llama-bpe" else ["ab"])
    assert bundle.eos_ids == (len(BYTES) + 5, len(BYTES) + 6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (byte_level("gpt5-turbo"), "pre-tokenizer 'gpt5-turbo'"),
        (byte_level("gpt-2", types=[1]), "token types"),
        (byte_level("gpt-2", tokens=["a", "a"], types=[1, 1]), "repeats a token"),
        (byte_level("gpt-2", merges=["ab"]), "no second part"),
        (byte_level("gpt-2", merges=["zz qq"]), "cannot be built"),
        (byte_level("gpt-2", bos=5000), "bos token is 5000"),
        (lambda writer: writer.add_tokenizer_model("gpt2"), "tokens is missing"),
    ],
)
def test_metadata_that_do_not_fit_are_named(
    tmp_path: Path, change: Callable[[gguf.GGUFWriter], None], sentence: str
) -> None:
    with pytest.raises(GlmserveError, match=sentence):
        made(tmp_path, change)


def test_another_kind_of_tokenizer_is_named(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("bert")
        writer.add_token_list(["a"])

    with pytest.raises(CheckpointError, match="'bert'"):
        made(tmp_path, change)


PIECES = ["▁", "a", "b", "c", "▁a", "ab", "bc", "▁ab", "abc", "▁abc", "ca", "▁▁", "cab", "bb"]


def sentencepiece(writer: gguf.GGUFWriter) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *PIECES]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(PIECES)])
    writer.add_token_scores([0.0] * 259 + [-float(rank) for rank in range(len(PIECES))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def greedy(text: str) -> list[str]:
    """SentencePiece's rule, written plainly: merge the neighbours whose union has the best score, leftmost first."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(PIECES.index(a + b), i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in PIECES]
        if not pairs:
            return symbols
        at = min(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def test_sentencepiece_merges_by_score(tmp_path: Path) -> None:
    bundle = made(tmp_path, sentencepiece)
    choose = random.Random(2)
    for _ in range(200):
        text = "".join(choose.choices("abc ", k=choose.randint(1, 12)))
        assert bundle.tokenizer.encode(text, add_special_tokens=False).tokens == greedy(text)


def test_sentencepiece_falls_back_to_bytes_and_starts_with_bos(tmp_path: Path) -> None:
    bundle = made(tmp_path, sentencepiece)
    assert bundle.add_bos
    encoded = bundle.tokenizer.encode("abc é🙂")
    assert encoded.tokens[:3] == ["<s>", "▁abc", "▁"]
    assert "<0xC3>" in encoded.tokens
    assert bundle.tokenizer.decode(encoded.ids) == "abc é🙂"
    assert (bundle.bos_token, bundle.eos_token, bundle.eos_ids) == ("<s>", "</s>", (2,))


def write_files(folder: Path, **changes: str) -> Path:
    """A directory with config.json and a small tokenizer.json whose encoding starts with <s>."""
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "<end>": 3, "?": 4}, unk_token="?"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "from settings"}
    files = {
        "config.json": '{"eos_token_id": 1}',
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(settings),
        "generation_config.json": '{"eos_token_id": [1, 3]}',
    }
    for name, content in (files | changes).items():
        (folder / name).write_text(content)
    return folder


def test_files_of_hugging_face(tmp_path: Path) -> None:
    bundle = load_tokenizer(write_files(tmp_path))
    assert (bundle.bos_token, bundle.eos_token, bundle.eos_ids) == ("<s>", "</s>", (1, 3))
    assert bundle.add_bos
    assert bundle.chat_template == "from settings"
    assert bundle.tokenizer.encode("a").ids == [0, 2]


def test_pitfall_31_the_ends_of_a_reply_are_all_those_that_generation_config_names(tmp_path: Path) -> None:
    """GLM's are three: the end of the text, and the tokens that begin a turn of the user and of a tool."""
    ends = '{"eos_token_id": [1, 3, 4], "pad_token_id": 0}'
    assert load_tokenizer(write_files(tmp_path, **{"generation_config.json": ends})).eos_ids == (1, 3, 4)
    config = {"config.json": "{}", "tokenizer_config.json": "{}", "generation_config.json": ends}
    assert load_tokenizer(write_files(tmp_path, **config)).eos_ids == (1, 3, 4)


def test_sampling_is_by_default_what_the_models_authors_recommend(tmp_path: Path) -> None:
    assert load_tokenizer(write_files(tmp_path)).sampling == SamplingDefaults()
    own = '{"temperature": 1.0, "top_p": 0.95, "top_k": null, "do_sample": true}'
    assert load_tokenizer(write_files(tmp_path, **{"generation_config.json": own})).sampling.top_p == 0.95


@pytest.mark.parametrize(
    "wrong", ['{"temperature": -1}', '{"top_p": 0}', '{"top_k": 2.5}', '{"min_p": true}', '{"top_p": "0.9"}']
)
def test_a_recommendation_that_no_request_may_have_is_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(IntegrityError, match=r"generation_config\.json has a (temperature|top_p|top_k|min_p) of"):
        load_tokenizer(write_files(tmp_path, **{"generation_config.json": wrong}))


def test_pitfall_30_tokens_are_counted_to_the_last_one(tmp_path: Path) -> None:
    """Added tokens count, and so do gaps between ids; what lies beyond only pads the model."""
    assert load_tokenizer(write_files(tmp_path)).num_tokens == 5
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "?": 2}, unk_token="?"))
    tokenizer.add_tokens(["<think>", "</think>"])
    assert load_tokenizer(write_files(tmp_path, **{"tokenizer.json": tokenizer.to_str()})).num_tokens == 5
    gap = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "?": 9}, unk_token="?"))
    assert load_tokenizer(write_files(tmp_path, **{"tokenizer.json": gap.to_str()})).num_tokens == 10


def test_pitfall_30_unused_tokens_at_the_end_of_a_gguf_vocabulary_are_padding(tmp_path: Path) -> None:
    padded = ["[UNUSED]", *BYTES, "ab", "[PAD258]", "[PAD259]"]
    types = [5, *[1] * (len(BYTES) + 1), 5, 5]
    bundle = made(tmp_path, byte_level("gpt-2", tokens=padded, types=types, merges=["a b"], bos=1))
    assert bundle.num_tokens == 2 + len(BYTES)


def test_a_template_file_goes_before_the_settings(tmp_path: Path) -> None:
    assert load_tokenizer(write_files(tmp_path, **{"chat_template.jinja": "from file"})).chat_template == "from file"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    changed = json.dumps({"chat_template": named})
    bundle = load_tokenizer(write_files(tmp_path, **{"tokenizer_config.json": changed}))
    assert (bundle.chat_template, bundle.bos_token, bundle.add_bos) == ("d", None, False)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokenizer.json": "{}"}, "usable tokenizer"),
        ({"tokenizer_config.json": "nonsense"}, "not valid JSON"),
        ({"tokenizer_config.json": '{"bos_token": 7}'}, "bos_token"),
        ({"generation_config.json": '{"eos_token_id": ["x"]}'}, "eos_token_id"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(IntegrityError, match=sentence):
        load_tokenizer(write_files(tmp_path, **changes))


def test_a_missing_tokenizer_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
