"""The schema as people meet it: comments, constraints, views and saved queries on a real server."""

from __future__ import annotations

import time
import uuid

import numpy as np
import psycopg
import pytest
from store_bench import FAILED, LINEAGE, PostgresWorld, World, graded, segment

from agentrl.errors import UsageError
from agentrl.store.saved_queries import saved_queries
from agentrl.store.schema_setup import schema_files
from agentrl.types import DropReason, FinishReason, Origin, Outcome, Place, Purpose, Termination

_PARTITION = r"_r\d+_v\d+$"


def test_comments__every_table_view_and_column(postgres: PostgresWorld) -> None:
    missing = postgres.store.rows(
        "select c.relname::text, '' from pg_class c where c.relnamespace = 'agentrl'::regnamespace"
        " and c.relkind in ('r', 'p', 'v') and c.relname !~ %s and coalesce(obj_description(c.oid), '') = ''"
        " union all select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'agentrl'::regnamespace and c.relkind in ('r', 'p', 'v') and c.relname !~ %s and a.attnum > 0"
        " and not a.attisdropped and coalesce(col_description(c.oid, a.attnum), '') = ''",
        (_PARTITION, _PARTITION),
    )
    assert missing == []


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("trajectory.purpose", Purpose),
        ("trajectory.origin", Origin),
        ("trajectory.termination", Termination),
        ("trajectory.outcome", Outcome),
        ("trajectory.ended_to", Place),
        ("segment.finish_reason", FinishReason),
        ("dropped.reason", DropReason),
        ("event.to_place", Place),
    ],
)
def test_check_constraints__equal_the_enums(postgres: PostgresWorld, column: str, values: type) -> None:
    table, name = column.split(".")
    rows = postgres.store.rows(
        "select pg_get_constraintdef(oid) from pg_constraint where conrelid = %s::regclass and contype = 'c'",
        (f"agentrl.{table}",),
    )
    (definition,) = [d for (d,) in rows if f"({name} = ANY" in d]
    listed = {part.split("'")[1] for part in definition.split("ARRAY[")[1].split(",")}
    assert listed == {member.value for member in values}  # type: ignore[attr-defined]


def test_enum_placeholders__all_filled() -> None:
    assert all("@" not in text.replace("@>", "") for text in schema_files().values())


def test_segment_debug__decodes_what_was_stored(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    (episode,) = bench.open(1)
    values = np.array([-0.0, -1e-40, -3.4e38, -0.1], np.float32)
    mask = np.array([1, 0, 1, 1], np.uint8)
    postgres.store.write_segment(episode, segment(0, n=4, logprobs=values, loss_mask=mask))
    postgres.store.write_segment(episode, segment(1, n=4, unit_starts=np.array([0, 0, 1, 0], np.uint8)))
    ((ids, logprobs, masked, versions, units), (*_, marked)) = postgres.store.rows(
        "select ids, logprobs, loss_mask, token_versions, unit_starts from agentrl.segment_debug"
        " where trajectory = %s order by seg",
        (episode.trajectory,),
    )
    assert ids == [0, 1, 2, 3, 100, 101, 102, 103]
    assert np.array(logprobs, np.float32).tolist() == values.tolist()
    assert (masked, versions) == ([1, 0, 1, 1], [0, 0, 0, 0])
    assert (units, marked) == (None, [0, 0, 1, 0])


def test_unreadable_text__shown_with_replacement_characters(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    (episode,) = bench.open(1)
    postgres.store.write_segment(episode, segment(0, action_text="a\x00b\ud800c", action_raw=b"a\x00b\xff"))
    ((text, raw),) = postgres.store.rows(
        "select action_text, action_raw from agentrl.segment where trajectory = %s", (episode.trajectory,)
    )
    assert (text, raw) == ("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c", b"a\x00b\xff")


def test_each_trajectory__in_exactly_one_place(postgres: PostgresWorld) -> None:
    bench = postgres.bench(group_size=2, lag_bound=2)
    bench.train(1)
    a, *_ = bench.open()
    postgres.store.complete(a, FAILED)
    rows = postgres.store.rows(
        "select t.id, count(s.place) from agentrl.trajectory t left join agentrl.trajectory_state s on s.trajectory = t.id"
        " where t.run = %s group by t.id having count(s.place) <> 1",
        (bench.run,),
    )
    assert rows == []


def test_events__one_chain_per_trajectory(postgres: PostgresWorld) -> None:
    """Each move starts where the one before ended, and the last ends where the row is."""
    bench = postgres.bench(group_size=2, lag_bound=1, max_attempts=2)
    bench.train(1)
    a, *_ = bench.open()
    postgres.store.complete(a, FAILED)
    postgres.store.release_trainer(bench.run, bench.fence)
    bench.start(None, owner="second")
    broken = postgres.store.rows(
        "select * from (select trajectory, from_place, lag(to_place) over (partition by trajectory order by id) as before"
        " from agentrl.event where run = %s) e where from_place is distinct from before",
        (bench.run,),
    )
    assert broken == []
    astray = postgres.store.rows(
        "select s.* from agentrl.trajectory_state s join lateral (select to_place from agentrl.event e"
        " where e.trajectory = s.trajectory order by id desc limit 1) e on true where s.run = %s and e.to_place <> s.place",
        (bench.run,),
    )
    assert astray == []


@pytest.mark.parametrize(
    ("left", "came_to"),
    [("consumed", "dropped"), ("ready", "consumed"), ("evaluated", "ready"), (None, "lease"), ("lease", "live")],
)
def test_illegal_move__is_an_error_of_the_database(postgres: PostgresWorld, left: str | None, came_to: str) -> None:
    bench = postgres.bench(started=False)
    with pytest.raises(psycopg.errors.CheckViolation, match="event_is_a_legal_move"):
        postgres.store.rows(
            "insert into agentrl.event (run, trajectory, from_place, to_place, actor, why) values (%s, %s, %s, %s, 'a', 'b')",
            (bench.run, uuid.uuid4(), left, came_to),
        )


def test_keys__sort_by_time(postgres: PostgresWorld) -> None:
    keys = [postgres.store.row("select agentrl.new_id_v1()")[0] for _ in range(20) if time.sleep(0.002) is None]
    assert keys == sorted(keys)
    assert {k.version for k in keys} == {7}
    assert abs((keys[0].int >> 80) / 1000 - time.time()) < 3600


def test_partitions__belong_to_one_run_and_exist_ahead(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    for _ in range(49):
        bench.publish()
    rows = postgres.store.rows(
        "select c.relname::text from pg_class c join pg_inherits i on i.inhrelid = c.oid"
        " where i.inhparent = 'agentrl.segment'::regclass and c.relname like %s order by 1",
        (f"segment\\_r{bench.run}\\_v%",),
    )
    assert [r for (r,) in rows] == [f"segment_r{bench.run}_v0", f"segment_r{bench.run}_v64"]


def test_partition_creation__does_not_wait_for_a_readers_transaction(postgres: PostgresWorld) -> None:
    """A user's open SELECT must never stop writers."""
    bench = postgres.bench()
    (episode,) = bench.open(1)
    with postgres.store.transaction() as reader:
        reader.execute("select count(*) from agentrl.segment")
        other = postgres.bench()
        assert len(other.open(1)) == 1
        assert postgres.store.write_segment(episode, segment(0))


def test_saved_queries__all_run_with_and_without_a_run(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=1)
    bench.train(2)
    (failed, *_) = bench.open(1) or [None]
    if failed is not None:
        postgres.store.complete(failed, FAILED)
    evaluation = postgres.store.request_evaluation(bench.run, version=bench.version, step=2, split="heldout", n=1)
    opened = postgres.store.open_evaluation_episodes(evaluation.id, worker="w", request=uuid.uuid4(), n=1, lineage=LINEAGE)
    (episode,) = opened.episodes
    postgres.store.write_segment(episode, segment(0, bench.version))
    postgres.store.complete(episode, graded(1))
    for name, query in saved_queries().items():
        if "run" in query.parameters:
            for run in (bench.spec.name, bench.run, "latest"):
                result = postgres.store.query(name, run=run)
                assert {row[0] for row in result.rows} <= {bench.spec.name}
            assert len(postgres.store.query(name).rows) >= len(result.rows)
    timeline = postgres.store.query("timeline", trajectory=episode.trajectory)
    assert [row[1] for row in timeline.rows] == ["live", "segment 0", "reward 1", "live -> grade_job", "grade_job -> evaluated"]


def test_staleness__shares_sum_to_one_per_step_and_overall(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=2)
    bench.train(3)
    rows = postgres.store.query("staleness", run=bench.spec.name).rows
    totals: dict[object, float] = {}
    for _, step, lag, trajectories, tokens, share in rows:
        assert 0 <= lag <= 2
        assert tokens == 7 * trajectories
        totals[step] = totals.get(step, 0.0) + share
    assert set(totals) == {None, 1, 2, 3}
    assert list(totals.values()) == pytest.approx([1.0] * 4)


def test_query_of_an_unknown_run__named(postgres: PostgresWorld) -> None:
    postgres.bench(started=False)
    with pytest.raises(UsageError, match="no such run"):
        postgres.store.query("steps", run="no such run")


def test_query_wrong_names__nearest_offered(world: World) -> None:
    with pytest.raises(UsageError, match="'conservation'"):
        world.store.query("conservatoin")
    with pytest.raises(UsageError, match="'run'"):
        world.store.query("conservation", rum=1)


def test_query_conservation__by_run(world: World) -> None:
    bench = world.bench()
    bench.open(1)
    result = world.store.query("conservation", run=bench.spec.name)
    (row,) = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    assert (row["run"], row["created"], row["live"], row["holds"]) == (bench.spec.name, 1, 1, True)
