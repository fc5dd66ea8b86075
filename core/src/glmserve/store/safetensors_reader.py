"""A directory with config.json and safetensors files, one or sharded, as a checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmserve.api import Checkpoint, CheckpointError, IntegrityError, TensorInfo

from .fingerprint import fingerprint

if TYPE_CHECKING:
    import torch

_SIZES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsCheckpoint(Checkpoint):
    """An opened safetensors directory. See `Checkpoint` for the contract."""

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        """Read configuration and headers. Raises CheckpointError (does not fit) or IntegrityError (damaged)."""
        self.path = path
        self.config = read_json(path / "config.json")
        self._where: dict[str, Path] = {}
        self._sizes: dict[Path, int] = {}
        self._opened: dict[Path, Any] = {}
        tensors: dict[str, TensorInfo] = {}
        index = None if (path / SINGLE).is_file() else _read_index(path)
        files = [_single(path)] if index is None else sorted({path / file for file in index.values()})
        for file in files:
            header, self._sizes[file] = read_header(file)
            for info in header:
                if info.name in self._where:
                    raise IntegrityError(
                        f"The tensor {info.name!r} is in both {self._where[info.name].name} and {file.name} of {path}; "
                        "fetch the checkpoint again."
                    )
                self._where[info.name] = file
                if index is None or info.name in index:
                    tensors[info.name] = info
        for name, shard in (index or {}).items():
            if self._where.get(name) != path / shard:
                raise IntegrityError(f"{path / INDEX} says that {shard} holds {name!r}, but it does not.")
        self.tensors = tensors
        self.fingerprint = fingerprint(self.format, self.config, tensors, [path / "config.json", *files])

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> torch.Tensor:
        self.require_part(name, rows, columns)
        file = self._where[name]
        if file.stat().st_size < self._sizes[file]:
            raise IntegrityError(f"{file} has become shorter than its header says; fetch it again.")
        from safetensors import SafetensorError, safe_open

        try:
            if file not in self._opened:
                self._opened[file] = safe_open(file, framework="pt")
            if rows is None and columns is None:
                tensor: torch.Tensor = self._opened[file].get_tensor(name)
            else:
                tensor = self._opened[file].get_slice(name)[_slice(rows), _slice(columns)]
        except (SafetensorError, OSError) as error:
            raise IntegrityError(f"{file} is damaged at tensor {name!r} ({error}); fetch it again.") from None
        return tensor

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        self.require_rows(name, rows)
        # The tensor is a memory map: indexing touches the pages of these rows only.
        return self.read(name)[rows]


def _slice(part: range | None) -> slice:
    return slice(None) if part is None else slice(part.start, part.stop)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CheckpointError when it is missing, IntegrityError when it is not an object."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None
    return parse_json(str(path), raw)


def parse_json(where: str, raw: bytes) -> dict[str, Any]:
    """A JSON object. Raises IntegrityError naming `where` when it is not one."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where} is not valid JSON ({str(error)[:120]}); fetch it again.") from None
    if not isinstance(value, dict):
        raise IntegrityError(f"{where} is not a JSON object; fetch it again.")
    return value


def read_header(path: Path) -> tuple[list[TensorInfo], int]:
    """The tensors of one safetensors file, and the file's size in bytes by its header.

    Raises IntegrityError when the header is damaged or does not fit the file, CheckpointError when the file is missing.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = header_length(str(path), file.read(8), size)
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None
    return parse_header(str(path), raw, size), size


def header_length(where: str, first: bytes, size: int) -> int:
    """Bytes of the header that follows the `first` eight of a file of `size`. Raises IntegrityError naming `where`."""
    length = int.from_bytes(first[:8], "little")
    if size < 8 or len(first) < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
        raise _damaged(where, f"its header claims {length} bytes and the file has {size}")
    return length


def parse_header(where: str, raw: bytes, size: int) -> list[TensorInfo]:
    """The tensors that a header `raw` lists, of a file of `size` bytes. Raises IntegrityError naming `where`."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        items = dict(pairs)
        if len(items) != len(pairs):
            raise ValueError("a name is there twice")
        return items

    try:
        header = json.loads(raw, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"its header is not valid JSON: {str(error)[:120]}") from None
    if not isinstance(header, dict):
        raise _damaged(where, "its header is not a JSON object")
    header.pop("__metadata__", None)
    spans = []
    for name, entry in header.items():
        try:
            spans.append(_entry(name, entry))
        except (KeyError, TypeError, ValueError):
            raise _damaged(where, f"the entry of tensor {name[:80]!r} is malformed") from None
    end = _check_spans(where, spans)
    room = size - 8 - len(raw)
    if end != room:
        raise _damaged(where, f"its tensors take {end} bytes and the file has {room} for them")
    return [info for info, _ in spans]


def _damaged(where: str, why: str) -> IntegrityError:
    return IntegrityError(f"{where} is a damaged safetensors file ({why}); fetch it again.")


def _entry(name: str, entry: Any) -> tuple[TensorInfo, int]:
    """One header entry as (tensor, begin). Raises ValueError, TypeError or KeyError when malformed."""
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = [*shape, begin, end]
    if dtype not in _SIZES or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers) or len(shape) > 32:
        raise ValueError
    if math.prod(shape) * _SIZES[dtype] != end - begin:
        raise ValueError
    return TensorInfo(name, tuple(shape), dtype, end - begin), begin


def _check_spans(where: str, spans: Iterable[tuple[TensorInfo, int]]) -> int:
    end = 0
    for info, begin in sorted(spans, key=lambda span: (span[1], span[0].nbytes)):
        if begin != end:
            raise _damaged(where, f"tensor {info.name[:80]!r} overlaps or leaves a gap")
        end = begin + info.nbytes
    return end


def _single(path: Path) -> Path:
    if (path / SINGLE).is_file():
        return path / SINGLE
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} safetensors files but no {INDEX}" if found else "a config.json but no safetensors file"
    raise CheckpointError(f"{path} holds {what}, so its weights cannot be found; fetch the checkpoint again.")


def _read_index(path: Path) -> dict[str, str] | None:
    """Tensor name -> shard's file name, or None without an index. A shard that is missing raises CheckpointError."""
    if not (path / INDEX).is_file():
        return None
    weight_map = shards_of(str(path / INDEX), read_json(path / INDEX))
    missing = sorted({s for s in weight_map.values() if not (path / s).is_file()})
    if missing:
        raise CheckpointError(f"{path} lacks {len(missing)} shard(s), first {missing[0]}; fetch the checkpoint again.")
    return weight_map


def shards_of(where: str, index: dict[str, Any]) -> dict[str, str]:
    """Tensor name -> shard's file name, of an index at `where`. Raises IntegrityError for one that is malformed."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise IntegrityError(f"{where} has no weight_map; fetch it again.")
    for shard in weight_map.values():
        # A plain name only: an index must not reach outside its directory.
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or "/" in shard or "\\" in shard:
            raise IntegrityError(f"{where} names {str(shard)[:80]!r}, which is not a safetensors file beside it.")
    return weight_map
