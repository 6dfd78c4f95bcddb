"""Runs: created once, found by name, several in one store without touching each other."""

from __future__ import annotations

import math
import uuid
from dataclasses import replace

import pytest
from store_bench import World

from agentrl.errors import BadValue, UsageError
from agentrl.types import Place, Task


def test_run__found_as_it_was_created(world: World) -> None:
    bench = world.bench(started=False, config={"z": 1, "a": [1e16, 1.0, None]}, target_steps=3, max_age_s=90.5)
    found = world.store.find_run(bench.spec.name)
    assert found == bench.row
    assert found.spec == bench.spec
    assert list(found.spec.config) == ["z", "a"]
    assert (found.status, found.step, found.updates) == ("running", 0, 0)
    assert world.store.find_run("latest").id == bench.run
    assert world.store.find_run("no such run") is None


def test_run_name_taken__refused(world: World) -> None:
    bench = world.bench(started=False)
    with pytest.raises(UsageError, match="exists"):
        world.store.create_run(bench.spec, {})


def test_run_settings_that_contradict__refused(world: World) -> None:
    bench = world.bench(started=False)
    for wrong in ({"batch_min": 1, "lag_bound": 0}, {"group_size": 3}, {"batch_min": 5}, {"ahead": 2, "lag_bound": 1}):
        with pytest.raises(UsageError, match="contradict"):
            world.store.create_run(replace(bench.spec, name=str(uuid.uuid4()), **wrong), {})


def test_run_bad_json__field_named(world: World) -> None:
    bench = world.bench(started=False)
    spec = replace(bench.spec, name=str(uuid.uuid4()))
    with pytest.raises(BadValue, match=r"config\.a"):
        world.store.create_run(replace(spec, config={"a": math.nan}), {})
    with pytest.raises(BadValue, match=r"tasks\.train\[0\]\.payload\.x"):
        world.store.create_run(spec, {"train": [Task("t", {"x": "\x00"})]})
    assert world.store.find_run(spec.name) is None


def test_run_status__only_known_ones(world: World) -> None:
    bench = world.bench(started=False)
    world.store.set_run_status(bench.run, "finished")
    assert world.store.find_run(bench.spec.name).status == "finished"
    with pytest.raises(UsageError):
        world.store.set_run_status(bench.run, "sleeping")
    with pytest.raises(UsageError):
        world.store.set_run_status(10**9, "finished")


def test_runs__do_not_touch_each_other(world: World) -> None:
    one, two = world.bench(), world.bench()
    for episode in one.open():
        one.finish(episode)
    assert two.claim().items == []
    one.train(1)
    assert two.place(Place.CONSUMED) == 0
    assert one.place(Place.CONSUMED) == 2
    assert world.store.newest_version(two.run).version == 0
    one.check()
    two.check()


def test_unknown_ids__finders_none_others_usage_error(world: World) -> None:
    assert world.store.trajectory(uuid.uuid4()) is None
    assert world.store.newest_version(10**9) is None
    for call in (world.store.counts, world.store.conservation):
        with pytest.raises(UsageError):
            call(10**9)
    with pytest.raises(UsageError):
        world.store.start_trainer(10**9, owner="t", lease_s=1, checkpoint=None)
