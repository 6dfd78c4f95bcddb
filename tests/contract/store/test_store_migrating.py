"""Migrating from the first store, with rows in it, gives the schema that a new database gets, and the rows go on to work."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url
from store_bench import Bench, Server, no_grace

from agentrl.errors import NotReadyError, UsageError
from agentrl.store.postgres import PostgresStore
from agentrl.store.schema_migration import SchemaStatus, migrate, schema_status
from agentrl.store.schema_setup import REVISION, WORKS_WITH, schema_files

FIRST = (Path(__file__).parent / "data" / "schema_0001.sql").read_text()

_CATALOG = {
    "columns": """
        select c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum), a.attcompression::text
        from pg_class c join pg_attribute a on a.attrelid = c.oid
        left join pg_attrdef d on (d.adrelid, d.adnum) = (c.oid, a.attnum)
        where c.relnamespace = 'agentrl'::regnamespace and c.relkind in ('r', 'p', 'v') and a.attnum > 0 and not a.attisdropped
          and c.relname !~ '_r\\d+_v\\d+$'""",
    "tables": """
        select c.relname::text, c.relkind::text, c.reloptions::text, obj_description(c.oid) from pg_class c
        where c.relnamespace = 'agentrl'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
          and c.relname !~ '_r\\d+_v\\d+$'""",
    "constraints": """
        select c.relname::text, pg_get_constraintdef(k.oid) from pg_constraint k join pg_class c on c.oid = k.conrelid
        where c.relnamespace = 'agentrl'::regnamespace and c.relname !~ '_r\\d+_v\\d+$'""",
    "indexes": """
        select tablename::text, indexdef from pg_indexes
        where schemaname = 'agentrl' and tablename !~ '_r\\d+_v\\d+$'""",
    "functions": """
        select proname::text, pg_get_function_identity_arguments(oid), pg_get_function_result(oid), prosrc, obj_description(oid)
        from pg_proc where pronamespace = 'agentrl'::regnamespace""",
    "rights": """
        select relname::text, has_table_privilege(to_regrole('agentrl_reader')::oid, oid, 'select') from pg_class
        where relnamespace = 'agentrl'::regnamespace and relkind in ('r', 'p', 'v') and relname !~ '_r\\d+_v\\d+$'
        union all
        select proname, has_function_privilege(to_regrole('agentrl_reader')::oid, oid, 'execute') from pg_proc
        where pronamespace = 'agentrl'::regnamespace""",
    "rights of workers": """
        select relname::text, has_table_privilege(to_regrole('agentrl_worker')::oid, oid, right_) from pg_class,
          unnest(array['select', 'insert', 'update', 'delete']) right_
        where relnamespace = 'agentrl'::regnamespace and relkind in ('r', 'p', 'v') and relname !~ '_r\\d+_v\\d+$'
        union all
        select proname, has_function_privilege(to_regrole('agentrl_worker')::oid, oid, 'execute') from pg_proc
        where pronamespace = 'agentrl'::regnamespace""",
    "views": "select viewname::text, definition from pg_views where schemaname = 'agentrl'",
}


def catalog(url: str) -> dict[str, set[tuple[object, ...]]]:
    with psycopg.connect(url) as connection:
        return {name: set(connection.execute(query.encode()).fetchall()) for name, query in _CATALOG.items()}


@pytest.fixture
def first_store(embedded_server: Server) -> str:
    """A database with the first schema and a run of two trained steps in it, written by SQL alone."""
    url = embedded_server.database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FIRST.encode())
        connection.execute(
            "insert into agentrl.run (name, environment, config, config_hash, seed, lag_bound, batch_min, batch_max,"
            " group_size, max_running, max_attempts, max_lease_attempts, lease)"
            " values ('old', 'toy', '{}', 'h', 7, 1, 2, 2, 1, 64, 3, 3, interval '60 s')"
        )
        connection.execute("insert into agentrl.reap (run) values (1)")
        connection.execute("insert into agentrl.task (run, split, idx, task_id, payload) values (1, 'train', 0, 't0', '{}')")
        connection.execute("insert into agentrl.task_cursor (run, split, n) values (1, 'train', 1)")
        connection.execute("select agentrl.ensure_partitions_v1(1, 0)")
    return url


NEW_COLUMNS = {
    "run": ("resume_partial", "origins", "ahead", "staleness_mode", "group_extra", "oversample"),
    "grp": ("extra",),
    "live": ("parked_at",),
    "segment": ("compacted", "unit_starts"),
    "trajectory": ("root", "parent_seg", "payload"),
    "grade_job": ("evidence",),
    "consumed": ("masked_versions", "masked_tokens"),
    "trained": ("local_advantages",),
    "policy_version": ("bytes", "phases", "removed_at"),
    "engine_version": (
        "outcome", "attempt", "transport", "bytes", "seconds", "phases", "error", "loader", "fence", "pinned",
    ),
}  # fmt: skip
"""What the second release did not have."""

LINEAGE = (
    '{"model": "m", "tokenizer_hash": "t", "template_hash": "c", "engine": "local", "engine_version": "1",'
    ' "engine_dtype": "float32", "sampling": {"temperature": 1.0},'
    ' "logprob_kind": "sampled", "environment": "toy", "environment_version": "1", "sandbox": "", "origin": "simulated"}'
)


def run_first_release(url: str, steps: int, start: bool = True) -> None:
    """What the first release's processes do, by the functions that they call."""
    with psycopg.connect(url, autocommit=True) as c:
        if start:
            (fence,) = c.execute("select fence from agentrl.start_trainer_v1(1, 'old trainer', 600::float8, null)").fetchone()
            version = c.execute(
                "select version from agentrl.stage_version_v1(1, %s::bigint, null, 0::bigint, 'w', 'c')", (fence,)
            ).fetchone()[0]
            c.execute("select agentrl.settle_version_v1(1, %s::bigint, %s::bigint, 'published')", (fence, version))
        (fence, version) = c.execute(
            "select trainer_fence, (select max(version) from agentrl.policy_version) from agentrl.run"
        ).fetchone()
        for _ in range(steps):
            (opened,) = c.execute(
                "select opened from agentrl.open_v1(1::bigint, 'w', gen_random_uuid(), 2::bigint, %s::bigint, %s)",
                (version, LINEAGE),
            ).fetchone()
            for trajectory in opened:
                (held,) = c.execute("select fence from agentrl.live where trajectory = %s", (trajectory,)).fetchone()
                c.execute(
                    "select agentrl.write_segment_v1(%s, %s, 0::bigint, 'h'::bytea, 0::bigint, %s::bigint, null, 1::bigint,"
                    " 1::bigint, '\\x0000000001000000'::bytea, '\\x000080bf'::bytea, null, 'stop', 'o', 'a', null,"
                    " '[]', '[]', null, null, null, 0::float8, 0::float8, 0::float8)",
                    (trajectory, held, version),
                )
                c.execute(
                    "select agentrl.complete_v1(%s, %s, 1::bigint, 'terminated', 'graded', null, false, 1::float8, true,"
                    " 'g', '1', '{}', 0::float8)",
                    (trajectory, held),
                )
            (claim,) = c.execute(
                "select agentrl.claim_v1(1::bigint, %s::bigint, 2::bigint, 2::bigint, 60::float8)", (fence,)
            ).fetchone()
            fates = [(i["item"], i["token"], "consumed") for i in claim["items"]]
            (step,) = c.execute("select step from agentrl.head_v1(1::bigint)").fetchone()
            c.execute(
                "select step from agentrl.commit_step_v1(1::bigint, %s::bigint, %s::bigint, true, %s::bigint, %s, '{}', '{}',"
                " %s::uuid[], %s::bigint[], %s)",
                (
                    fence,
                    step + 1,
                    version,
                    f"hash {step}",
                    *([f[i] for f in fates] for i in range(3)),
                ),
            )
            version = c.execute(
                "select version from agentrl.stage_version_v1(1::bigint, %s::bigint, %s::bigint, %s::bigint, %s, 'c')",
                (fence, version, step + 1, f"w{step}"),
            ).fetchone()[0]
            c.execute("select agentrl.settle_version_v1(1::bigint, %s::bigint, %s::bigint, 'published')", (fence, version))


def test_migrated_and_new__are_the_same(first_store: str, embedded_server: Server) -> None:
    run_first_release(first_store, steps=2)
    assert schema_status(make_url(first_store)).found == "pre_0001"
    assert migrate(make_url(first_store)) == ("pre_0002", "pre_0003", "post_0002", "post_0003")
    assert schema_status(make_url(first_store)).pending == ()
    migrated, new = catalog(first_store), catalog(fresh(embedded_server))
    for name in _CATALOG:
        assert migrated[name] == new[name], name


def test_rows_of_the_first_store__go_on_to_work(first_store: str) -> None:
    run_first_release(first_store, steps=2)
    migrate(make_url(first_store))
    store = PostgresStore(first_store)
    no_grace(store)
    conservation = store.conservation(1)
    assert conservation.holds
    assert conservation.created == 4
    run = store.find_run("old")
    assert run is not None
    assert (run.step, run.spec.group_deadline_s, run.spec.long_share) == (2, None, 0.0)
    (consumed,) = store.rows("select trajectory from agentrl.consumed limit 1")
    read = store.trajectory(consumed[0])
    assert read is not None
    assert read.segments[0].logprobs.tolist() == [-1.0]
    store.close()


def test_pre__leaves_the_first_release_running(first_store: str) -> None:
    run_first_release(first_store, steps=1)
    assert migrate(make_url(first_store), "pre") == ("pre_0002", "pre_0003")
    run_first_release(first_store, steps=2, start=False)
    with psycopg.connect(first_store) as connection:
        assert connection.execute("select step from agentrl.head_v1(1)").fetchone() == (3,)
    PostgresStore(first_store).close()
    assert migrate(make_url(first_store), "post") == ("post_0002", "post_0003")


def test_second_release__goes_on_between_pre_and_post(embedded_server: Server) -> None:
    """What its processes call stays, and a database between the phases has two newest revisions."""
    url = embedded_server.database()
    store = PostgresStore(url)
    bench = Bench(store, lag_bound=1)
    bench.start()
    bench.publish()
    store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop index agentrl.ready_run_oldest_update_at_item_idx")
        connection.execute("alter function agentrl.claim_v3 rename to claim_v2")
        connection.execute("alter function agentrl.claim_grades_v2 rename to claim_grades_v1")
        connection.execute("alter table agentrl.segment add column body_hash bytea not null")
        connection.execute("drop view agentrl.v_stuck")
        for table, columns in NEW_COLUMNS.items():
            drops = ", ".join(f"drop column {column} cascade" for column in columns)
            connection.execute(f"alter table agentrl.{table} {drops}".encode())
        connection.execute("update agentrl.alembic_version set version_num = 'post_0002'")
    with pytest.raises(NotReadyError, match="post_0002"):
        PostgresStore(url)
    assert migrate(make_url(url), "pre") == ("pre_0003",)
    assert schema_status(make_url(url)) == SchemaStatus("pre_0003", ("post_0003",))
    with psycopg.connect(url) as connection:
        for place in ("claim_v2", "claim_grades_v1", "more_can_arise_v2", "pick_v1", "work_v1"):
            assert connection.execute("select 1 from pg_proc where proname = %s", (place,)).fetchone()
        assert connection.execute("select name, holds from agentrl.conservation").fetchone() == (bench.spec.name, True)
    bench.store = PostgresStore(url)
    bench.train(1)
    bench.store.close()
    assert migrate(make_url(url), "post") == ("post_0003",)
    migrated, new = catalog(url), catalog(fresh(embedded_server))
    for name in _CATALOG:
        assert migrated[name] == new[name], name


def fresh(server: Server) -> str:
    """A new database with the newest schema."""
    url = server.database()
    PostgresStore(url).close()
    return url


def test_post_before_pre__refused(first_store: str) -> None:
    with pytest.raises(UsageError, match="come first"):
        migrate(make_url(first_store), "post")


def test_unmigrated__is_refused_with_the_command(first_store: str) -> None:
    with pytest.raises(NotReadyError, match="agentrl db migrate"):
        PostgresStore(first_store)


def test_open_transaction__is_named_and_nothing_changed(first_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.store.schema_migration.LOCK_TIMEOUT", "100ms")
    before = catalog(first_store)
    with psycopg.connect(first_store) as reader:
        reader.execute("select count(*) from agentrl.ready")
        with pytest.raises(NotReadyError, match="another transaction is open"):
            migrate(make_url(first_store))
    assert catalog(first_store) == before


def test_migrating_twice__changes_nothing(first_store: str) -> None:
    migrate(make_url(first_store))
    before = catalog(first_store)
    assert migrate(make_url(first_store)) == ()
    assert catalog(first_store) == before


def test_revisions__are_the_heads_of_the_chains() -> None:
    folder = Path(__file__).parents[3] / "agentrl" / "store" / "migrations" / "versions"
    names = sorted(p.stem for p in folder.glob("p*_*.py"))
    assert max(n for n in names if n.startswith("post")) == REVISION
    assert max(n for n in names if n.startswith("pre")) in WORKS_WITH


def test_functions__no_two_share_a_name() -> None:
    names = [m for t in schema_files("functions").values() for m in re.findall(r"create or replace function agentrl\.(\w+)", t)]
    assert len(names) == len(set(names)) > 50


def test_a_new_store__needs_no_migration(embedded_server: Server) -> None:
    url = embedded_server.database()
    assert schema_status(make_url(url)).found is None
    PostgresStore(url).close()
    assert migrate(make_url(url)) == ()
    bench = Bench(PostgresStore(url))
    assert bench.start().branch == 1
