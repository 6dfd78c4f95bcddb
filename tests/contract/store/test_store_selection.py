"""What is trained against what was opened: the report finds the long, the hard and the slow work that is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from store_bench import CANCELLED, Bench, PostgresWorld, graded, keys, segment

from agentrl.types import DropReason

VECTOR = json.loads((Path(__file__).parents[2] / "data" / "algorithm_vectors.json").read_text())["vectors"]["sampling_bias"]
LENGTHS = {"short": 4, "medium": 20, "long": 90}


def report(bench: Bench, dimension: str) -> dict[str, dict[str, object]]:
    rows = bench.store.query("selection_bias", run=bench.spec.name, limit=1000).records()
    return {str(r["bucket"]): r for r in rows if r["dimension"] == dimension}


def test_selection_bias__inclusion_of_the_reference(embedded_world: PostgresWorld) -> None:
    """Launched and trained counts of the reference vector by length; what was not trained is dropped in its step."""
    launched, trained = VECTOR["inputs"]["launched"], VECTOR["inputs"]["trained"]
    total = sum(launched.values())
    bench = embedded_world.bench(lag_bound=None, batch_min=total, batch_max=total)
    names = [name for name, n in launched.items() for _ in range(n)]
    length = {}
    for name, episode in zip(names, bench.open(total), strict=True):
        bench.store.write_segment(episode, segment(n=LENGTHS[name]))
        bench.store.complete(episode, graded())
        length[episode.trajectory] = name
    left = dict(trained)
    kept, dropped = [], []
    for item in bench.claim().items:
        name = length[item.item]
        left[name] -= 1
        (kept if left[name] >= 0 else dropped).append(item)
    bench.commit(kept, dropped=[(item, token, DropReason.OVERLONG) for item, token in keys(dropped)])
    rows = report(bench, "length")
    expected = VECTOR["expected"]
    for name, n in LENGTHS.items():
        row = rows[str(n)]
        assert (row["trained"], row["dropped"], row["pending"]) == (trained[name], launched[name] - trained[name], 0)
        assert row["inclusion"] == pytest.approx(expected["inclusion"][name])
        assert row["relative"] == pytest.approx(expected["relative"][name])
        assert row["tvd"] == pytest.approx(expected["tvd"])
        assert row["biased"] is (name in expected["alert_buckets"])


def test_selection_bias__by_turns_time_reward_and_task(embedded_world: PostgresWorld) -> None:
    bench = embedded_world.bench(n_tasks=4, lag_bound=3)
    first, second, third, fourth = bench.open(4)
    for episode in (first, second):
        bench.finish(episode, value=0.25)
    bench.store.write_segment(third, segment(0))
    bench.store.write_segment(third, segment(1))
    bench.store.complete(third, CANCELLED)
    bench.store.write_segment(fourth, segment(0))
    embedded_world.advance(bench, 50.0)
    claim = bench.claim(2, 2)
    bench.commit(claim.items)
    turns = report(bench, "turns")
    assert {b: (r["trained"], r["dropped"], r["pending"]) for b, r in turns.items()} == {"1": (2, 0, 1), "2": (0, 1, 0)}
    assert (turns["1"]["inclusion"], turns["2"]["inclusion"]) == (1.0, 0.0)
    assert not any(r["biased"] for r in turns.values()), "three episodes prove nothing"
    rewards = report(bench, "reward")
    assert {b: (r["trained"], r["dropped"], r["pending"]) for b, r in rewards.items()} == {"0.25": (2, 0, 0), "none": (0, 1, 1)}
    tasks = report(bench, "task")
    assert {b: (r["trained"], r["dropped"], r["pending"]) for b, r in tasks.items()} == {
        first.task.id: (1, 0, 0), second.task.id: (1, 0, 0), third.task.id: (0, 1, 0), fourth.task.id: (0, 0, 1),
    }  # fmt: skip
    assert tasks[fourth.task.id]["inclusion"] is None, "what still runs is in neither share"
    walls = report(bench, "wall_s")
    assert sum(int(str(r["pending"])) for r in walls.values()) == 1
    assert all(float(b.split(" to ")[0]) >= 50.0 for b in walls)


def test_selection_bias__a_retry_counts_beside_the_attempt_it_repeats(embedded_world: PostgresWorld) -> None:
    bench = embedded_world.bench(n_tasks=1)
    (episode,) = bench.open(1)
    bench.store.complete(episode, CANCELLED)
    (again,) = bench.open(1)
    assert again.attempt == 2
    (row,) = report(bench, "task").values()
    assert (row["trained"], row["dropped"], row["pending"]) == (0, 1, 1)


def test_selection_bias__a_run_without_episodes_has_no_rows(embedded_world: PostgresWorld) -> None:
    assert report(embedded_world.bench(), "length") == {}
