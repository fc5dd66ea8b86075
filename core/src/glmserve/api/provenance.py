"""Where derived files come from: the record that a conversion, a quantization, a training run or a cache leaves behind.

A file that was made from a component inherits its licence, under whatever name it lies. The record stands beside what
it speaks of and bears on everything in its directory and below; the audit and the bundle read it.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .components import ComponentId, Relation
from .errors import ConfigError, GlmserveError

SCHEMA = "glmserve.origin/1"
FILE_NAME = ".glmserve-origin.json"
MAX_ORIGIN_BYTES = 1 << 20


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SourceComponent(_Part):
    """A component that something was made from."""

    id: ComponentId
    relation: Relation
    revision: str = ""
    """Of the component, as its manifest states it."""
    license: str = ""
    """Its licence expression when the files were made."""


class Provenance(_Part):
    """What was made, from what, by which tool."""

    schema_: Literal["glmserve.origin/1"] = Field("glmserve.origin/1", alias="schema")
    tool: Annotated[str, Field(min_length=1)]
    """Its name and version, such as "glmserve 0.1.0 quantize"."""
    derived_from: tuple[SourceComponent, ...] = Field(min_length=1, strict=False)


def write_origin(directory: Path, provenance: Provenance) -> Path:
    """Leave the record in `directory`, in place of an earlier one, and return its path. Raises GlmserveError."""
    target = directory / FILE_NAME
    temporary = target.with_name(f"{FILE_NAME}.{secrets.token_hex(8)}.partial")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(provenance.model_dump_json(by_alias=True, indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise GlmserveError(f"{target} cannot be written: {error.strerror or error}.") from None
        raise
    return target


def read_origin(directory: Path) -> Provenance | None:
    """The record in `directory`, or None when there is none. Raises ConfigError for one that cannot be understood."""
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MAX_ORIGIN_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
    return parse_origin(data, str(path))


def parse_origin(data: bytes, where: str) -> Provenance:
    """Read a record. `where` names it in errors. Raises ConfigError."""
    if len(data) > MAX_ORIGIN_BYTES:
        raise ConfigError(f"{where}: a record of origin has at most {MAX_ORIGIN_BYTES} bytes.")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_distinct)
        return Provenance.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the record"
        raise ConfigError(f"{where}: {key}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: this is not a record of origin: {str(error)[:120]}.") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) != len(pairs):
        raise ValueError("a key is there twice")
    return items
