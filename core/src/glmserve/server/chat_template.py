"""Messages to prompt text with the checkpoint's own template.

A template comes from a model's author, so it runs in a sandbox: it reads what it is given and changes nothing. Jinja
has no unbounded loop, and the sandbox caps ranges. The text of a message is put in as it stands: a user who writes a
control token such as <|im_end|> gets that token, as with every server that renders to text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glmserve.api import RequestError


class _Generation(Extension):
    """{% generation %} marks the assistant's text for training; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance's)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """A compiled template. The environment is that of transformers, so that prompts come out the same."""

    def __init__(self, source: str | None, bos_token: str | None, eos_token: str | None) -> None:
        self._special = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self.variables: frozenset[str] = frozenset()
        """Names that the template reads and does not set itself."""
        self.words: frozenset[str] = frozenset()
        """Texts that stand in it as constants; a value that it compares with is one of them."""
        self._template: jinja2.Template | None = None
        self._fault = "the model has no chat template; use /v1/completions"
        if source is None:
            return
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
        try:
            tree = environment.parse(source)
            self.words = frozenset(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
            # Last, since it folds the constants of the tree that it looks through.
            self.variables = frozenset(meta.find_undeclared_variables(tree)) - environment.globals.keys()
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            self._fault = f"the model's chat template is broken: {error}"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, up to where the assistant speaks. `options`: further variables, which the template may know.

        Raises RequestError when the template refuses.
        """
        if self._template is None:
            raise RequestError(f"Chat is not possible: {self._fault}.", param="messages", code="no_chat_template")
        try:
            return self._template.render(
                **(options or {}),
                messages=list(messages),
                tools=list(tools) or None,
                add_generation_prompt=True,
                **self._special,
            )
        except Exception as error:  # a template may fail in any way that Python can
            raise RequestError(
                f"The model's chat template refuses these messages: {str(error).rstrip('.')}.",
                param="messages",
                code="chat_template_error",
            ) from error
