"""`glmserve score`: a model's logits for a list of token ids, to compare a converted checkpoint with its source."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from glmserve.api import CheckpointError, ConfigError, SourceError

if TYPE_CHECKING:
    import torch

    from glmserve.api import Checkpoint, Model, ModelFamily, Quantization
    from glmserve.plugins import Plugins

CHUNK = 256
PAGE_TOKENS = 32


@click.command("score")
@click.option("--model", "path", required=True, type=click.Path(path_type=Path), help="Directory, or a .gguf file.")
@click.option("--ids", "ids_path", required=True, type=click.Path(path_type=Path), help="JSON list of token ids.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File to write, in safetensors format.")
def score_command(path: Path, ids_path: Path, out: Path) -> None:
    """Write a model's logits for a list of token ids.

    The file holds one float32 tensor, `logits` [positions, vocabulary]: row i is what the model expects after id i.
    """
    from glmserve.plugins import load_plugins
    from glmserve.store.checkpoint import open_checkpoint

    ids = read_ids(ids_path)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the directory {out.parent} does not exist; make it first.")
    checkpoint = open_checkpoint(path)
    family, quantization = providers(checkpoint, load_plugins())
    info = family.describe(checkpoint.config, "float32")
    beyond = next((i for i in ids if i >= info.vocab_size), None)
    if beyond is not None:
        raise ConfigError(f"{ids_path}: id {beyond} is not below the model's vocabulary of {info.vocab_size}.")
    if len(ids) > info.max_context:
        raise ConfigError(f"{ids_path} has {len(ids)} ids, but the model was made for {info.max_context}; cut it.")
    write_logits(out, score(family.load(checkpoint, quantization, info), ids))


def read_ids(path: Path) -> list[int]:
    """The ids in a file. Raises ConfigError when it is not a JSON list of one or more integers from 0."""
    try:
        ids = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--ids {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not JSON; give a list of token ids such as [1, 2, 3].") from None
    if not isinstance(ids, list) or not ids:
        raise ConfigError(f"{path} must hold a list of one or more token ids such as [1, 2, 3].")
    for at, value in enumerate(ids):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{path}: entry {at} is {json.dumps(value)[:40]}, not a token id.")
    return ids


def providers(checkpoint: Checkpoint, plugins: Plugins) -> tuple[ModelFamily, Quantization]:
    """The installed family and quantization that fit. Raises CheckpointError when not exactly one does."""
    families, quantizations = plugins.families_of(checkpoint), plugins.quantizations_of(checkpoint)
    for what, found in (("model family", families), ("quantization", quantizations)):
        if len(found) != 1:
            names = " and ".join(found) or "none"
            raise CheckpointError(f"{checkpoint.path} needs one {what} that reads it; of the installed, {names} does.")
    return plugins.family(families[0])(), plugins.quantization(quantizations[0])()


def score(model: Model, ids: Sequence[int]) -> torch.Tensor:
    """float32 [len(ids), vocabulary], by the runner, pages and chunks that serve requests."""
    import torch

    from glmserve.engine.kv import PageMemory
    from glmserve.engine.plan import Rows, StepPlan
    from glmserve.engine.runner import Runner

    pages = range(-(-len(ids) // PAGE_TOKENS))
    runner = Runner(model, PageMemory(model.info, len(pages), PAGE_TOKENS))
    logits = torch.empty(len(ids), model.info.vocab_size)
    for step, start in enumerate(range(0, len(ids), CHUNK)):
        tokens = tuple(ids[start : start + CHUNK])
        rows = Rows(0, start, tokens, 0, tuple(pages), logits=len(tokens), chunk=True)
        logits[start : start + len(tokens)] = runner.execute(StepPlan(step, (rows,)))[0].logits
    return logits


def write_logits(path: Path, logits: torch.Tensor) -> None:
    """Write all of the file or none. Raises SourceError when it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        save_file({"logits": logits}, partial)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SourceError(f"{path} cannot be written: {reason}.") from None
    finally:
        partial.unlink(missing_ok=True)
