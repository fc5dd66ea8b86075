"""A name for all that changes an output: the key of every cache of converted weights, tokenizers and pages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glmserve.api import TensorInfo


def fingerprint(
    format_name: str, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], files: Iterable[Path]
) -> str:
    """sha256 hex over configuration, tensor headers, and the name, size and modification time (ns) of every file.

    Reading the files whole would cost minutes for a large model; whoever changes weights in place and restores the
    file's size and time gets the caches of the old ones.
    """
    stats = [(path.name, path.stat()) for path in files]
    record = {
        "format": format_name,
        "config": config,
        "tensors": [[t.name, t.shape, t.dtype, t.nbytes] for t in sorted(tensors.values(), key=lambda t: t.name)],
        "files": sorted([name, stat.st_size, stat.st_mtime_ns] for name, stat in stats),
    }
    return hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode()).hexdigest()
