"""Tool calls in GLM's format, as they come.

    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>

White space between tags and around calls belongs to the format. A call is announced as soon as its name is whole, and
its arguments follow as the text of a JSON object. What cannot be a call is content, tags and all. A call that breaks
off, or goes on in a way that is no call, keeps arguments without their closing brace, so that nobody can take a part
of them for the whole; the rest of the reply, from the break on, is content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .arguments import TEXT, escaped, json_text, types_of_argument, value_json
from .deltas import CallArguments, CallStart, Content, Delta, joined
from .tags import CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END, leading, split

MAX_NAME = 256
"""Characters after which an opened call without a tag is no call."""
NAME = re.compile(r"[A-Za-z0-9_.:/-]+")


class ToolCallParser:
    """Text to content and calls. The deltas of all `push` and of `finish`, joined, depend on the whole text alone."""

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]], parallel: bool = True) -> None:
        """`parameters`: tool name -> JSON Schema of its arguments. Not `parallel`: what follows a call is dropped."""
        self._parameters = parameters
        self._parallel = parallel
        self._state: Callable[[], bool] = self._text
        self._buffer = ""
        """Text that is not read yet."""
        self._space = ""
        """White space after content: dropped when a call follows."""
        self._raw = ""
        """The name, key or value that is being read."""
        self._out: list[Delta] = []
        self._count = 0
        self._closed = 0
        self._name = ""
        self._arguments = 0
        self._types = TEXT

    @property
    def complete(self) -> bool:
        """There are calls, and each is whole."""
        return 0 < self._count == self._closed

    @property
    def over(self) -> bool:
        """Nothing that comes changes the reply."""
        return self._state == self._ignored

    def push(self, text: str) -> list[Delta]:
        """What is now certain."""
        self._buffer += text
        while self._state():
            pass
        return self._taken()

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the text."""
        if self._state == self._text:
            if self._buffer or not self._count:
                self._content(self._space + self._buffer)
        elif self._state == self._reading_name:
            self._content(self._space + CALL + self._raw + self._buffer)
        elif self._state == self._string:
            self._argument(escaped(self._buffer))
        elif self._state == self._value:
            self._argument(self._raw + self._buffer)
        return self._taken()

    def _taken(self) -> list[Delta]:
        out, self._out = self._out, []
        return joined(out)

    def _content(self, text: str) -> None:
        self._out.append(Content(text))

    def _argument(self, text: str) -> None:
        self._out.append(CallArguments(self._count - 1, text))

    # One method for each state: reads from the buffer, and says whether another state may go on with the rest.

    def _text(self) -> bool:
        before, tag, self._buffer = split(self._buffer, (CALL,))
        before = self._space + before
        shown = before.rstrip()
        self._space = before[len(shown) :]
        self._content(shown)
        if tag:
            self._raw, self._state = "", self._reading_name
        return bool(tag)

    def _reading_name(self) -> bool:
        before, tag, self._buffer = split(self._buffer, (KEY, CALL_END))
        self._raw += before
        name = self._raw.strip()
        if len(self._raw) > MAX_NAME or (tag and not NAME.fullmatch(name)):
            self._content(self._space + CALL)
            self._space = ""
            self._buffer = self._raw + tag + self._buffer
            self._state = self._text
            return True
        if tag:
            self._out.append(CallStart(self._count, name))
            self._count += 1
            self._name, self._arguments, self._space = name, 0, ""
            self._after(tag)
        return bool(tag)

    def _between(self) -> bool:
        text = self._buffer.lstrip()
        tag = leading(text, (KEY, CALL_END))
        if tag is None:
            return self._broken("")
        if tag:
            self._buffer = text.removeprefix(tag)
            self._after(tag)
        return bool(tag)

    def _after(self, tag: str) -> None:
        if tag == KEY:
            self._raw, self._state = "", self._key
            return
        self._argument("}" if self._arguments else "{}")
        self._closed += 1
        self._state = self._text if self._parallel else self._ignored

    def _key(self) -> bool:
        before, tag, self._buffer = split(self._buffer, (KEY_END,))
        self._raw += before
        if tag:
            self._state = self._after_key
        return bool(tag)

    def _after_key(self) -> bool:
        text = self._buffer.lstrip()
        tag = leading(text, (VALUE,))
        if tag is None:
            return self._broken(KEY + self._raw + KEY_END)
        if tag:
            self._buffer = text.removeprefix(tag)
            key = self._raw.strip()
            self._types = types_of_argument(self._parameters.get(self._name, {}), key)
            self._argument(("{" if not self._arguments else ", ") + json_text(key) + ": ")
            self._arguments += 1
            if self._types == TEXT:
                self._argument('"')
                self._state = self._string
            else:
                self._raw, self._state = "", self._value
        return bool(tag)

    def _string(self) -> bool:
        """A text needs no end to be passed on."""
        before, tag, self._buffer = split(self._buffer, (VALUE_END,))
        self._argument(escaped(before))
        if tag:
            self._argument('"')
            self._state = self._between
        return bool(tag)

    def _value(self) -> bool:
        before, tag, self._buffer = split(self._buffer, (VALUE_END,))
        self._raw += before
        if tag:
            self._argument(value_json(self._raw, self._types))
            self._state = self._between
        return bool(tag)

    def _ignored(self) -> bool:
        self._buffer = ""
        return False

    def _broken(self, kept: str) -> bool:
        """The call does not go on as one. `kept`: text of it that was read and not passed on."""
        self._buffer = kept + self._buffer
        self._state = self._rest
        return True

    def _rest(self) -> bool:
        """A model that lost the format once is not trusted with another call."""
        self._content(self._buffer)
        self._buffer = ""
        return False
