"""Invented worlds of people, companies and cities: documents about them, and questions that follow relations between them.

A question is a start and a chain of relations; about a fifth of all questions is held out, each by a hash of its text. In the
small size every task has a world of its own, so that who remembers what was true elsewhere knows nothing; the large world is
the same in every run.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.environment import Task
from agentrl.environment.sources import is_heldout
from agentrl.types import Json
from environments.splits import HELDOUT_SHARE

FIRST = ("Ada", "Bo", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal", "Ida", "Jan", "Kim", "Leo", "Mia", "Noa", "Otto", "Pia",
         "Quinn", "Rosa", "Sam", "Tess")  # fmt: skip
LAST = ("Stone", "Field", "Brook", "Hill", "Wood", "Marsh", "Lake", "Ford", "Dale", "Ridge", "Moor", "Glen", "Cliff", "Bay",
        "Heath", "Grove", "Pond", "Shore", "Vale", "Peak")  # fmt: skip
COLOUR = ("Red", "Blue", "Green", "Black", "White", "Grey", "Amber", "Silver", "Golden", "Violet")
TRADE = ("Mill", "Foundry", "Bakery", "Press", "Loom", "Forge", "Dairy", "Quarry", "Brewery", "Wharf")
CITIES = ("Porto", "Lyon", "Turin", "Graz", "Bergen", "Delft", "Gdansk", "Cork", "Basel", "Uppsala", "Seville", "Tartu",
          "Ghent", "Malmo", "Trieste", "Leeds")  # fmt: skip
RIVERS = ("Douro", "Rhone", "Po", "Mur", "Schie", "Vistula", "Lee", "Rhine", "Fyris", "Emajogi")


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a world is, which relations it has, and how many of them a question follows."""

    people: int
    companies: int
    relations: Mapping[str, Mapping[str, str]]
    """Kind of entity -> relation -> kind of what it leads to."""
    hops: tuple[int, ...]
    names: Mapping[str, Sequence[str]]
    """Kind of entity -> names to draw from."""
    prose: bool = False
    """Documents of several sentences instead of one line of facts."""


SMALL = Scale(
    people=10,
    companies=6,
    # Without circles: the first relation of a question stands in the last document of its chain and in none before.
    relations={"person": {"employer": "company"}, "company": {"seat": "city", "plant": "city"}, "city": {"river": "river"}},
    hops=(1, 2, 3),
    names={"person": FIRST[:10], "company": TRADE[:6], "city": CITIES[:6], "river": RIVERS[:6]},
)
LARGE = Scale(
    people=400,
    companies=100,
    relations={
        "person": {"employer": "company", "mentor": "person", "birthplace": "city"},
        "company": {"seat": "city", "head": "person", "supplier": "company"},
        "city": {"river": "river", "mayor": "person", "twin city": "city"},
    },
    hops=(2, 3, 4),
    names={
        "person": [f"{first} {last}" for first in FIRST for last in LAST],
        "company": [f"{colour} {trade}" for colour in COLOUR for trade in TRADE],
        "city": CITIES,
        "river": RIVERS,
    },
    prose=True,
)
_SENTENCES = (
    "The {relation} of {name} is {target}.",
    "{target} has been the {relation} of {name} for years.",
    "Asked about {name}, most people name {target} as the {relation}.",
)
_FILLER = (
    "Little else is known about the early years.",
    "Several letters of that time are lost.",
    "A longer account appeared in a local paper.",
    "The records were copied twice and differ in small things.",
)


@dataclass(slots=True)
class World:
    """Entities by kind, and the facts: (entity, relation) -> entity."""

    scale: Scale
    entities: dict[str, list[str]] = field(default_factory=dict)
    facts: dict[tuple[str, str], str] = field(default_factory=dict)

    def documents(self) -> Iterator[tuple[str, str]]:
        """Title and text of one for each entity that has facts."""
        rng = random.Random("search_agent/documents")
        for kind, relations in self.scale.relations.items():
            for name in self.entities[kind]:
                known = [(relation, self.facts[name, relation]) for relation in relations]
                yield name, _prose(rng, name, known) if self.scale.prose else _line(name, known)

    def question(self, rng: random.Random, split: str) -> dict[str, Json]:
        """A question of ``split`` with its answer, and the entities and relations on the way to it."""
        while True:
            path, chain = self._walk(rng, rng.choice(self.scale.hops))
            question = "What is the " + " of the ".join(reversed(chain)) + f" of {path[0]}?"
            if len(set(path)) == len(path) and is_heldout(question, HELDOUT_SHARE) == (split == "heldout"):
                return {"question": question, "answers": [path[-1]], "path": path, "chain": chain}

    def _walk(self, rng: random.Random, hops: int) -> tuple[list[str], list[str]]:
        kind = rng.choice(("person", "company"))
        path = [rng.choice(self.entities[kind])]
        chain: list[str] = []
        while len(chain) < hops and kind in self.scale.relations:
            relation = rng.choice(list(self.scale.relations[kind]))
            chain.append(relation)
            path.append(self.facts[path[-1], relation])
            kind = self.scale.relations[kind][relation]
        return path, chain


def tasks(split: str, seed: int) -> Iterator[Task]:
    """Small questions without end, each about a world of its own, which ``build(SMALL, payload["world"])`` gives."""
    rng = random.Random(f"search_agent/{split}/{seed}")
    for index in itertools.count():
        name = f"{split}/{seed}/{index}"
        payload = build(SMALL, name).question(rng, split)
        yield Task(_id(payload, index), {**payload, "world": name}, split)


def large_tasks(world: World, split: str, seed: int) -> Iterator[Task]:
    """Questions about one world without end, drawn with repetition."""
    rng = random.Random(f"search_agent/{split}/{seed}")
    for index in itertools.count():
        payload = world.question(rng, split)
        yield Task(_id(payload, index), payload, split)


def build(scale: Scale, name: str = "world") -> World:
    """The world of that name, always the same."""
    rng = random.Random(f"search_agent/{name}")
    world = World(scale)
    world.entities = {
        "person": rng.sample(scale.names["person"], scale.people),
        "company": rng.sample(scale.names["company"], scale.companies),
        "city": list(scale.names["city"]),
        "river": list(scale.names["river"]),
    }
    for kind, relations in scale.relations.items():
        for name in world.entities[kind]:
            told = {name}
            for relation, target in relations.items():
                found = rng.choice([other for other in world.entities[target] if other not in told])
                world.facts[name, relation] = found
                told.add(found)
    return world


def _id(payload: dict[str, Json], index: int) -> str:
    return f"{payload['path'][0].replace(' ', '-')}/{'+'.join(payload['chain']).replace(' ', '-')}/{index:05}"


def _line(name: str, known: list[tuple[str, str]]) -> str:
    return f"{name}: " + ", ".join(f"{relation} {target}" for relation, target in known)


def _prose(rng: random.Random, name: str, known: list[tuple[str, str]]) -> str:
    said = [rng.choice(_SENTENCES).format(relation=relation, name=name, target=target) for relation, target in known]
    said += rng.sample(_FILLER, 2)
    rng.shuffle(said)
    return " ".join(said)
