"""Weights on their way: loads into engines, who lags, which files may go, what became of each version."""

from __future__ import annotations

from typing import Any

import pytest
from store_bench import Bench, PostgresWorld, World, segment

from agentrl.errors import Fenced, UnknownVersion, UsageError
from agentrl.store.loads import EngineLoad, PublishCost


def loaded(bench: Bench, engine: str, version: int | None = None, **more: Any) -> None:
    load = EngineLoad(engine, bench.version if version is None else version, **more)
    bench.store.record_engine_load(bench.run, load)


def lagging(bench: Bench, over: int = 1) -> list[tuple[str, int, int]]:
    return [(e.engine, e.version, e.behind) for e in bench.store.lagging_engines(bench.run, over)]


def uris(bench: Bench) -> dict[int, str]:
    return {v: bench.store.version(bench.run, v).uri for v in range(bench.version + 1)}


def test_lagging_engine__named_with_how_far_and_why(world: World) -> None:
    bench = world.bench(lag_bound=4)
    loaded(bench, "slow")
    loaded(bench, "fast")
    bench.train(1)
    loaded(bench, "fast", phases={"read": 0.5})
    assert lagging(bench) == []
    bench.train(2)
    loaded(bench, "fast", phases={"read": 0.5})
    loaded(bench, "slow", error="the disk is full", phases={"read": 0.1})
    assert lagging(bench) == [("slow", 0, 3)]
    assert lagging(bench, over=3) == []
    (slow,) = bench.store.lagging_engines(bench.run, 1)
    assert slow.error == "the disk is full"
    assert slow.behind_s >= 0
    loaded(bench, "slow")
    assert lagging(bench) == []


def test_lagging_engine__one_of_evaluations_stays_behind_by_intention(world: World) -> None:
    bench = world.bench(lag_bound=4)
    loaded(bench, "evaluation", pinned=True)
    bench.train(3)
    assert lagging(bench) == []


def test_lagging_engine__a_dead_worker_is_not_named(world: World) -> None:
    bench = world.bench(lag_bound=4, lease_s=0.0001)
    loaded(bench, "dead")
    bench.train(3)
    if world.kind == "memory":
        world.now += 1
    assert lagging(bench) == []


def test_lagging_engine__a_resumed_run_starts_with_none_behind(world: World) -> None:
    bench = world.bench(lag_bound=4)
    bench.train(1)
    saved = bench.checkpoint()
    loaded(bench, "engine")
    bench.train(3)
    assert lagging(bench) == [("engine", 1, 3)]
    world.take_over(bench, saved)
    assert lagging(bench, over=0) == []


def test_engine_load__of_a_version_without_a_row_is_refused(world: World) -> None:
    bench = world.bench()
    with pytest.raises(UnknownVersion):
        loaded(bench, "engine", 7)


def test_retire__keeps_what_somebody_may_still_load(world: World) -> None:
    bench = world.bench(lag_bound=9)
    bench.train(2)
    bench.checkpoint()
    bench.train(1)
    world.store.request_evaluation(bench.run, version=bench.version, step=3, split="heldout", n=1)
    bench.train(1)
    loaded(bench, "engine")
    bench.train(4)
    named = uris(bench)
    needed = world.store.needed_weights(bench.run, 2)
    assert needed == {named[v] for v in (0, 2, 3, 4, 7, 8)}, (
        "the first, a checkpoint's, an evaluation's, an engine's, the newest"
    )
    free = world.store.retire_weights(bench.run, bench.fence, keep=2, uris=[*named.values(), "left over"])
    assert free == {named[v] for v in (1, 5, 6)} | {"left over"}
    assert world.store.needed_weights(bench.run, 100) == needed
    bench.check()


def test_retire__a_resumes_copy_keeps_the_file_that_it_shares(world: World) -> None:
    bench = world.bench(lag_bound=9)
    bench.train(2)
    saved = bench.checkpoint()
    bench.train(1)
    world.take_over(bench, saved)
    assert world.store.version(bench.run, bench.version).uri == uris(bench)[2]
    free = world.store.retire_weights(bench.run, bench.fence, keep=1, uris=list(uris(bench).values()))
    assert free == {uris(bench)[1], uris(bench)[3]}


def test_retire__needs_the_fence(world: World) -> None:
    bench = world.bench()
    old = bench.fence
    world.take_over(bench)
    with pytest.raises(Fenced):
        world.store.retire_weights(bench.run, old, keep=1, uris=["x"])


def test_retire__what_was_removed_cant_be_evaluated(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=9)
    bench.train(3)
    postgres.store.retire_weights(bench.run, bench.fence, keep=1, uris=[uris(bench)[1]])
    with pytest.raises(UsageError, match=r"weights of version 1 .* were removed"):
        postgres.store.request_evaluation(bench.run, version=1, step=1, split="heldout", n=1)


def explained(bench: Bench) -> dict[Any, str]:
    rows = bench.store.query("versions", run=bench.spec.name).records()
    return {row["version"]: row["explanation"] for row in rows}


def test_versions__every_gap_is_explained(postgres: PostgresWorld) -> None:
    bench = postgres.bench(lag_bound=9)
    store, run = postgres.store, bench.run
    bench.train(1)
    saved = bench.checkpoint()
    bench.train(1, publish=False)
    damaged = store.stage_version(run, bench.fence, parent=1, updates=2, uri="damaged", checksum="c")
    assert explained(bench)[2] == "is being published"
    store.fail_version(run, bench.fence, damaged.version, PublishCost({"write": 0.5}, 10))
    assert explained(bench)[2] == "its file did not verify, so the name is burnt; no version took its place"
    again = store.stage_version(run, bench.fence, parent=2, updates=2, uri="again", checksum="c")
    store.publish_version(run, bench.fence, again.version, PublishCost({"export": 0.25, "write": 0.5}, 10))
    bench.version = again.version
    bench.train(1, publish=False)
    assert explained(bench)[None] == "step 3 is committed, its weights are being exported"
    store.stage_version(run, bench.fence, parent=3, updates=3, uri="killed", checksum="c")
    bench.version = 4
    store.publish_version(run, bench.fence, 4)
    bench.train(1, publish=False)
    store.release_trainer(run, bench.fence)
    assert explained(bench)[None].endswith("a resume goes back to a checkpoint")
    bench.start(saved, owner="second")
    bench.train(1, publish=False)
    store.stage_version(run, bench.fence, parent=bench.version, updates=2, uri="never verified", checksum="c")
    fence = bench.fence
    postgres.take_over(bench, saved)
    assert explained(bench) == {
        0: "the first weights",
        1: "published",
        2: "its file did not verify, so the name is burnt; the same weights became version 3",
        3: "left behind: a resume went back, branch 2 goes on with version 5",
        4: "left behind: a resume went back, branch 2 goes on with version 5",
        None: "step 4 was committed, its trainer ended before the weights got a name; branch 2 goes on without the step",
        5: "branch 2 starts with the weights of version 1 (a resume)",
        6: f"its trainer (fence {fence}) ended before it was published; branch 3 goes on with version 7",
        7: "branch 3 starts with the weights of version 1 (a resume)",
    }


def test_versions__how_long_publishing_took_and_who_loaded_it(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    store, run = postgres.store, bench.run
    bench.train(1, publish=False)
    version = store.stage_version(run, bench.fence, parent=0, updates=1, uri="w", checksum="c").version
    store.publish_version(run, bench.fence, version, PublishCost({"export": 0.25, "write": 0.5}, 1000))
    loaded(bench, "a", version, error="no such file", phases={"read": 0.1})
    loaded(bench, "a", version, phases={"read": 0.2}, bytes=1000)
    loaded(bench, "http://b", version, transport="tensor", loader="worker", phases={"pause": 0.1, "transfer": 0.3})
    row = next(r for r in store.query("versions", run=bench.spec.name).records() if r["version"] == version)
    assert (row["publish_s"], row["phases"], row["bytes"]) == (0.75, {"export": 0.25, "write": 0.5}, 1000)
    assert (row["engines"], row["failed_loads"]) == ("a, http://b", 1)
    assert row["loaded_s"] >= 0
    engines = {r["engine"]: r for r in store.query("engines", run=bench.spec.name).records()}
    assert (engines["a"]["attempt"], engines["a"]["loads"], engines["a"]["failed"]) == (2, 1, 0)
    assert engines["http://b"]["phases"] == {"pause": 0.1, "transfer": 0.3}
    assert engines["http://b"]["seconds"] == pytest.approx(0.4)


def test_engines__one_that_never_loaded_is_listed_with_its_error(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    loaded(bench, "new", error="damaged")
    (row,) = postgres.store.query("engines", run=bench.spec.name).records()
    assert (row["version"], row["behind"], row["failed"], row["last_error"]) == (None, None, 1, "damaged")


def test_lost_reply__the_same_load_is_one_row(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    for _ in range(2):
        loaded(bench, "a", phases={"read": 0.25})
        loaded(bench, "b", phases={"read": 0.5}, error="x")
    assert postgres.store.row("select count(*) from agentrl.engine_version where run = %s", (bench.run,)) == (2,)


def test_vacuum_of_loads__what_an_engine_holds_stays(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    loaded(bench, "a", phases={"read": 0.25})
    loaded(bench, "a", phases={"read": 0.5}, error="x")
    postgres.store.rows("select agentrl.vacuum_v1(%s, now() + interval '1 day')", (bench.run,))
    (row,) = postgres.store.query("engines", run=bench.spec.name).records()
    assert (row["version"], row["last_error"]) == (0, "x")


def test_running_episode__its_worker_counts_as_alive(world: World) -> None:
    bench = world.bench(lag_bound=9)
    (episode,) = bench.ask(1, worker="busy").episodes
    world.store.write_segment(episode, segment(0, 0))
    loaded(bench, "http://s", loader="busy")
    bench.train(2)
    assert lagging(bench) == [("http://s", 0, 2)]
