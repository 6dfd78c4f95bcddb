"""Stored bytes of a trajectory against two JSON layouts, everything included: heap, TOAST and indexes.

- ``cumulative``: a json document a turn with the whole prompt so far, as stores of single model calls keep it.
- ``deltas``: a jsonb document a turn with exactly what a segment holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psycopg

from agentrl.store.postgres import PostgresStore
from agentrl.types import Segment
from benchmarks.report import Row, at_most
from benchmarks.store.context import Context
from benchmarks.store.payload import raw_bytes, trajectory
from benchmarks.store.server import database
from benchmarks.store.world import Run, write_at_once

_OURS = """
  select sum(pg_total_relation_size(c.oid))::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = 'agentrl' and c.relkind = 'r'
"""
_KEY = "trajectory bigint, seg bigint, primary key (trajectory, seg)"


def measure(context: Context) -> list[Row]:
    n = context.size(64, 2)
    with database(context.server) as url:
        store = PostgresStore(url, pool_size=1)
        run = Run(store)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create table public.cumulative (doc json, {_KEY})".encode())
            connection.execute(f"create table public.deltas (doc jsonb, {_KEY})".encode())
            before = _bytes(connection, _OURS)
            raw = 0
            for seed, episode in enumerate(run.open(n)):
                segments = trajectory(seed, version=run.version)
                raw += raw_bytes(segments)
                write_at_once(store, episode, segments)
                _insert(connection, "cumulative", seed, cumulative(segments))
                _insert(connection, "deltas", seed, (delta(s) for s in segments))
            ours = _bytes(connection, _OURS) - before
            size = {t: _bytes(connection, f"select pg_total_relation_size('public.{t}')") for t in ("cumulative", "deltas")}
        store.close()
    value = f"{_kb(ours, n)} (raw {_kb(raw, n)})"
    return [
        at_most("stored bytes a trajectory (32,000 tokens, 30 turns)", value,
                f"JSON with cumulative prompts: {_kb(size['cumulative'], n)}", ours / size["cumulative"], 0.25),
        at_most("the same", value, f"JSONB of the same deltas: {_kb(size['deltas'], n)}", ours / size["deltas"], 1.0),
    ]  # fmt: skip


def _kb(n_bytes: int, n: int) -> str:
    return f"{n_bytes / n / 1000:,.0f} kB"


def _bytes(connection: psycopg.Connection, statement: str) -> int:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return int(row[0])


def _insert(connection: psycopg.Connection, table: str, key: int, documents: Iterator[dict[str, Any]]) -> None:
    statement = f"insert into public.{table} (trajectory, seg, doc) values (%s, %s, %s)"
    rows = [(key, i, json.dumps(doc, separators=(",", ":"))) for i, doc in enumerate(documents)]
    connection.cursor().executemany(statement.encode(), rows)


def delta(s: Segment) -> dict[str, Any]:
    """What a segment holds, as JSON; numbers in their shortest exact form."""
    return {
        "observation": s.observation.tolist(),
        "action": s.action.tolist(),
        "logprobs": shortest(s.logprobs),
        "observation_text": s.observation_text,
        "action_text": s.action_text,
    }


def cumulative(segments: Sequence[Segment]) -> Iterator[dict[str, Any]]:
    """Each turn with all ids before its action; its texts are still those of the turn alone."""
    prompt: list[int] = []
    for s in segments:
        prompt += s.observation.tolist()
        yield delta(s) | {"observation": list(prompt)}
        prompt += s.action.tolist()


def shortest(values: np.ndarray) -> list[float]:
    """float32 values as the floats that print with the fewest digits."""
    return [float(str(v)) for v in values]
