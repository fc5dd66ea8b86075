"""What is known of a model without its files: its configuration and how wide its weights are stored.

Facts stand in for headers that cannot be read yet, so that a plan is there before anything is downloaded. They ship as
JSON beside this module, or a profile names a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glmserve.api import ConfigError
from glmserve.nearest import nearest

SHIPPED = Path(__file__).parent / "facts"
PLAIN = 16
"""Bits of a weight that is not quantized: bfloat16."""


class Widths(BaseModel):
    """Bits a weight, without scales, of the layers that EXL3 quantizes; 16 leaves a layer in bfloat16."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    linears: float = Field(gt=0, le=PLAIN, description="Attention but kv_b_proj, dense MLP, shared experts, wq_b.")
    experts: float = Field(gt=0, le=PLAIN, description="Routed experts, on average.")
    next_token_experts: float = Field(gt=0, le=PLAIN, description="Routed experts of the next-token layers.")
    head: float = Field(gt=0, le=PLAIN, description="The head.")


class Facts(BaseModel):
    """One file of facts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    about: str = Field(description="One sentence: what this is.")
    notes: tuple[str, ...] = Field((), strict=False, description="Where the facts come from, and how sure they are.")
    config: dict[str, Any] = Field(description="As in the model's config.json.")
    widths: Widths | None = Field(None, description="For EXL3 alone: its configuration gives an average only.")


def load_facts(name_or_file: str, directory: Path) -> Facts:
    """Shipped facts by name, or a file (its name ends in .json) relative to `directory`. Raises ConfigError."""
    shipped = {path.stem: path for path in sorted(SHIPPED.glob("*.json"))}
    own = directory / Path(name_or_file).expanduser()
    path = own if name_or_file.endswith(".json") else shipped.get(name_or_file)
    if path is None:
        raise ConfigError(
            f"There are no facts {name_or_file!r}{nearest(name_or_file, shipped)}; a file's path, ending in .json, "
            "works too."
        )
    try:
        return Facts.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The facts {path} cannot be read: {error.strerror or error}.") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        at = ".".join(map(str, fault["loc"])) or "the file"
        raise ConfigError(f"The facts {path} do not fit: {at}: {fault['msg'][:1].lower()}{fault['msg'][1:]}.") from None
