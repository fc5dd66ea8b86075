"""The tools of the corpus, and conversations that call them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from .words import CITIES, CONDITIONS, NAMES, WORDS

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Mapping[str, Any]

    def message(self) -> Json:
        """As an entry of `tool_calls` in the OpenAI form, with its arguments decoded."""
        return {"type": "function", "function": {"name": self.name, "arguments": dict(self.arguments)}}


@dataclass(frozen=True)
class ToolUse:
    """A question that needs tools: the calls, what the tools say, and the answer to the user."""

    user: str
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    answer: str
    reasoning: tuple[str, ...]


def _tool(name: str, description: str, **parameters: str) -> Json:
    properties = {key: {"type": type} for key, type in parameters.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(parameters)},
        },
    }


TOOLS: Final = {
    tool["function"]["name"]: tool
    for tool in (
        _tool("get_weather", "The weather in a city", city="string"),
        _tool("get_time", "The time in a city", city="string"),
        _tool("set_timer", "Set a timer", minutes="integer"),
        _tool("add", "Add two numbers", a="number", b="number"),
        _tool("send_message", "Send a message to a person", to="string", text="string"),
        _tool("find_book", "Find a book by its topic", topic="string"),
        _tool("list_files", "List the files"),
        _tool("set_light", "Turn the light on or off", on="boolean"),
    )
}


def weather(rng: Random) -> ToolUse:
    city = rng.choice(CITIES)
    degrees, condition = rng.randint(-5, 35), rng.choice(CONDITIONS)
    ask = rng.choice(
        [f"What is the weather in {city}?", f"How is the weather in {city}?", f"Weather in {city}, please."]
    )
    return _one(
        ask,
        Call("get_weather", {"city": city}),
        {"degrees": degrees, "sky": condition},
        f"It is {condition} in {city}, with {degrees} degrees.",
    )


def two_weathers(rng: Random) -> ToolUse:
    cities = rng.sample(CITIES, 2)
    skies = [rng.choice(CONDITIONS) for _ in cities]
    return ToolUse(
        f"What is the weather in {cities[0]} and in {cities[1]}?",
        tuple(Call("get_weather", {"city": city}) for city in cities),
        tuple(json.dumps({"degrees": rng.randint(-5, 35), "sky": sky}) for sky in skies),
        f"It is {skies[0]} in {cities[0]} and {skies[1]} in {cities[1]}.",
        ("I call get_weather twice.", f"First {cities[0]}, then {cities[1]}."),
    )


def time(rng: Random) -> ToolUse:
    city = rng.choice(CITIES)
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    ask = rng.choice([f"What time is it in {city}?", f"Tell me the time in {city}."])
    return _one(ask, Call("get_time", {"city": city}), {"time": clock}, f"It is {clock} in {city}.")


def timer(rng: Random) -> ToolUse:
    minutes = rng.randint(1, 60)
    ask = rng.choice([f"Set a timer for {minutes} minutes.", f"Wake me in {minutes} minutes."])
    return _one(ask, Call("set_timer", {"minutes": minutes}), {"ok": True}, f"The timer is set for {minutes} minutes.")


def add(rng: Random) -> ToolUse:
    a, b = rng.randint(100, 999), rng.randint(100, 999)
    ask = rng.choice([f"Use the tool to add {a} and {b}.", f"Add {a} and {b}."])
    return _one(ask, Call("add", {"a": a, "b": b}), {"sum": a + b}, f"The sum is {a + b}.")


def message(rng: Random) -> ToolUse:
    name, text = rng.choice(NAMES), " ".join(rng.sample(WORDS, rng.randint(1, 4)))
    ask = rng.choice([f"Send {name} this message: {text}", f"Write to {name}: {text}"])
    return _one(ask, Call("send_message", {"to": name, "text": text}), {"ok": True}, f"I sent the message to {name}.")


def book(rng: Random) -> ToolUse:
    topic, title = rng.choice(WORDS), f"The {rng.choice(WORDS)} {rng.choice(WORDS)}"
    ask = rng.choice([f"Find a book about {topic}.", f"Is there a book about {topic}?"])
    return _one(ask, Call("find_book", {"topic": topic}), {"title": title}, f'I found the book "{title}".')


def files(rng: Random) -> ToolUse:
    names = [f"{word}.txt" for word in rng.sample(WORDS, rng.randint(1, 3))]
    ask = rng.choice(["Which files are there?", "List the files.", "Show me the files."])
    return _one(ask, Call("list_files", {}), {"files": names}, f"There is {', '.join(names)}.")


def light(rng: Random) -> ToolUse:
    on = rng.random() < 0.5
    word = "on" if on else "off"
    ask = rng.choice([f"Turn the light {word}.", f"Light {word}, please."])
    return _one(ask, Call("set_light", {"on": on}), {"ok": True}, f"The light is {word}.")


def _one(user: str, call: Call, result: Json, answer: str) -> ToolUse:
    given = " and ".join(call.arguments) or "nothing"
    return ToolUse(user, (call,), (json.dumps(result),), answer, (f"I call {call.name}.", f"It needs {given}."))


USES: Final[tuple[Callable[[Random], ToolUse], ...]] = (
    *(weather, weather, two_weathers, time, timer, add, message, book, files, light),
)


def offered(rng: Random, use: ToolUse | None) -> list[Json]:
    """Tools to announce in a random order: those that `use` calls, and up to two more."""
    names = {call.name for call in use.calls} if use else set()
    others = rng.sample(sorted(set(TOOLS) - names), rng.randint(0 if use else 1, 2))
    chosen = [*sorted(names), *others]
    rng.shuffle(chosen)
    return [TOOLS[name] for name in chosen]
