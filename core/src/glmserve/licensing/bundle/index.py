"""glmserve-bundle.json: what a bundle is for, what it holds and what it leaves to be fetched.

It has no time and no path of the machine that made it. One field is a digest of all the others, so that the file
which vouches for every other one is vouched for as well: against damage and slips, not against a forger.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glmserve.api.components import ComponentId, ComponentKind, RelativePath, Sha256
from glmserve.api.errors import IntegrityError

from ..report import Use, Verdict

SCHEMA = "glmserve.bundle/1"
FILE_NAME = "glmserve-bundle.json"
MAX_INDEX_BYTES = 256 << 20

Mode = Literal["strict", "stub"]
Slug = Annotated[str, Field(pattern=f"^({'|'.join(verdict.slug for verdict in Verdict)})$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class BundledComponent(_Part):
    id: ComponentId
    kind: ComponentKind
    declared: str
    """Licence expression."""
    concluded: str
    verdict: Slug
    included: bool
    """False: a stub stands for it."""


class BundledFile(_Part):
    path: RelativePath
    sha256: Sha256
    size: Annotated[int, Field(ge=0)]
    """Bytes."""
    component: ComponentId | None
    """None for what was written for the bundle itself."""
    executable: bool = False


class BundleIndex(_Part):
    """The content of glmserve-bundle.json."""

    schema_: Literal["glmserve.bundle/1"] = Field("glmserve.bundle/1", alias="schema")
    profile: str
    use: Annotated[Use, Field(strict=False)]
    mode: Mode
    commercial: bool
    verdict: Slug
    """Over the components that are included."""
    versions: dict[str, str]
    components: tuple[BundledComponent, ...] = Field(strict=False)
    """Sorted by id."""
    files: tuple[BundledFile, ...] = Field(strict=False)
    """Sorted by path; all but this one."""

    def serialise(self) -> bytes:
        """The one spelling of this index."""
        value = self.model_dump(mode="json", by_alias=True)
        digest = hashlib.sha256(_spelt(value)).hexdigest()
        return _spelt({**value, "sha256": digest})


def parse_index(data: bytes, where: str) -> BundleIndex:
    """Read an index. `where` names it in errors. Raises IntegrityError for anything but what `serialise` writes."""
    if len(data) > MAX_INDEX_BYTES:
        raise IntegrityError(f"{where} has more than {MAX_INDEX_BYTES} bytes.")
    try:
        value = json.loads(data.decode("ascii"))
        if not isinstance(value, dict) or "sha256" not in value:
            raise ValueError("it has no digest of itself")
        del value["sha256"]
        index = BundleIndex.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise IntegrityError(f"{where}: {key}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where} is not the index of a bundle: {str(error)[:120]}.") from None
    if index.serialise() != data:
        raise IntegrityError(f"{where} is not what glmserve wrote: its digest of itself is another.")
    return index


def _spelt(value: dict[str, object]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode("ascii")
