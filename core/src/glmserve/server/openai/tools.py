"""The tools of a request: both shapes in which clients send them, and which of them may be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmserve.api import RequestError

from ..limits import MAX_TOOLS

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")


@dataclass(frozen=True)
class Tools:
    """What may be called; nothing when empty."""

    described: tuple[Mapping[str, Any], ...] = ()
    """{"type": "function", "function": {...}} each, keys in the client's order: the template prints them."""

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """Tool name -> JSON Schema of its arguments."""
        functions = (tool["function"] for tool in self.described)
        return {function["name"]: function.get("parameters") or {} for function in functions}


def tools_of(given: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any] | None) -> Tools:
    """The tools that a request offers to the model. With `choice` "none" they are not even shown to it.

    Raises RequestError for a tool that is none, and for a choice that would have to be forced upon the model.
    """
    if len(given) > MAX_TOOLS:
        raise RequestError(f"There are {len(given)} tools; at most {MAX_TOOLS} are allowed.", param="tools")
    described = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(given))
    names = [tool["function"]["name"] for tool in described]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise RequestError(f"Two tools are named {name!r}; give each a name of its own.", param=f"tools[{i}]")
    if isinstance(choice, Mapping) or choice == "required":
        kind = choice if isinstance(choice, str) else choice.get("type")
        raise RequestError(
            f"'tool_choice' {str(kind)[:40]!r} needs structured output, which this server does not have yet; use "
            "'auto', and tell the model in the prompt which tool to call.",
            param="tool_choice",
            code="unsupported_parameter",
        )
    return Tools(() if choice == "none" else described)


def _tool(tool: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """A tool in the nested shape of chat. That of the Responses route has the function's fields beside the type."""
    if tool.get("type") != "function":
        raise RequestError(
            f"{path!r} is of type {str(tool.get('type'))[:40]!r}; only 'function' is supported.", param=f"{path}.type"
        )
    if "function" in tool:
        function, path = tool["function"], f"{path}.function"
    else:
        function = {key: value for key, value in tool.items() if key in _FUNCTION_KEYS}
        tool = {**{key: value for key, value in tool.items() if key not in _FUNCTION_KEYS}, "function": function}
    if not isinstance(function, Mapping):
        raise RequestError(f"{path!r} must be an object with a name.", param=path)
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RequestError(
            f"{path + '.name'!r} must be 1 to 128 letters, digits or any of _.:/- and no other characters.",
            param=f"{path}.name",
        )
    for key, kind, what in (("description", str, "a text"), ("parameters", Mapping, "a JSON Schema")):
        if function.get(key) is not None and not isinstance(function[key], kind):
            raise RequestError(f"{f'{path}.{key}'!r} must be {what}.", param=f"{path}.{key}")
    return tool
