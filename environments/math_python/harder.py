"""Generated problems for real models: families of questions whose answers are computed here, exactly.

A question is held out by a hash of its text, so no question is in both splits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import lru_cache

from agentrl.environment import Task
from agentrl.environment.sources import is_heldout
from environments.splits import HELDOUT_SHARE

Problem = tuple[str, str]
"""Question and answer."""


@lru_cache(maxsize=1)
def _divisor_counts() -> list[int]:
    counts = [0] * 4000
    for divisor in range(1, len(counts)):
        for multiple in range(divisor, len(counts), divisor):
            counts[multiple] += 1
    return counts


def _divisors(rng: random.Random) -> Problem:
    low, width, k = rng.randint(100, 900), rng.randint(500, 3000), rng.choice((6, 8, 10, 12, 16))
    count = _divisor_counts()[low : low + width].count(k)
    return f"How many integers n with {low} <= n < {low + width} have exactly {k} positive divisors?", str(count)


def _power(rng: random.Random) -> Problem:
    base, exponent, modulus = rng.randint(3, 99), rng.randint(200, 9999), rng.randint(101, 9999)
    return f"What is the remainder of {base}^{exponent} divided by {modulus}?", str(pow(base, exponent, modulus))


def _system(rng: random.Random) -> Problem:
    while True:
        a, b, c, d = (rng.choice((-1, 1)) * rng.randint(2, 12) for _ in range(4))
        if a * d - b * c:
            break
    x, y = rng.randint(-20, 20), rng.randint(-20, 20)
    question = f"Find x + y if {a}x + ({b})y = {a * x + b * y} and {c}x + ({d})y = {c * x + d * y}."
    return question, str(x + y)


def _coins(rng: random.Random) -> Problem:
    coins, total = sorted(rng.sample(range(2, 26), 3)), rng.randint(100, 400)
    ways = [1] + [0] * total
    for coin in coins:
        for amount in range(coin, total + 1):
            ways[amount] += ways[amount - coin]
    listed = ", ".join(map(str, coins))
    return f"In how many ways can coins worth {listed} make a total of {total}? The order of coins does not matter.", str(
        ways[total]
    )


def _derivative(rng: random.Random) -> Problem:
    terms = [(rng.randint(2, 9), power) for power in sorted(rng.sample(range(2, 8), 2), reverse=True)]
    shown = " + ".join(f"{factor}*x^{power}" for factor, power in terms)
    answer = " + ".join(f"{factor * power}*x^{power - 1}" for factor, power in terms)
    return f"What is the derivative of {shown} with respect to x?", answer


def _probability(rng: random.Random) -> Problem:
    red, blue, drawn = rng.randint(4, 15), rng.randint(4, 15), rng.randint(3, 4)
    wins, all_ways = math.comb(red, drawn), math.comb(red + blue, drawn)
    shared = math.gcd(wins, all_ways)
    question = (
        f"An urn holds {red} red and {blue} blue balls. {drawn} are drawn without putting any back. "
        "What is the probability that all of them are red? Give an exact fraction."
    )
    return question, f"{wins // shared}/{all_ways // shared}"


def _weekday(rng: random.Random) -> Problem:
    day = date(1950, 1, 1) + timedelta(days=rng.randrange(50_000))
    return f"Which day of the week is {day.day} {day:%B} {day.year}?", f"{day:%A}"


FAMILIES: tuple[Callable[[random.Random], Problem], ...] = (
    _divisors, _power, _system, _coins, _derivative, _probability, _weekday,
)  # fmt: skip


def generate(split: str, seed: int) -> Iterator[Task]:
    """Tasks of ``split`` without end, no question twice."""
    rng = random.Random(f"math_python/harder/{split}/{seed}")
    seen: set[str] = set()
    while True:
        family = rng.choice(FAMILIES)
        question, answer = family(rng)
        if question not in seen and is_heldout(question, HELDOUT_SHARE) == (split == "heldout"):
            seen.add(question)
            name = family.__name__.strip("_")
            yield Task(f"{name}/{len(seen):05}", {"problem": question, "answer": answer}, split)
