"""Questions for real models: a shop with customers, products and orders, and queries that join, group and compare.

Each split has databases of its own. A question is held out by a hash of its text, so no question is in both splits.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import lru_cache

from agentrl.environment import Task
from agentrl.environment.sources import is_heldout
from environments.splits import HELDOUT_SHARE
from environments.sql_agent import database

SCRIPT = """\
CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, since INTEGER NOT NULL);
CREATE TABLE product(id INTEGER PRIMARY KEY, name TEXT NOT NULL, category TEXT NOT NULL, price REAL NOT NULL);
CREATE TABLE purchase(id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customer(id),
    product_id INTEGER NOT NULL REFERENCES product(id), quantity INTEGER NOT NULL, month INTEGER NOT NULL);
"""
CITIES = ("Porto", "Lyon", "Turin", "Graz", "Bergen", "Delft", "Cork", "Basel")
CATEGORIES = ("tools", "books", "toys", "garden", "kitchen", "music")
DATABASES = 40
_JOIN = "purchase JOIN customer ON customer.id = customer_id JOIN product ON product.id = product_id"
_FORMS = (
    (
        "How much money did customers from {city} spend on {category} in the months {low} to {high}? Round to two decimals.",
        "SELECT round(sum(quantity * price), 2) FROM {join} "
        "WHERE city = '{city}' AND category = '{category}' AND month BETWEEN {low} AND {high}",
    ),
    (
        "Which customer from {city} bought the most items of {category} since month {low}? In a tie, the first by name.",
        "SELECT customer.name FROM {join} WHERE city = '{city}' AND category = '{category}' AND month >= {low} "
        "GROUP BY customer.id ORDER BY sum(quantity) DESC, customer.name LIMIT 1",
    ),
    (
        "How many customers who joined before {year} never bought anything of {category} after month {low}?",
        "SELECT count(*) FROM customer WHERE since < {year} AND id NOT IN "
        "(SELECT customer_id FROM purchase JOIN product ON product.id = product_id "
        "WHERE category = '{category}' AND month > {low})",
    ),
    (
        "List the cities, in alphabetical order, whose customers together bought more than {amount} items of {category}.",
        "SELECT city FROM {join} WHERE category = '{category}' GROUP BY city HAVING sum(quantity) > {amount} ORDER BY city",
    ),
    (
        "What share of all items sold in month {low} went to {city}? Give a fraction of 1, rounded to three decimals.",
        "SELECT round(1.0 * sum(CASE WHEN city = '{city}' THEN quantity ELSE 0 END) / sum(quantity), 3) "
        "FROM {join} WHERE month = {low}",
    ),
    (
        "Which product of {category} earned the most with customers who joined in {year} or later? In a tie, first by name.",
        "SELECT product.name FROM {join} WHERE category = '{category}' AND since >= {year} "
        "GROUP BY product.id ORDER BY sum(quantity * price) DESC, product.name LIMIT 1",
    ),
)


@lru_cache(maxsize=64)
def data(seed: str) -> bytes:
    """The database of a seed."""
    rng = random.Random(f"sql_agent/shop/{seed}")
    customers = [(i, f"Customer {i:03}", rng.choice(CITIES), rng.randint(2010, 2024)) for i in range(1, 81)]
    products = [(i, f"Product {i:03}", rng.choice(CATEGORIES), rng.randint(100, 9900) / 100) for i in range(1, 41)]
    purchases = [(i, rng.randint(1, 80), rng.randint(1, 40), rng.randint(1, 9), rng.randint(1, 12)) for i in range(1, 601)]
    return database.make(SCRIPT, {"customer": customers, "product": products, "purchase": purchases})


def generate(split: str, seed: int) -> Iterator[Task]:
    """Tasks of ``split`` without end, drawn with repetition over `DATABASES` databases."""
    rng = random.Random(f"sql_agent/shop/{split}/{seed}")
    for index in itertools.count():
        own = f"{split}/{seed}/{index % DATABASES}"
        while True:
            question, query = _draw(rng)
            if is_heldout(question, HELDOUT_SHARE) != (split == "heldout"):
                continue
            rows = database.gold(data(own), query)
            if rows and all(cell is not None for row in rows for cell in row):
                break
        payload = {"question": question, "query": query, "database": own, "rows": rows, "ordered": True}
        yield Task(f"shop/{index:05}", payload, split)


def _draw(rng: random.Random) -> tuple[str, str]:
    question, query = rng.choice(_FORMS)
    low = rng.randint(1, 11)
    values = {
        "city": rng.choice(CITIES),
        "category": rng.choice(CATEGORIES),
        "low": low,
        "high": rng.randint(low, 12),
        "year": rng.randint(2012, 2023),
        "amount": rng.randint(30, 90),
        "join": _JOIN,
    }
    return question.format(**values), query.format(**values)
