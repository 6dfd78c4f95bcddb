"""The docs say what the store does: the schema page is its comments, every SQL block runs, every query named exists."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from store_bench import Bench, Server

from agentrl.store.postgres import PostgresStore
from agentrl.store.reader import Reader
from agentrl.store.saved_queries import saved_queries
from agentrl.types import Reward

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("environments/**/*.md")])
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{n}")
    for page in PAGES
    for n, block in enumerate(re.findall(r"^```sql\n(.*?)^```", page.read_text(), re.M | re.S))
]


@pytest.fixture(scope="module")
def filled(embedded_server: Server) -> Iterator[Reader]:
    """A run with steps, a dropped trajectory and a verdict that was changed."""
    store = PostgresStore(embedded_server.database())
    bench = Bench(store, name="demo", lag_bound=2)
    bench.start()
    bench.publish()
    bench.train(3)
    ((trajectory,), *_) = store.rows("select trajectory from agentrl.consumed")
    store.regrade(trajectory, Reward(0.25, False, grader="second"))
    reader = Reader(store._url.render_as_string(hide_password=False))
    yield reader
    reader.close()
    store.close()


@pytest.mark.parametrize("statement", BLOCKS)
def test_sql_block__runs(filled: Reader, statement: str) -> None:
    assert filled.ask(statement.strip().rstrip(";")).result.columns


def test_docs__have_sql() -> None:
    assert len(BLOCKS) > 5


def test_queries_named_in_the_docs__exist() -> None:
    named = {n for page in PAGES for n in re.findall(r"agentrl db query (\w+)", page.read_text())} - {"NAME"}
    assert named - set(saved_queries()) == set()
    assert {"timeline", "tool_errors", "stuck"} <= named


def test_schema_page__is_what_the_database_says(embedded_server: Server) -> None:
    spec = importlib.util.spec_from_file_location("schema_page", ROOT / "scripts" / "schema_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    url = embedded_server.database()
    PostgresStore(url).close()
    with psycopg.connect(url) as connection:
        made = script.page(connection)
    assert made == script.PAGE.read_text(), "run: python scripts/schema_page.py"
    described = set(re.findall(r"^### (\w+) \((?:table|view)\)", made, re.M))
    with psycopg.connect(url) as connection:
        there = connection.execute(
            "select relname::text from pg_class where relnamespace = 'agentrl'::regnamespace and relkind in ('r', 'p', 'v')"
        ).fetchall()
    assert described == {name for (name,) in there}


def test_query_page__has_each_query_and_view_with_its_columns(filled: Reader) -> None:
    """The text below each example begins with the names of the columns that the example gives."""
    text = (ROOT / "docs" / "reference" / "queries.md").read_text()
    examples = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.M | re.S))
    views = filled.ask("select relname::text from pg_class where relname like 'v\\_%' and relkind = 'v'").result.rows
    assert set(examples) == set(saved_queries()) | {name for (name,) in views}
    for name, said in examples.items():
        asked, shown = re.findall(r"^```(?:sql)?\n(.*?)^```", said, re.M | re.S)
        if name in saved_queries():
            assert asked.startswith(f"agentrl db query {name}")
            given = {"trajectory": "00000000-0000-7000-8000-000000000000"} if name == "timeline" else {}
            columns = list(filled.saved(name, **given).result.columns)
        else:
            assert f"agentrl.{name}" in asked
            columns = list(filled.ask(asked.strip().rstrip(";")).result.columns)
        lines = shown.splitlines()
        assert columns in (lines[0].split(), [line.split()[0] for line in lines]), name


def test_links_between_pages__lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+\.md)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
