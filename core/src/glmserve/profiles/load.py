"""From a name or a file to a checked Profile.

Later wins: the file, then environment variables GLMSERVE_<SECTION>_<KEY>, then `--set section.key=value`, then a flag
of its own such as `--port`. A value in a variable or after --set is read as TOML where that fits the key, and as plain
text otherwise.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from glmserve.api import ConfigError
from glmserve.nearest import nearest

from .locate import Key, Origins, key_lines
from .schema import Profile

SHIPPED = Path(__file__).parent
PREFIX = "GLMSERVE_"


@dataclass(frozen=True)
class ProfileEntry:
    """A shipped profile, as `glmserve profiles` lists it."""

    name: str
    description: str
    path: Path


def shipped_profiles() -> list[ProfileEntry]:
    """The profiles that come with glmserve, by name."""
    entries = []
    for path in sorted(SHIPPED.glob("*.toml")):
        about = tomllib.loads(path.read_text("utf-8"))["profile"]
        entries.append(ProfileEntry(path.stem, about["description"], path))
    return entries


def load_profile(
    name_or_path: str,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    flags: Sequence[tuple[str, str, object]] = (),
) -> Profile:
    """Read and check a profile. `overrides` are "section.key=value"; `flags` are (flag, "section.key", value).

    Raises ConfigError with file and line (or variable, or flag), the key, what was expected and the nearest right name.
    """
    path = _find(name_or_path)
    data, origins = _read(path)
    for key, text in _environment(environ):
        _override(data, origins, key, _value(key, text), f"{PREFIX}{'_'.join(key).upper()}")
    for override in overrides:
        dotted, equals, text = override.partition("=")
        key = tuple(part.strip() for part in dotted.split("."))
        if not equals or len(key) < 2 or not all(key):
            raise ConfigError(f"--set {override!r} is not of the form section.key=value, as in engine.kv_tokens=65536.")
        _override(data, origins, key, _value(key, text.strip()), f"--set {dotted.strip()}")
    for flag, dotted, value in flags:
        _override(data, origins, tuple(dotted.split(".")), value, flag)
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, origins)) from None
    profile._origins = origins
    return profile


def send_profile(profile: Profile) -> dict[str, str]:
    """A checked profile for another rank of this machine; plain JSON."""
    return {"path": str(profile._origins.path), "settings": profile.model_dump_json()}


def received_profile(sent: Mapping[str, str]) -> Profile:
    """The inverse. Raises ConfigError when the settings are not those of this version."""
    try:
        profile = Profile.model_validate_json(sent["settings"])
    except ValidationError as error:
        raise ConfigError(_explain(error, Origins(Path(sent["path"])))) from None
    profile._origins = Origins(Path(sent["path"]))
    return profile


def _find(name_or_path: str) -> Path:
    names = [entry.name for entry in shipped_profiles()]
    if name_or_path in names:
        return SHIPPED / f"{name_or_path}.toml"
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    if path.suffix == ".toml" or os.sep in name_or_path:
        raise ConfigError(
            f"There is no profile file {name_or_path}; give an existing file or one of {', '.join(names)}."
        )
    raise ConfigError(f"There is no profile {name_or_path!r}{nearest(name_or_path, names)}; a file's path works too.")


def _read(path: Path) -> tuple[dict[str, Any], Origins]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The profile {path} cannot be read: {error}.") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = at[1] if at else str(text.count("\n") + 1)
        what = re.sub(r"\s*\(at .*\)$", "", str(error))
        raise ConfigError(f"{path}:{line}: this is not valid TOML: {what[:1].lower()}{what[1:]}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The profile {path} cannot be read: {error}.") from None
    return data, Origins(path, key_lines(text))


def _environment(environ: Mapping[str, str]) -> list[tuple[Key, str]]:
    """The settings made by variables. A variable that starts like a section must name a key of it."""
    found: list[tuple[Key, str]] = []
    for section in Profile.model_fields:
        start = f"{PREFIX}{section.upper()}_"
        keys = {start + key.upper(): key for key in _fields((section,)) or {}}
        for variable in sorted(v for v in environ if v.startswith(start)):
            if variable not in keys:
                raise ConfigError(f"The environment variable {variable} sets nothing{nearest(variable, keys)}.")
            found.append(((section, keys[variable]), environ[variable]))
    return found


def _override(data: dict[str, Any], origins: Origins, key: Key, value: object, origin: str) -> None:
    table = data
    for part in key[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{origin}: {part} is a value, not a table, so nothing can be set inside it.")
        table = inner
    table[key[-1]] = value
    origins.overrides[key] = origin


def _value(key: Key, text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    fields = _fields(key[:-1]) or {}
    wants_text = key[-1] in fields and fields[key[-1]].annotation is str
    # served_name=7 means the text "7"; a second key smuggled in by a line break is no value either.
    return text if len(value) != 1 or (wants_text and not isinstance(value["value"], str)) else value["value"]


def _fields(key: Key) -> dict[str, Any] | None:
    """The fields of the section at `key`; None when there is no such section."""
    model: Any = Profile
    for part in key:
        if part not in model.model_fields:
            return None
        model = model.model_fields[part].annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return None
    return dict(model.model_fields)


def _explain(error: ValidationError, origins: Origins) -> str:
    """One sentence about the first fault."""
    fault = error.errors(include_url=False)[0]
    key = tuple(str(part) for part in fault["loc"])
    dotted, where = ".".join(key), origins.where(key)
    if fault["type"] == "extra_forbidden":
        return f"{where}: unknown key {dotted}{_nearest_key(key)}."
    if fault["type"] == "missing":
        return f"{where}: {dotted} is missing; it is {_description(key)}"
    expected = fault["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch":
        expected = f"text that matches {fault['ctx']['pattern']}"
    return f"{where}: {dotted} should be {expected}, not {fault['input']!r}."


def _nearest_key(key: Key) -> str:
    *sections, name = key
    homes = [section for section in Profile.model_fields if name in (_fields((section,)) or {})]
    if len(key) == 2 and len(homes) == 1:
        # The right key in the wrong section is the commonest slip.
        return f"; did you mean {f'{homes[0]}.{name}'!r}"
    return nearest(name, _fields(key[:-1]) or {}, "".join(f"{section}." for section in sections))


def _description(key: Key) -> str:
    fields = _fields(key[:-1]) or {}
    described = fields[key[-1]].description if key[-1] in fields else None
    return described[:1].lower() + described[1:] if described else "a section with keys of its own."
