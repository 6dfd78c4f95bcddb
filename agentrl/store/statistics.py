"""How big the store is and how fast it grows, without reading it: what would need a scan is estimated and said to be so.

Numbers of a run whose trajectory rows take more than `EXACT_BYTES` are estimates: rows by the planner's statistics, tokens and
segments by a sample.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from agentrl.store.contract import WORK_PLACES
from agentrl.store.postgres_connection import PostgresConnection

EXACT_BYTES = 64 * 2**20
SAMPLE_BYTES = 4 * 2**20

_RUNS = """
  select r.id, r.name, r.status, h.step, h.updates, w.live, w.grade_job, w.graded, w.ready, w.lease,
         (select count(*) from agentrl.live x where x.run = r.id and x.purpose = 'eval')
           + (select count(*) from agentrl.grade_job x where x.run = r.id and x.purpose = 'eval'),
         q.trajectories, q.bytes
  from agentrl.run r
  cross join lateral agentrl.head_v1(r.id) h
  cross join lateral agentrl.work_v1(r.id) w
  cross join lateral (
    select coalesce(sum(created + evaluated), 0)::bigint as trajectories, coalesce(sum(bytes), 0)::bigint as bytes
    from agentrl.retired where run = r.id) q
  where %s::bigint is null or r.id = %s
  order by r.id
"""
_TABLES = """
  select t.parent, sum(t.bytes)::bigint, sum(greatest(c.reltuples, 0))::bigint, sum(pg_relation_size(c.oid))::bigint,
         bool_or(c.reltuples < 0 and pg_relation_size(c.oid) > 0)
  from agentrl.bucket_tables_v1(%s) t join pg_class c on c.relname = t.part and c.relnamespace = 'agentrl'::regnamespace
  group by t.parent order by t.parent
"""
_EXACT = """
  select count(*), coalesce(sum(n_segments), 0)::bigint, coalesce(sum(n_tokens), 0)::bigint
  from agentrl.trajectory where run = %s
"""
_SAMPLE = """
  select count(*), coalesce(avg(coalesce(n_segments, 0)), 0)::float8, coalesce(avg(coalesce(n_tokens, 0)), 0)::float8
  from agentrl.trajectory tablesample system ({percent}) where run = %s
"""
# Ids are UUIDs of version 7: those of the last hour are one range of the primary key.
_HOUR = """
  select (select count(*) from recent), (select coalesce(sum(n_tokens), 0)::bigint from recent),
         (select count(*) from agentrl.step s where s.run = %(run)s and s.at > now() - interval '1 hour')
"""
_RECENT = """
  with recent as (
    select t.n_tokens from agentrl.trajectory t
    where t.run = %(run)s and t.id >= encode(substring(int8send((extract(epoch from now() - interval '1 hour') * 1000)::bigint)
      from 3) || decode('00000000000000000000', 'hex'), 'hex')::uuid)
"""
_SHARED = """
  select c.relname::text, pg_total_relation_size(c.oid) from pg_class c
  where c.relnamespace = 'agentrl'::regnamespace and c.relkind = 'r' and c.relname !~ '_r[0-9]+_v[0-9]+$'
  order by 2 desc, 1
"""
_HOT = """
  select relname::text, n_live_tup, n_dead_tup from pg_stat_user_tables
  where schemaname = 'agentrl' and relname in ('run', 'reap', 'live', 'grade_job', 'graded', 'ready', 'lease')
  order by n_dead_tup desc, relname
"""
_OLDEST = """
  select pid, usename::text, application_name, state, extract(epoch from now() - xact_start)::float8
  from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null and backend_type = 'client backend'
  order by xact_start limit 1
"""


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """One run. ``about``: trajectories, segments and tokens are estimates."""

    run: str
    status: str
    step: int
    updates: int
    trajectories: int
    segments: int
    tokens: int
    about: bool
    places: dict[str, int]
    eval_open: int
    bytes: dict[str, int]
    """Of its partitions, by table."""
    hour_trajectories: int
    """Opened within the last hour."""
    hour_tokens: int
    hour_steps: int
    retired_trajectories: int
    retired_bytes: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The oldest transaction that is open in this database: what it may see can't be vacuumed."""

    pid: int
    user: str | None
    application: str | None
    state: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """The whole store, or one run and what all runs share."""

    runs: list[RunStatistics]
    shared_bytes: dict[str, int]
    """Of the tables that all runs share."""
    dead_rows: dict[str, tuple[int, int]]
    """Hot table -> live and dead rows, as the server last counted them."""
    oldest_transaction: OpenTransaction | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def store_statistics(store: PostgresConnection, run: int | None = None) -> StoreStatistics:
    """Of one run or of all; a few small queries a run."""
    oldest = store.rows(_OLDEST)
    return StoreStatistics(
        [_run_statistics(store, row) for row in store.rows(_RUNS, (run, run))],
        dict(store.rows(_SHARED)),
        {name: (live, dead) for name, live, dead in store.rows(_HOT)},
        OpenTransaction(*oldest[0]) if oldest else None,
    )


def _run_statistics(store: PostgresConnection, row: tuple[Any, ...]) -> RunStatistics:
    run, name, status, step, updates, *places, eval_open, retired_trajectories, retired_bytes = row
    tables = store.rows(_TABLES, (run,))
    trajectories, segments, tokens, about = _contents(store, run, tables)
    with store.session() as connection:
        hour = connection.execute((_RECENT + _HOUR).encode(), {"run": run}).fetchone()
    assert hour is not None
    return RunStatistics(
        run=name,
        status=status,
        step=step,
        updates=updates,
        trajectories=trajectories,
        segments=segments,
        tokens=tokens,
        about=about,
        places={place.value: n for place, n in zip(WORK_PLACES, places, strict=True)},
        eval_open=eval_open,
        bytes={parent: size for parent, size, *_ in tables},
        hour_trajectories=hour[0],
        hour_tokens=hour[1],
        hour_steps=hour[2],
        retired_trajectories=retired_trajectories,
        retired_bytes=retired_bytes,
    )


def _contents(store: PostgresConnection, run: int, tables: list[tuple[Any, ...]]) -> tuple[int, int, int, bool]:
    """Trajectories, segments, tokens of ended ones, and whether these are estimates."""
    for parent, _, counted, heap, uncounted in tables:
        if parent != "trajectory" or heap <= EXACT_BYTES:
            continue
        percent = min(100.0, 100.0 * SAMPLE_BYTES / max(heap, 1))
        seen, segments, tokens = store.row(_SAMPLE.format(percent=percent), (run,))
        rows = round(seen * 100 / percent) if uncounted else counted
        return rows, round(rows * segments), round(rows * tokens), True
    trajectories, segments, tokens = store.row(_EXACT, (run,))
    return trajectories, segments, tokens, False
