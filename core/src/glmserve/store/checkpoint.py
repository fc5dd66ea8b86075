"""Opening a checkpoint, whatever its format."""

from __future__ import annotations

from pathlib import Path

from glmserve.api import Checkpoint, CheckpointError

from .gguf_reader import GgufCheckpoint
from .safetensors_reader import SafetensorsCheckpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a `.gguf` file, a directory that holds exactly one, or one with config.json and safetensors.

    Reads headers only. Raises CheckpointError when there is nothing to open or it is not supported, IntegrityError
    when a file is damaged.
    """
    gguf = find_gguf(path)
    return SafetensorsCheckpoint(path) if gguf is None else GgufCheckpoint(gguf)


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that `path` is or holds; None for a safetensors directory. Raises CheckpointError otherwise."""
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        raise CheckpointError(
            f"{path} is not a checkpoint: give a .gguf file, or the directory that holds config.json."
        )
    if not path.is_dir():
        raise CheckpointError(f"{path} does not exist; fetch the model first with `glmserve pull`.")
    if (path / "config.json").is_file():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(f"{path} holds {len(found)} GGUF files; give the path of the one to open.")
    raise CheckpointError(f"{path} holds neither a config.json nor a .gguf file, so there is no model to open.")
