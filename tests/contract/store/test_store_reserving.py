"""Places reserved for long items, and groups that are given up at their deadline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from store_bench import Bench, World, graded, segment

from agentrl.errors import Fenced
from agentrl.types import Opened, Place

VECTOR = json.loads((Path(__file__).parents[2] / "data" / "algorithm_vectors.json").read_text())["vectors"]["long_reservation"]
GIVEN = VECTOR["inputs"]
CASES = list(zip(GIVEN["cases"], VECTOR["expected"]["result"], strict=True))
LONG = {"long_tokens": 20, "long_share": GIVEN["q"], "long_wait_s": float(GIVEN["t_max"])}


def finish(bench: Bench, episode: Opened, n: int) -> None:
    bench.store.write_segment(episode, segment(0, bench.version, n=n))
    bench.store.complete(episode, graded(1))


@pytest.mark.parametrize(("given", "taken"), CASES)
def test_long_reservation(world: World, given: tuple[int, int, int], taken: dict[str, int] | None) -> None:
    short, long, waited = given
    bench = world.bench(n_tasks=16, lag_bound=None, batch_min=GIVEN["B"], batch_max=GIVEN["B"], **LONG)
    for number, episode in enumerate(bench.open(short + long)):
        finish(bench, episode, 3 if number < short else 30)
    world.advance(bench, float(waited))
    sizes = [t.n_tokens for i in bench.claim().items for t in i.trajectories]
    found = (sum(s < 20 for s in sizes), sum(s >= 20 for s in sizes))
    assert found == ((taken["take_short"], taken["take_long"]) if taken else (0, 0))


def test_straggler__its_group_is_given_up_at_the_deadline(world: World) -> None:
    bench = world.bench(group_size=2, lag_bound=2, group_deadline_s=100.0)
    a, straggler, *_ = bench.open(4)
    bench.finish(a)
    world.advance(bench, 50.0)
    bench.open()
    assert bench.place(Place.GRADED) == 1
    world.store.renew_episodes("w", {straggler.trajectory: straggler.fence})
    world.advance(bench, 51.0)
    bench.ask()
    with pytest.raises(Fenced):
        world.store.write_segment(straggler, segment(0, bench.version))
    assert world.drop_reasons(bench)["group_incomplete"] >= 2
    bench.check()


def test_surplus_groups__none_is_lost(world: World) -> None:
    """Ten finished items, batches of four: 4 + 4 + 2, the rest stays claimable."""
    bench = world.bench(n_tasks=10, lag_bound=None, batch_min=1, batch_max=4, max_running=10, target_steps=3)
    for episode in bench.open(10):
        bench.finish(episode)
    sizes = []
    for _ in range(3):
        items = bench.claim().items
        sizes.append(len(items))
        bench.commit(items)
    assert sizes == [4, 4, 2]
    assert bench.place(Place.CONSUMED) == 10
