"""What must be the same on all ranks before they may compute one model together."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from glmserve.plugins import PROJECT, owner_of

if TYPE_CHECKING:
    from glmserve.api import Checkpoint
    from glmserve.resolution import Resolved

SETTINGS = ("engine", "parallel", "drafter", "cache", "transport")
"""Sections of the profile that every rank goes by."""
SAMPLES = 64
"""Matrices of which a row is looked at; vectors are looked at whole."""


def identity(resolved: Resolved) -> dict[str, str]:
    """What is compared -> its value here. Arithmetic that every rank repeats must come to the same bits, so it holds
    the processor's instructions and the number of threads as well."""
    plugins = {record.distribution: record.version for record in resolved.plugins.describe()}
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in resolved.profile.plugin_files}
    return {
        "version of glmserve": owner_of(PROJECT).version,
        "version of Python": ".".join(platform.python_version_tuple()[:2]),
        "version of torch": torch.__version__,
        "processor's instructions": torch.backends.cpu.get_cpu_capability(),
        "number of threads": str(torch.get_num_threads()),
        **{f"plugin {name}": version for name, version in plugins.items() if name != PROJECT and version != "file"},
        **{f"plugin file {name}": digest for name, digest in files.items()},
        **{f"provider of {kind}": name for kind, name in resolved.names.items()},
        **dict(_settings(resolved.profile.model_dump(mode="json"))),
        "checkpoint": checkpoint_digest(resolved.checkpoint),
    }


def _settings(profile: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section in SETTINGS:
        for key, value in profile[section].items():
            yield f"{section}.{key}", json.dumps(value, sort_keys=True)
    yield "model.options", json.dumps(profile["model"]["options"], sort_keys=True)


def checkpoint_digest(checkpoint: Checkpoint) -> str:
    """sha256 hex over the configuration, the headers, every vector, and a row of some of the matrices.

    To read a large model whole would take longer than to load it; another model of the same shapes has other vectors.
    """
    headers = sorted((t.name, t.shape, t.dtype, t.nbytes) for t in checkpoint.tensors.values())
    digest = hashlib.sha256(json.dumps([checkpoint.config, headers], sort_keys=True, default=str).encode())
    matrices = [name for name, shape, _, _ in headers if len(shape) == 2]
    for name, shape, _, _ in headers:
        if len(shape) == 1:
            _add(digest, checkpoint.read(name))
    for name in matrices[:: max(1, len(matrices) // SAMPLES)]:
        _add(digest, checkpoint.read_rows(name, torch.tensor([0])))
    return digest.hexdigest()


def _add(digest: Any, tensor: torch.Tensor) -> None:
    digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())


def first_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """In words, or None: what `theirs` has otherwise."""
    for what in sorted({*ours, *theirs}):
        if ours.get(what) != theirs.get(what):
            return f"its {what} is {theirs.get(what, 'not there')}, and rank 0's is {ours.get(what, 'not there')}"
    return None
