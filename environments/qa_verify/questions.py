"""Generated questions about ten countries: four facts of each, asked in eight ways.

A question is held out by a hash of its text. Each fact is asked in other words in training: what is held out is a way to ask.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl.environment import Task
from agentrl.environment.sources import is_heldout
from environments.splits import HELDOUT_SHARE

FACTS = {
    "France": ("Paris", "French", "Europe", "euro"),
    "Japan": ("Tokyo", "Japanese", "Asia", "yen"),
    "Egypt": ("Cairo", "Arabic", "Africa", "pound"),
    "Norway": ("Oslo", "Norwegian", "Europe", "krone"),
    "Poland": ("Warsaw", "Polish", "Europe", "zloty"),
    "Kenya": ("Nairobi", "Swahili", "Africa", "shilling"),
    "Vietnam": ("Hanoi", "Vietnamese", "Asia", "dong"),
    "Sweden": ("Stockholm", "Swedish", "Europe", "krona"),
    "Peru": ("Lima", "Spanish", "America", "sol"),
    "Italy": ("Rome", "Italian", "Europe", "euro"),
}
"""Country -> capital, language, continent, currency."""
ASPECTS = ("capital", "language", "continent", "currency")
WORDS = {
    "capital": ("the capital", "the seat of government"),
    "language": ("the main language", "the language most people speak"),
    "continent": ("the continent", "the part of the world"),
    "currency": ("the currency", "the money"),
}
FORMS = ("What is {what} of {country}?", "Name {what} of {country}.", "{country}: {what}?", "Of {country}, tell {what}.")


def generate(split: str, seed: int) -> Iterator[Task]:
    """Tasks of ``split`` without end, drawn with repetition."""
    rng = random.Random(f"qa_verify/{split}/{seed}")
    index = 0
    while True:
        country, aspect = rng.choice(list(FACTS)), rng.choice(ASPECTS)
        question = rng.choice(FORMS).format(what=rng.choice(WORDS[aspect]), country=country)
        if is_heldout(question, HELDOUT_SHARE) == (split == "heldout"):
            payload = {"question": question, "answers": [answer(country, aspect)], "country": country, "aspect": aspect}
            yield Task(f"{country}/{aspect}/{index:05}", payload, split)
            index += 1


def answer(country: str, aspect: str) -> str:
    """The right answer to a question."""
    return FACTS[country][ASPECTS.index(aspect)]
