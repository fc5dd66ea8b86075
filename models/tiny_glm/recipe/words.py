"""The words and facts that the corpus is made of. Small closed sets, so that a small model can know all of them."""

from __future__ import annotations

from typing import Final

CAPITALS: Final = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Ireland": "Dublin",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Cuba": "Havana",
    "Canada": "Ottawa",
    "Finland": "Helsinki",
    "Turkey": "Ankara",
}
OPPOSITES: Final = {
    "hot": "cold",
    "big": "small",
    "fast": "slow",
    "old": "young",
    "happy": "sad",
    "light": "dark",
    "high": "low",
    "open": "closed",
    "full": "empty",
    "hard": "soft",
    "early": "late",
    "near": "far",
    "wet": "dry",
    "rich": "poor",
    "loud": "quiet",
    "long": "short",
}
SOUNDS: Final = {
    "dog": "barks",
    "cat": "meows",
    "cow": "moos",
    "duck": "quacks",
    "lion": "roars",
    "sheep": "bleats",
    "horse": "neighs",
    "wolf": "howls",
    "snake": "hisses",
    "bee": "buzzes",
}
TRANSLATIONS: Final = {
    "French": {"hello": "bonjour", "thank you": "merci", "water": "eau", "coffee": "café", "yes": "oui", "no": "non"},
    "German": {
        "hello": "hallo",
        "thank you": "danke",
        "water": "Wasser",
        "coffee": "Kaffee",
        "yes": "ja",
        "no": "nein",
    },
    "Japanese": {"hello": "こんにちは", "thank you": "ありがとう", "water": "水", "yes": "はい", "no": "いいえ"},
    "Russian": {"hello": "привет", "thank you": "спасибо", "water": "вода", "yes": "да", "no": "нет"},
}
EMOJI: Final = {"smile": "🙂", "heart": "❤️", "star": "⭐", "rocket": "🚀", "tree": "🌳", "fish": "🐟"}
DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
NAMES: Final = (
    *("Anna", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jack", "Kira", "Leo", "Mia", "Noah"),
    *("Olga", "Paul", "Quinn", "Rosa", "Sam", "Tina", "Uma", "Victor", "Wendy", "Yara", "Zoe", "Amir", "Bella"),
    *("Carl", "Dora", "Emil", "Fay", "Greg", "Hana", "Ivan", "Jane", "Kurt", "Lily", "Max", "Nina", "Oscar"),
)
CITIES: Final = tuple(CAPITALS.values())
COLOURS: Final = (
    "red",
    "blue",
    "green",
    "yellow",
    "black",
    "white",
    "brown",
    "pink",
    "grey",
    "silver",
    "purple",
    "gold",
)
FRUITS: Final = ("apple", "pear", "plum", "cherry", "grape", "lemon", "melon", "peach", "fig", "kiwi", "mango", "lime")
ANIMALS: Final = (*SOUNDS, "fox", "mouse", "owl", "frog", "goat", "hen")
THINGS: Final = (
    "key",
    "hat",
    "book",
    "lamp",
    "cup",
    "bag",
    "coat",
    "chair",
    "clock",
    "pen",
    "ball",
    "boat",
    "bell",
    "map",
)
WORDS: Final = (*COLOURS, *FRUITS, *ANIMALS, *THINGS, *OPPOSITES)
CONDITIONS: Final = ("sunny", "cloudy", "rainy", "snowy", "windy", "foggy")
ASSISTANTS: Final = ("Robo", "Nova", "Pixel", "Atlas", "Echo", "Luna", "Milo", "Sage")
