"""`glmserve score` writes the logits that transformers computes, or says in a sentence why not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from glmserve.cli.main import main
from safetensors.torch import load_file

from .paged import VOCABULARY, write_random


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("model")
    return directory, write_random(directory)


def run(model: Path, ids: Path, out: Path) -> Result:
    return CliRunner().invoke(main, ["score", "--model", str(model), "--ids", str(ids), "--out", str(out)])


@pytest.mark.parametrize("count", [1, 40, 300, 512])
def test_the_logits_of_every_position_are_those_of_transformers(
    model: tuple[Path, Any], tmp_path: Path, count: int
) -> None:
    directory, reference = model
    ids = torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(count))
    (tmp_path / "ids.json").write_text(json.dumps(ids.tolist()))
    (tmp_path / "out.safetensors").write_text("of an earlier run")
    result = run(directory, tmp_path / "ids.json", tmp_path / "out.safetensors")
    assert (result.exit_code, result.output) == (0, "")
    written = load_file(tmp_path / "out.safetensors")
    assert list(written) == ["logits"]
    assert (written["logits"].dtype, written["logits"].shape) == (torch.float32, (count, VOCABULARY))
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0]
    assert (written["logits"] - expected).abs().max() < 1e-4
    assert {p.name for p in tmp_path.iterdir()} == {"ids.json", "out.safetensors"}


def test_a_gguf_file_is_scored_as_well(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text("[1, 2, 3]")
    result = run(smollm2, tmp_path / "ids.json", tmp_path / "out.safetensors")
    assert result.exit_code == 0, result.output
    assert load_file(tmp_path / "out.safetensors")["logits"].shape == (3, 49152)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON"),
        ("[1, 2", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\udcff", "is not JSON"),
        ("{}", "must hold a list"),
        ("7", "must hold a list"),
        ("[]", "must hold a list of one or more"),
        ('[1, "2"]', 'entry 1 is "2", not a token id'),
        ("[1.0]", "entry 0 is 1.0, not a token id"),
        ("[true]", "entry 0 is true, not a token id"),
        ("[3, null]", "entry 1 is null, not a token id"),
        ("[3, -1]", "entry 1 is -1, not a token id"),
        ("[[1]]", "entry 0 is [1], not a token id"),
        ("[0, 97]", "id 97 is not below the model's vocabulary of 97"),
        ("[1" + "0" * 5000 + "]", "JSON"),
        ("[123456789012345678901234567890]", "is not below the model's vocabulary"),
        (json.dumps([1] * 513), "has 513 ids, but the model was made for 512"),
    ],
)
def test_ids_that_cannot_be_scored_are_refused_in_a_sentence(
    model: tuple[Path, Any], tmp_path: Path, content: str, words: str
) -> None:
    (tmp_path / "ids.json").write_bytes(content.encode(errors="surrogateescape"))
    result = run(model[0], tmp_path / "ids.json", tmp_path / "out.safetensors")
    assert result.exit_code == 2
    assert words in result.output
    assert result.output.startswith("glmserve: ")
    assert result.output.count("\n") == 1
    assert not (tmp_path / "out.safetensors").exists()


def test_what_cannot_be_read_or_written_is_refused_in_a_sentence(model: tuple[Path, Any], tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    absent = run(model[0], ids, tmp_path / "out.safetensors")
    assert (absent.exit_code, "cannot be read: No such file" in absent.output) == (2, True)
    ids.write_text("[1]")
    nowhere = run(model[0], ids, tmp_path / "no" / "out.safetensors")
    assert (nowhere.exit_code, "does not exist; make it first" in nowhere.output) == (2, True)
    (tmp_path / "folder").mkdir()
    folder = run(model[0], ids, tmp_path / "folder")
    assert (folder.exit_code, "cannot be written: Is a directory" in folder.output) == (3, True)
    no_model = run(tmp_path / "none", ids, tmp_path / "out.safetensors")
    assert (no_model.exit_code, "does not exist" in no_model.output) == (3, True)
    assert {p.name for p in tmp_path.iterdir()} == {"ids.json", "folder"}


def test_a_model_of_no_installed_family_is_refused(tmp_path: Path) -> None:
    write_random(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["OtherForCausalLM"]}))
    (tmp_path / "ids.json").write_text("[1]")
    result = run(tmp_path, tmp_path / "ids.json", tmp_path / "out.safetensors")
    assert (result.exit_code, "No installed model family runs OtherForCausalLM" in result.output) == (3, True)
