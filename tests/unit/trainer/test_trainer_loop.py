"""The trainer's loop over a store: how much a step takes, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loop_samples import Chooser, config_of, loop_of, rollouts_of

from agentrl.trainer.loop import TrainerLoop
from agentrl.types import Opened, Place


def sizes(loop: TrainerLoop) -> list[int]:
    return [sum(len(i.trajectories) for i in claim.items) for claim in rollouts_of(loop).claims if claim.items]


def few(n: int) -> Chooser:
    """At most ``n`` episodes end each time the trainer asks."""

    def chosen(running: list[Opened]) -> Sequence[Opened]:
        return running[:n]

    return chosen


def test_batch_min__an_update_starts_there_and_takes_at_most_batch(tmp_path: Path) -> None:
    ends = iter([3, 1, 16, 16])
    loop = loop_of(config_of("sao", "trainer.batch_min=4"), tmp_path, ends=lambda running: running[: next(ends)])
    assert loop.train()
    assert sizes(loop) == [4, 8, 8]
    places = loop.store.conservation(loop.run.id).places
    assert places[Place.CONSUMED] == 20


def test_batch_min__the_batch_without_it(tmp_path: Path) -> None:
    loop = loop_of(config_of("sao"), tmp_path, ends=few(3))
    assert loop.train()
    assert sizes(loop) == [8, 8, 8]


def test_end_of_the_target__what_is_left_is_not_lost(tmp_path: Path) -> None:
    loop = loop_of(config_of("sao", "trainer.batch_min=2"), tmp_path, ends=few(3))
    assert loop.train()
    check = loop.store.conservation(loop.run.id)
    assert check.holds
    assert check.places[Place.CONSUMED] == sum(sizes(loop)) < 24


def test_last_batch__is_short_when_no_more_can_arise(tmp_path: Path) -> None:
    ends = iter([5, 16, 16])
    config = config_of("sao", "trainer.batch_min=4")
    loop = loop_of(config, tmp_path, ends=lambda running: running[: next(ends)], target_steps=2)
    assert loop.train()
    assert sizes(loop) == [5, 8, 3]
    assert rollouts_of(loop).claims[-1].waiting == "nothing"
    assert loop.store.conservation(loop.run.id).places[Place.CONSUMED] == 16
