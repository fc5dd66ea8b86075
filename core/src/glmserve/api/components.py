"""What a part is, who made it, where it comes from and under which licence: the manifest that an audit reads.

A manifest states facts. What a licence permits is never read from here: it comes from the reviewed catalogue in
the distribution glmserve-licenses, so that no plugin can grant itself a permission.
"""

from __future__ import annotations

import tomllib
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from .errors import ConfigError

SCHEMA: Final = "glmserve.component/1"
MAX_MANIFEST_BYTES = 1 << 20

ComponentKind = Literal[
    "code", "weights", "drafter", "tokenizer", "template", "dataset", "native-lib", "image-base", "cache", "docs"
]
Delivery = Literal["bundled", "fetch", "user-supplied"]
"""bundled: the bytes come with the distribution; fetch: the user's machine fetches them from the publisher;
user-supplied: the user put them there."""
Relation = Literal[
    "verbatim",
    "reshard",
    "format",
    "quantize",
    "finetune",
    "merge",
    "prune",
    "pad",
    "config-edit",
    "distill",
    "vendored",
    "snippet",
]
"""How a component was made from its ancestor. verbatim keeps it unmodified; reshard and format are lossless; distill
adds notices and gates only; everything else is a modification."""


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not path or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise ValueError(f"{path!r} leaves the component's own directory")
    return path


RelativePath = Annotated[str, AfterValidator(_inside)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ComponentId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Origin(_Part):
    """Where the publisher keeps it."""

    type: Literal["hf", "wheel", "git", "oci", "file"]
    url: str = ""
    revision: str = ""
    """The full 40-digit commit of hf and git, "sha256:..." of oci, the exact version of a wheel. What can move, such as
    a branch, is a finding of the audit and refused by a fetch."""
    publisher: str = ""


class TextFile(_Part):
    """A licence text that lies beside the component."""

    path: RelativePath
    sha256: Sha256 | None = None
    """Of the normalised text (`glmserve.licensing.texts`); None while no person has confirmed it."""


class LicenseDeclaration(_Part):
    expression: str = ""
    """As its publisher declares it: an SPDX expression, or "" when there is none. Judged by the audit, not here."""
    declared_at: str = ""
    """The URL or file that says so."""
    texts: tuple[TextFile, ...] = Field((), strict=False)
    choice: str = ""
    """Of an OR: the branch that is taken."""


class Attribution(_Part):
    copyright: tuple[str, ...] = Field((), strict=False)
    """Copyright lines, word for word."""
    notice_files: tuple[RelativePath, ...] = Field((), strict=False)


class FileEntry(_Part):
    path: RelativePath
    sha256: Sha256
    size: Annotated[int, Field(ge=0)]
    """Bytes."""


class Ancestor(_Part):
    id: ComponentId
    relation: Relation


class ComponentPolicy(_Part):
    """The project's own decisions; they can only be stricter than the licence."""

    redistribute: Literal["as-licensed", "never"] = "as-licensed"
    accept_before_fetch: bool = False
    """The user has to have accepted the licence text before the files are fetched or loaded."""
    reason: str = ""


class Manifest(_Part):
    """One component. `Manifest.id` is unique in a profile."""

    schema_: Literal["glmserve.component/1"] = Field(alias="schema")
    id: ComponentId
    name: Annotated[str, Field(min_length=1)]
    kind: ComponentKind
    version: str = ""
    delivery: Delivery
    origin: Origin | None = None
    license: LicenseDeclaration = LicenseDeclaration()
    attribution: Attribution = Attribution()
    files: tuple[FileEntry, ...] = Field((), strict=False)
    derived_from: tuple[Ancestor, ...] = Field((), strict=False)
    policy: ComponentPolicy = ComponentPolicy()
    to_confirm: tuple[str, ...] = Field((), strict=False)
    """What a person still has to check against the publisher's own files."""


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a TOML manifest. `where` names the file in errors.

    Raises ConfigError for text that is no TOML, keys that do not exist or appear twice, and values of a wrong type.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ConfigError(f"{where}: a component manifest has at most {MAX_MANIFEST_BYTES} bytes, not {len(data)}.")
    try:
        return Manifest.model_validate(tomllib.loads(data.decode("utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the manifest"
        raise ConfigError(f"{where}: {key}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: this is not a component manifest: {error}.") from None
