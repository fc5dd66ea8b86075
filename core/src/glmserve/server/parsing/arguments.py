"""The value of a tool's argument: JSON, or a text as it stands. The tool's own JSON Schema decides, not the value.

The model writes strings verbatim and everything else as JSON, so `5` is a number for a number and a text for a string.
Where a schema allows both, JSON of one of the other types that it names wins, and anything else is text. What should be
JSON but is none is passed on as a text: the arguments stay valid JSON, and a check against the schema finds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

TEXT = frozenset({"string"})
ANY = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
MAX_DEPTH = 16
"""Of schemas within schemas that are followed; recursive ones have no end."""


def types_of_argument(parameters: Mapping[str, Any], name: str) -> frozenset[str]:
    """JSON types that the schema `parameters` of a tool allows for the argument `name`."""
    properties = parameters.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return types_of(properties[name], parameters)
    return types_of(parameters.get("additionalProperties"), parameters)


def types_of(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """JSON types that `schema` allows; all where it does not say. `root` holds what its local references name."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return ANY
    types = ANY
    named = schema.get("type")
    if isinstance(named, str | list):
        types &= {named} if isinstance(named, str) else {one for one in named if isinstance(one, str)}
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if values:
        types &= frozenset[str]().union(*(kinds_of(value) for value in values))
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list) and branches:
            types &= frozenset[str]().union(*(types_of(branch, root, depth + 1) for branch in branches))
    for branch in schema["allOf"] if isinstance(schema.get("allOf"), list) else []:
        types &= types_of(branch, root, depth + 1)
    if isinstance(schema.get("$ref"), str):
        types &= types_of(_at(root, schema["$ref"]), root, depth + 1)
    return types or ANY


def kinds_of(value: object) -> frozenset[str]:
    """The JSON types that a value has: 5 is an integer and a number."""
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return frozenset({names[type(value)]})


def value_json(text: str, types: frozenset[str]) -> str:
    """`text`, an argument's value as the model wrote it, as JSON text."""
    kinds = _kinds_of_json(text)
    if kinds & (types - TEXT):
        return text.strip()
    return json_text(text) if "string" in types or not kinds else text.strip()


def json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """The inside of a JSON string, which may be cut anywhere."""
    return json_text(text)[1:-1]


def _kinds_of_json(text: str) -> frozenset[str]:
    """Types of the JSON value that `text` is; none when it is not JSON."""
    try:
        return kinds_of(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):  # json's own error is a ValueError, and so is a number with too many digits
        return frozenset()


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _at(root: Mapping[str, Any], reference: str) -> object:
    """What a reference within the schema names, or None."""
    found: object = root
    if not reference.startswith("#"):
        return None
    for part in filter(None, reference[1:].split("/")):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
