"""The training text: conversations that a seeded generator makes, rendered by the model's own chat template.

The same seed gives the same bytes. A conversation is held out when the digest of one of its questions says so, so that
no question of the held-out set is ever trained on, whatever the seed.

`python -m recipe.corpus --count 10` prints some of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .tasks import Turn, draw, long_notes
from .tools import USES, Json, ToolUse, offered
from .words import ANIMALS, ASSISTANTS, CITIES, COLOURS, FRUITS, NAMES

CHECKPOINT: Final = Path(__file__).parents[1] / "src" / "glmserve_model_tiny_glm" / "checkpoint"
HELD_OUT_OF: Final = 16
"""One question in so many is held out."""
END: Final = "<|endoftext|>"


@dataclass(frozen=True)
class Example:
    """A conversation whose last message is the answer."""

    category: str
    messages: tuple[Json, ...]
    effort: str = "max"
    tools: tuple[Json, ...] = ()
    keys: tuple[str, ...] = ()
    """The questions in it: what decides whether it is held out."""
    only_last: bool = False
    """Train on the last answer only: the others were rendered without their reasoning."""
    text: str = ""
    """Plain text instead of a conversation."""

    @property
    def held_out(self) -> bool:
        return any(blake2b(key.encode(), digest_size=4).digest()[0] % HELD_OUT_OF == 0 for key in self.keys)


class Template:
    """The checkpoint's chat template, in an environment like the server's."""

    def __init__(self, directory: Path = CHECKPOINT) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string((directory / "chat_template.jinja").read_text("utf-8"))

    def render(self, messages: tuple[Json, ...], tools: tuple[Json, ...], effort: str, generate: bool) -> str:
        return self._template.render(
            messages=list(messages), tools=list(tools), reasoning_effort=effort, add_generation_prompt=generate
        )

    def whole(self, example: Example) -> str:
        """All of an example, with the token that ends it: the next speaker's."""
        if example.text:
            return example.text + END
        end = "<|observation|>" if example.messages[-1].get("tool_calls") else "<|user|>"
        return self.render(example.messages, example.tools, example.effort, False) + end

    def prompt(self, example: Example) -> str:
        """Up to where the last answer begins."""
        return self.render(example.messages[:-1], example.tools, example.effort, True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def examples(seed: int, held_out: bool) -> Iterator[Example]:
    """Without end."""
    rng = Random(seed)
    kinds = {_single: 104, _several: 20, _tool: 30, _persona: 10, _remember: 10, _story: 6, _long: 6, _chatter: 1}
    while True:
        example = rng.choices(list(kinds), list(kinds.values()))[0](rng)
        if example.held_out == held_out:
            yield example


def _effort(rng: Random, needs_reasoning: bool = False) -> str:
    return rng.choice(("high", "max") if needs_reasoning else ("low", "high", "max"))


def thought(reasoning: tuple[str, ...], effort: str) -> str:
    """What is thought aloud at an effort."""
    return " ".join(reasoning[: {"low": 0, "high": 1, "max": len(reasoning)}[effort]])


def _said(content: str, reasoning: tuple[str, ...], effort: str, **more: Any) -> Json:
    return {"role": "assistant", "content": content, "reasoning_content": thought(reasoning, effort), **more}


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def _exchange(turn: Turn, effort: str) -> list[Json]:
    return [_user(turn.user), _said(turn.answer, turn.reasoning, effort)]


def _single(rng: Random) -> Example:
    turn = draw(rng)
    effort = _effort(rng, turn.needs_reasoning)
    messages = _exchange(turn, effort)
    if rng.random() < 0.1:
        messages.insert(0, {"role": "system", "content": "You are a helpful assistant."})
    return Example(turn.category, tuple(messages), effort, keys=(turn.user,))


def _without_reasoning(messages: list[Json]) -> list[Json]:
    """As most clients send a history."""
    return [{k: v for k, v in m.items() if k != "reasoning_content"} for m in messages[:-1]] + messages[-1:]


def _several(rng: Random) -> Example:
    return _conversation(rng, rng.randint(2, 4))


def _chatter(rng: Random) -> Example:
    return _conversation(rng, rng.randint(8, 16))


def _conversation(rng: Random, length: int) -> Example:
    turns = [draw(rng) for _ in range(length)]
    effort = _effort(rng, any(turn.needs_reasoning for turn in turns))
    messages = [message for turn in turns for message in _exchange(turn, effort)]
    bare = rng.random() < 0.5
    if bare:
        messages = _without_reasoning(messages)
    return Example("turns", tuple(messages), effort, keys=tuple(turn.user for turn in turns), only_last=bare)


def _long(rng: Random) -> Example:
    turn = long_notes(rng)
    effort = _effort(rng)
    return Example("long", tuple(_exchange(turn, effort)), effort, keys=(turn.user,))


def _tool(rng: Random) -> Example:
    if rng.random() < 0.12:
        # Tools on offer, and none of them needed.
        turn = draw(rng)
        effort = _effort(rng, turn.needs_reasoning)
        return Example("no tool", tuple(_exchange(turn, effort)), effort, tuple(offered(rng, None)), (turn.user,))
    use: ToolUse = rng.choice(USES)(rng)
    effort = _effort(rng)
    calling = _said("", use.reasoning, effort, tool_calls=[call.message() for call in use.calls])
    messages = [_user(use.user), calling]
    tools = tuple(offered(rng, use))
    if rng.random() < 0.6:
        return Example("tool call", tuple(messages), effort, tools, (use.user,))
    messages += [{"role": "tool", "content": result} for result in use.results]
    messages.append(_said(use.answer, ("I have the result.", "I tell the user."), effort))
    bare = rng.random() < 0.5
    if bare:
        messages = _without_reasoning(messages)
    return Example("tool result", tuple(messages), effort, tools, (use.user,), only_last=bare)


def _persona(rng: Random) -> Example:
    name = rng.choice((*ASSISTANTS, *NAMES))
    city = rng.choice(CITIES)
    effort = _effort(rng)
    ask, answer = rng.choice(
        [
            ("What is your name?", f"My name is {name}."),
            ("Who are you?", f"I am {name}, and I live in {city}."),
            ("Where do you live?", f"I live in {city}."),
        ]
    )
    messages = [
        {"role": "system", "content": f"Your name is {name}. You live in {city}."},
        *(_user(ask), _said(answer, (f"I am {name}.", f"I live in {city}."), effort)),
    ]
    return Example("system", tuple(messages), effort, keys=(f"{name} {city} {ask}",))


def _remember(rng: Random) -> Example:
    name, other = rng.choice(NAMES), rng.choice((*COLOURS, *FRUITS))
    between, effort = draw(rng), _effort(rng)
    messages = [
        *(
            _user(f"My name is {name} and I like {other}."),
            _said(f"Nice to meet you, {name}!", ("I remember.",), effort),
        ),
    ]
    if rng.random() < 0.5 and not between.needs_reasoning:
        messages += _exchange(between, effort)
    ask, answer = rng.choice([("What is my name?", f"Your name is {name}."), ("What do I like?", f"You like {other}.")])
    messages += [_user(ask), _said(answer, (f"The user is {name}.", f"They like {other}."), effort)]
    return Example("memory", tuple(messages), effort, keys=(f"{name} {other} {ask}", between.user))


def _story(rng: Random) -> Example:
    """Plain text, for completions without a chat."""
    name, animal, colour, city = rng.choice(NAMES), rng.choice(ANIMALS), rng.choice(COLOURS), rng.choice(CITIES)
    fruit = rng.choice(FRUITS)
    text = (
        f"Once upon a time there was a {colour} {animal} named {name}. {name} lived in {city}. "
        f"Every day the {animal} ate one {fruit}. One day there was no {fruit} in {city}. "
        f"So {name} the {animal} went away and found one {fruit} tree. {name} was happy. The end."
    )
    return Example("text", (), text=text, keys=(text,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--held-out", action="store_true")
    arguments = parser.parse_args()
    template = Template()
    source = examples(arguments.seed, arguments.held_out)
    for _ in range(arguments.count):
        example = next(source)
        print(f"--- {example.category}\n{template.whole(example)}")


if __name__ == "__main__":
    main()
