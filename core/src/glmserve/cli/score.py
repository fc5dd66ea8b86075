"""`glmserve score`: a model's logits for a list of token ids, to compare a converted checkpoint with its source."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from glmserve.api import ConfigError, SourceError

if TYPE_CHECKING:
    import torch

    from glmserve.engine.ranks import Ranks
    from glmserve.profiles import Profile

CHUNK = 256
"""Ids in one step, about."""
PAGE_ENTRIES = 32


@click.command("score")
@click.option("--model", "path", required=True, type=click.Path(path_type=Path), help="Directory, or a .gguf file.")
@click.option("--ids", "ids_path", required=True, type=click.Path(path_type=Path), help="JSON list of token ids.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File to write, in safetensors format.")
@click.option(
    "--ranks", type=click.IntRange(1, 8), default=1, show_default=True, help="Processes that share every layer."
)
@click.option(
    "--context", type=click.IntRange(1, 8), default=1, show_default=True, help="Of them, those that share the cache."
)
def score_command(path: Path, ids_path: Path, out: Path, ranks: int, context: int) -> None:
    """Write a model's logits for a list of token ids.

    The file holds one float32 tensor, `logits` [positions, vocabulary]: row i is what the model expects after id i.
    """
    from glmserve.joining import open_ranks
    from glmserve.plugins import load_plugins
    from glmserve.resolution import check_providers, chosen, resolve
    from glmserve.store.checkpoint import open_checkpoint

    ids = read_ids(ids_path)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the directory {out.parent} does not exist; make it first.")
    profile, plugins = profile_of(path, len(ids), ranks, context), load_plugins()
    checkpoint = open_checkpoint(path)
    check_providers(profile, plugins, chosen(profile))
    resolved = resolve(profile, plugins, checkpoint)
    info = resolved.info
    beyond = next((i for i in ids if i >= info.vocab_size), None)
    if beyond is not None:
        raise ConfigError(f"{ids_path}: id {beyond} is not below the model's vocabulary of {info.vocab_size}.")
    if len(ids) > info.max_context:
        raise ConfigError(f"{ids_path} has {len(ids)} ids, but the model was made for {info.max_context}; cut it.")
    opened = open_ranks(resolved)
    try:
        logits = score(opened.ranks, ids, profile.engine.prefill_chunk)
    finally:
        opened.ranks.close()
    write_logits(out, logits)


def profile_of(path: Path, tokens: int, ranks: int, context: int) -> Profile:
    """One that runs the model at `path` for `tokens` tokens, and nothing else."""
    from glmserve.profiles.schema import EngineSection, ModelSection, ParallelSection, Profile, TransportSection

    page = PAGE_ENTRIES * context
    chunk = max(1, CHUNK // page) * page
    return Profile(
        model=ModelSection(source=f"path:{path.absolute()}", served_name="score"),
        # How long a conversation may be is nothing here: there is none.
        engine=EngineSection(max_context=1, kv_tokens=tokens, page_tokens=page, prefill_chunk=chunk),
        parallel=ParallelSection(tensor=ranks, context=context),
        transport=TransportSection(hosts=("localhost",) * ranks),
    )


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


def score(ranks: Ranks, ids: Sequence[int], chunk: int) -> torch.Tensor:
    """float32 [len(ids), vocabulary], by the steps, pages and chunks that serve requests."""
    import torch

    from glmserve.engine.plan import Rows, StepPlan

    pages = tuple(range(-(-len(ids) // ranks.worker.memory.page_tokens)))
    found = []
    for step, start in enumerate(range(0, len(ids), chunk)):
        tokens = tuple(ids[start : start + chunk])
        # The page table is told whole with the first rows.
        first, new = (0, pages) if not start else (len(pages), ())
        rows = Rows(1, start, tokens, first, new, logits=len(tokens), chunk=True)
        found.append(ranks.execute(StepPlan(step, (rows,)))[0].logits)
    return torch.cat(found)


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
