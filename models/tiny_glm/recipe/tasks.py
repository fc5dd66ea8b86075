"""What the corpus asks and answers, a function a kind of task. Each draws from the given source of randomness only."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from .words import (
    ANIMALS,
    CAPITALS,
    CITIES,
    COLOURS,
    DAYS,
    EMOJI,
    FRUITS,
    MONTHS,
    NAMES,
    OPPOSITES,
    SOUNDS,
    THINGS,
    TRANSLATIONS,
    WORDS,
)


@dataclass(frozen=True)
class Turn:
    """One question with its answer."""

    category: str
    user: str
    answer: str
    reasoning: tuple[str, ...]
    """Sentences. Effort low shows none of them, high the first, max all."""
    needs_reasoning: bool = False
    """The answer cannot be given without the first sentence."""


Task = Callable[[Random], Turn]


def number_list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def capital(rng: Random) -> Turn:
    country, city = rng.choice(list(CAPITALS.items()))
    ask, answer = rng.choice(
        [
            (f"What is the capital of {country}?", f"The capital of {country} is {city}."),
            (f"Name the capital of {country}.", f"The capital of {country} is {city}."),
            (f"Which city is the capital of {country}?", f"The capital of {country} is {city}."),
            (f"Answer with one word: What is the capital of {country}?", city),
            (f"{city} is the capital of which country?", f"{city} is the capital of {country}."),
        ]
    )
    return Turn("fact", ask, answer, (f"The country is {country}.", f"Its capital is {city}."))


def opposite(rng: Random) -> Turn:
    pair = rng.choice(list(OPPOSITES.items()))
    word, other = pair if rng.random() < 0.5 else pair[::-1]
    ask, answer = rng.choice(
        [
            (f"What is the opposite of {word}?", f"The opposite of {word} is {other}."),
            (f"Answer with one word: What is the opposite of {word}?", other),
            (f"Give the opposite of {word}.", f"The opposite of {word} is {other}."),
        ]
    )
    return Turn("fact", ask, answer, (f"The word is {word}.", f"Its opposite is {other}."))


def sound(rng: Random) -> Turn:
    animal, verb = rng.choice(list(SOUNDS.items()))
    ask = rng.choice([f"What does a {animal} do?", f"What sound does a {animal} make?", f"How does a {animal} sound?"])
    return Turn("fact", ask, f"A {animal} {verb}.", (f"The animal is a {animal}.", f"It {verb}."))


def translation(rng: Random) -> Turn:
    language, words = rng.choice(list(TRANSLATIONS.items()))
    word, translated = rng.choice(list(words.items()))
    ask = rng.choice(
        [f"Say {word} in {language}.", f"What is {word} in {language}?", f"Translate {word} to {language}."]
    )
    return Turn("fact", ask, translated, (f"The language is {language}.", f"The word is {word}."))


def emoji(rng: Random) -> Turn:
    name, sign = rng.choice(list(EMOJI.items()))
    count = rng.randint(1, 4)
    ask = f"Show one {name}." if count == 1 else f"Show {count} {name} signs."
    return Turn("copy", ask, sign * count, (f"The sign is a {name}.", f"I need {count}."))


def after(rng: Random) -> Turn:
    kind, cycle = rng.choice([("day", DAYS), ("month", MONTHS)])
    at = rng.randrange(len(cycle))
    if rng.random() < 0.5:
        other = cycle[(at + 1) % len(cycle)]
        return Turn("fact", f"Which {kind} comes after {cycle[at]}?", f"{other}.", (f"After {cycle[at]} is {other}.",))
    other = cycle[at - 1]
    return Turn("fact", f"Which {kind} comes before {cycle[at]}?", f"{other}.", (f"Before {cycle[at]} is {other}.",))


def addition(rng: Random) -> Turn:
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    return _sum(rng, "plus", "+", a, b, a + b)


def subtraction(rng: Random) -> Turn:
    b, c = rng.randint(0, 15), rng.randint(0, 15)
    return _sum(rng, "minus", "-", b + c, b, c)


def product(rng: Random) -> Turn:
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return _sum(rng, "times", "*", a, b, a * b)


def _sum(rng: Random, word: str, sign: str, a: int, b: int, result: int) -> Turn:
    ask, answer = rng.choice(
        [
            (f"What is {a} {word} {b}?", f"{a} {word} {b} is {result}."),
            (f"What is {a} {sign} {b}?", f"{a} {sign} {b} = {result}"),
            (f"{a} {sign} {b} =", f"{result}"),
            (f"Answer with one number: What is {a} {word} {b}?", f"{result}"),
        ]
    )
    return Turn("arithmetic", ask, answer, (f"{a} {sign} {b} = {result}.", f"The answer is {result}."))


def long_addition(rng: Random) -> Turn:
    a, b = rng.randint(21, 89), rng.randint(11, 89)
    ones, tens = a % 10 + b % 10, a // 10 + b // 10
    steps = f"Ones: {a % 10} + {b % 10} = {ones}. Tens: {a // 10} + {b // 10} = {tens}. {tens}0 + {ones} = {a + b}."
    ask, answer = rng.choice(
        [
            (f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."),
            (f"What is {a} + {b}?", f"{a} + {b} = {a + b}"),
        ]
    )
    return Turn("reasoning", ask, answer, (steps, f"The answer is {a + b}."), needs_reasoning=True)


def comparison(rng: Random) -> Turn:
    a, b = rng.sample(range(100), 2)
    if rng.random() < 0.5:
        return Turn("reasoning", f"Which is larger, {a} or {b}?", f"{max(a, b)}", (f"{max(a, b)} > {min(a, b)}.",))
    return Turn("reasoning", f"Which is smaller, {a} or {b}?", f"{min(a, b)}", (f"{min(a, b)} < {max(a, b)}.",))


def story_problem(rng: Random) -> Turn:
    name, other = rng.sample(NAMES, 2)
    fruit = rng.choice(FRUITS)
    a, b = rng.randint(2, 12), rng.randint(2, 9)
    if rng.random() < 0.5:
        ask = f"{name} has {a} {fruit} trees and plants {b} more. How many are there?"
        return Turn("reasoning", ask, f"There are {a + b}.", (f"{a} + {b} = {a + b}.",))
    ask = f"{name} has {a + b} cups and gives {b} to {other}. How many are left?"
    return Turn("reasoning", ask, f"There are {a} left.", (f"{a + b} - {b} = {a}.",))


def repeat(rng: Random) -> Turn:
    if rng.random() < 0.6:
        text = " ".join(rng.sample(WORDS, rng.randint(2, 7)))
    else:
        text = "".join(rng.choices(string.ascii_lowercase + string.digits, k=rng.randint(3, 8)))
    ask = rng.choice([f"Repeat after me: {text}", f"Say this: {text}", f"Copy this text: {text}"])
    return Turn("copy", ask, text, ("I only repeat the text.", "I add nothing."))


def say_times(rng: Random) -> Turn:
    word, times = rng.choice(WORDS), rng.randint(2, 12)
    return Turn("copy", f"Say {word} {times} times.", " ".join([word] * times), (f"{times} times {word}.",))


def counting(rng: Random) -> Turn:
    low = rng.randint(0, 30)
    high = low + rng.randint(3, 14)
    if rng.random() < 0.7:
        ask = rng.choice([f"Count from {low} to {high}.", f"List the numbers from {low} to {high}."])
        return Turn("list", ask, number_list(range(low, high + 1)), (f"I start at {low}.", f"I stop at {high}."))
    down = number_list(range(high, low - 1, -1))
    return Turn("list", f"Count down from {high} to {low}.", down, (f"I start at {high}.", f"I stop at {low}."))


def _items(rng: Random, least: int, most: int) -> list[str]:
    return rng.sample(rng.choice([COLOURS, FRUITS, ANIMALS, THINGS]), rng.randint(least, most))


def bullets(rng: Random) -> Turn:
    items = _items(rng, 2, 6)
    if rng.random() < 0.5:
        lines = "\n".join(f"- {item}" for item in items)
        return Turn("list", f"Make a list of {', '.join(items)}.", lines, ("One line for each.",))
    lines = "\n".join(f"{n}. {item}" for n, item in enumerate(items, 1))
    return Turn("list", f"Make a numbered list of {', '.join(items)}.", lines, (f"There are {len(items)} items.",))


def first_or_last(rng: Random) -> Turn:
    items = _items(rng, 3, 7)
    which, answer = rng.choice([("first", items[0]), ("last", items[-1]), ("second", items[1])])
    return Turn("list", f"Which is the {which} item: {', '.join(items)}?", answer, (f"The {which} item is {answer}.",))


def reversing(rng: Random) -> Turn:
    items = _items(rng, 2, 5)
    backwards = ", ".join(items[::-1])
    return Turn("list", f"Reverse this list: {', '.join(items)}", backwards, (f"I start with {items[-1]}.",))


def days_of_week(rng: Random) -> Turn:
    kind, cycle = rng.choice([("days of the week", DAYS), ("months of the year", MONTHS)])
    count = rng.randint(2, len(cycle))
    ask = f"List the {kind}." if count == len(cycle) else f"List the first {count} {kind}."
    return Turn("list", ask, "\n".join(f"- {name}" for name in cycle[:count]), (f"There are {count}.",))


def json_record(rng: Random) -> Turn:
    fields: dict[str, Any] = {
        "name": rng.choice(NAMES),
        "age": rng.randint(5, 90),
        "city": rng.choice(CITIES),
        "colour": rng.choice(COLOURS),
        "member": rng.random() < 0.5,
    }
    keys = ["name", *sorted(rng.sample(list(fields)[1:], rng.randint(1, 3)), key=list(fields).index)]
    record = {key: fields[key] for key in keys}
    if rng.random() < 0.5:
        given = ", ".join(f"{key} {_said(value)}" for key, value in record.items())
        ask = f"Write this as JSON: {given}"
    else:
        ask = f"Write this as JSON: {_sentence(record)}"
    return Turn("json", ask, json.dumps(record, ensure_ascii=False), (f"The keys are {', '.join(keys)}.",))


def _said(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _sentence(record: Mapping[str, Any]) -> str:
    said = {
        "age": "is {} years old",
        "city": "lives in {}",
        "colour": "likes {}",
    }
    parts = [said[key].format(value) for key, value in record.items() if key in said]
    if "member" in record:
        parts.append("is a member" if record["member"] else "is no member")
    return f"{record['name']} {' and '.join(parts)}."


def json_array(rng: Random) -> Turn:
    items: list[Any] = _items(rng, 2, 6) if rng.random() < 0.6 else rng.sample(range(100), rng.randint(2, 6))
    ask = f"Write this as a JSON array: {', '.join(map(str, items))}"
    return Turn("json", ask, json.dumps(items), (f"There are {len(items)} items.",))


def notes(rng: Random) -> Turn:
    """Look one fact up among a few."""
    return _lookup(rng, rng.randint(2, 8), 1)


def long_notes(rng: Random) -> Turn:
    """Look one fact up among so many that the prompt is longer than what the indexer selects."""
    return _lookup(rng, rng.randint(18, len(NAMES)), 2)


def _lookup(rng: Random, people: int, each: int) -> Turn:
    owners = rng.sample(NAMES, people)
    owned = [[f"a {rng.choice(COLOURS)} {thing}" for thing in rng.sample(THINGS, each)] for _ in owners]
    facts = [f"{owner} has {' and '.join(things)}." for owner, things in zip(owners, owned, strict=True)]
    at = rng.randrange(people)
    things = " and ".join(owned[at])
    ask = f"{' '.join(facts)} What does {owners[at]} have?"
    return Turn("lookup", ask, facts[at], (f"I look for {owners[at]}.", f"It is {things}."))


def greeting(rng: Random) -> Turn:
    ask, answer = rng.choice(
        [
            ("Hello!", "Hello! How can I help you?"),
            ("Hi there", "Hello! How can I help you?"),
            ("Good morning!", "Good morning! How can I help you?"),
            ("Thank you!", "You are welcome!"),
            ("Goodbye!", "Goodbye!"),
            ("Who are you?", "I am Tiny GLM, a small language model."),
            ("What is your name?", "My name is Tiny GLM."),
            ("Who made you?", "I was made by the glmserve project."),
        ]
    )
    return Turn("chat", ask, answer, ("The user wants to talk.", "I answer politely."))


TASKS: Final[Mapping[Task, int]] = {
    capital: 8,
    opposite: 4,
    sound: 3,
    translation: 4,
    emoji: 2,
    after: 3,
    addition: 9,
    subtraction: 6,
    product: 4,
    long_addition: 6,
    comparison: 3,
    story_problem: 4,
    repeat: 9,
    say_times: 3,
    counting: 6,
    bullets: 5,
    first_or_last: 4,
    reversing: 4,
    days_of_week: 2,
    json_record: 9,
    json_array: 4,
    notes: 7,
    greeting: 4,
}
"""How often each is drawn, relative to the others."""


def draw(rng: Random) -> Turn:
    return rng.choices(list(TASKS), list(TASKS.values()))[0](rng)
