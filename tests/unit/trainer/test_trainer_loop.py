"""The trainer's loop over a store: how much a step takes, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from loop_samples import Chooser, config_of, loop_of, rollouts_of

from agentrl.errors import RunFailed
from agentrl.store.contract import Claim, StepCommit
from agentrl.trainer.loop import TrainerLoop
from agentrl.types import EpisodeEnd, Opened, Outcome, Place, Termination


def sizes(loop: TrainerLoop) -> list[int]:
    return [sum(len(i.trajectories) for i in claim.items) for claim in rollouts_of(loop).claims if claim.items]


def steps_of(loop: TrainerLoop) -> list[StepCommit]:
    return [step.commit for step in rollouts_of(loop)._store._runs[loop.run.id].steps]


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
    loop = loop_of(config_of("sao", "trainer.batch_min=2", "staleness.lag=3"), tmp_path, ends=few(3))
    assert loop.train()
    check = loop.store.conservation(loop.run.id)
    assert check.holds
    assert check.places[Place.CONSUMED] == sum(sizes(loop)) < 24


def test_last_batch__is_short_when_no_more_can_arise(tmp_path: Path) -> None:
    ends = iter([5, 5, 16])
    config = config_of("sao", "trainer.batch_min=4")
    loop = loop_of(config, tmp_path, ends=lambda running: running[: next(ends)], target_steps=2)
    assert loop.train()
    assert sizes(loop) == [5, 5, 3]
    assert rollouts_of(loop).claims[-1].waiting == "nothing"
    assert loop.store.conservation(loop.run.id).places[Place.CONSUMED] == 13


class Late:
    """The first episode of each round ends only when the next round is under way."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, running: list[Opened]) -> Sequence[Opened]:
        new = [e for e in running if e.task_index >= self.seen]
        self.seen += len(new)
        return [e for e in running if e not in new[:1]]


def test_drop_last__what_is_late_counts_in_the_next_round(tmp_path: Path) -> None:
    config = config_of("sao", "trainer.schedule=drop_last", "trainer.batch=10", "trainer.drop_share=0.1")
    loop = loop_of(config, tmp_path, ends=Late())
    assert loop.train()
    assert sizes(loop) == [9, 9, 9]
    lags = [sorted(item.lag for item in claim.items) for claim in rollouts_of(loop).claims if claim.items]
    assert lags == [[0] * 9, [0] * 8 + [1], [0] * 8 + [1]]
    metrics = [step.metrics for step in steps_of(loop)]
    assert [(m["carried_over"], m["late"]) for m in metrics] == [(1, 0), (1, 1), (1, 1)]
    assert len(rollouts_of(loop).opened) == 10 + 9 + 9
    check = loop.store.conservation(loop.run.id)
    assert (check.places[Place.CONSUMED], check.places[Place.LIVE], check.places[Place.DROPPED]) == (27, 1, 0)


def test_drop_last__above_the_share_the_update_waits(tmp_path: Path) -> None:
    ends = iter([8, 0, 1, 10])
    config = config_of("sao", "trainer.schedule=drop_last", "trainer.batch=10", "trainer.drop_share=0.1", "trainer.steps=2")
    loop = loop_of(config, tmp_path, ends=lambda running: running[: next(ends)])
    assert loop.train()
    assert [len(claim.items) for claim in rollouts_of(loop).claims] == [0, 0, 9, 10]


@pytest.mark.parametrize("schedule", ["synchronous", "async"])
def test_pinned_version__older_weights_in_a_pinned_round_stop_the_run(tmp_path: Path, schedule: str) -> None:
    """The store allows a lag of 1 here, as if its bound had been lost: the trainer must see it by itself."""
    loop = loop_of(config_of("sao", f"trainer.schedule={schedule}"), tmp_path, lag_bound=1, ahead=None)
    if schedule == "async":
        assert loop.train()
        return
    with pytest.raises(RunFailed, match=r"sampled by version 0, 1 policy updates before version 1"):
        loop.train()
    assert loop.store.find_run(loop.run.spec.name).step == 1


@pytest.mark.parametrize("preset", ["sao_turn", "grpo"])
@pytest.mark.parametrize("schedule", ["synchronous", "drop_last", "pipelined", "async"])
def test_schedule__trains_to_its_target(tmp_path: Path, preset: str, schedule: str) -> None:
    named = "group_async" if (schedule, preset) == ("async", "grpo") else schedule
    share = ["trainer.drop_share=0.34"] if schedule == "drop_last" else []
    config = config_of(preset, f"trainer.schedule={named}", "trainer.batch=24", "trainer.steps=2", *share)
    loop = loop_of(config, tmp_path, ends=few(11))
    assert loop.train()
    assert loop.store.find_run(loop.run.spec.name).updates == 2
    trained = [len(step.consumed) * config.algorithm.group_size for step in steps_of(loop)]
    assert all(config.pace.batch_min <= size <= 24 for size in trained)
    assert len(sizes(loop)) > 2 if named == "pipelined" else len(sizes(loop)) == 2
    lags = {item.lag for claim in rollouts_of(loop).claims for item in claim.items}
    assert lags == {0} if named in ("synchronous", "pipelined") else max(lags) <= 1
    assert loop.store.conservation(loop.run.id).holds


def test_pipelined__trains_on_parts_while_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three come, three are trained on; the update waits for the round, and its leases live until then."""
    config = config_of(
        "sao", "trainer.schedule=pipelined", "trainer.pipeline_part=3", "trainer.steps=1", "trainer.lease_s=1e-6"
    )
    loop = loop_of(config, tmp_path, ends=few(2))
    added: list[int] = []
    add, renewed = loop.team.add_part, []
    monkeypatch.setattr(loop.team, "add_part", lambda batch, lags: (added.append(len(batch.trajectories)), add(batch, lags)))
    renew = loop.store.renew_leases
    loop.store.renew_leases = lambda *a: (renewed.append(len(a[2])), renew(*a[:3], 60.0))
    claim = loop.store.claim
    loop.store.claim = lambda *a, **named: claim(*a, **(named | {"lease_s": 60.0}))
    assert loop.train()
    assert added == [4, 4]
    assert sizes(loop) == [4, 4]
    assert renewed == [4, 4, 8, 8]  # the first part, while the others are waited for, the second part, the step
    (step,) = steps_of(loop)
    assert len(step.consumed) == 8
    assert len({token for _, token in step.consumed}) == 2


@pytest.mark.parametrize(
    ("part", "held"), [([], [8, 8]), (["trainer.schedule=pipelined", "trainer.pipeline_part=3"], [4, 4, 8])]
)
def test_claimed__renewed_from_the_gate_to_the_commit(tmp_path: Path, part: list[str], held: list[int]) -> None:
    """The gate's pass over the first claim is as long as the update's; so is the wait for the rest of a round."""
    loop = loop_of(config_of("sao", "trainer.steps=1", *part), tmp_path, ends=few(4 if part else 8))
    seen: list[int] = []
    forward, claim, commit = loop.team.forward, loop.store.claim, loop.store.commit_step
    loop.team.forward = lambda rows: (seen.append(len(loop.leases)), forward(rows))[1]  # type: ignore[method-assign]
    loop.store.claim = lambda *a, **named: (seen.append(len(loop.leases)), claim(*a, **named))[1]
    loop.store.commit_step = lambda *a: (seen.append(len(loop.leases)), commit(*a))[1]
    assert loop.train()
    assert seen == [0, *held]
    assert not loop.leases


def test_pipelined__a_stop_in_a_round_gives_everything_back(tmp_path: Path) -> None:
    config = config_of("sao", "trainer.schedule=pipelined", "trainer.pipeline_part=3")
    loop = loop_of(config, tmp_path, ends=few(3))
    claim = loop.store.claim

    def stop_after_a_part(*arguments: object, **named: object) -> Claim:
        if len(rollouts_of(loop).claims) == 1:
            loop.stop.set()
        return claim(*arguments, **named)

    loop.store.claim = stop_after_a_part
    before = dict(loop.team.policy.export())
    loop.store._ends = lambda running: running[:3] if len(running) == 8 else []
    assert not loop.train()
    assert not loop.in_update
    loop.store.release_trainer(loop.run.id, loop.start.fence)
    places = loop.store.conservation(loop.run.id).places
    assert (places[Place.READY], places[Place.LIVE], places[Place.LEASE]) == (3, 5, 0)
    assert all(tensor.equal(before[name]) for name, tensor in loop.team.policy.export())


def test_pipelined__the_last_round_may_be_short(tmp_path: Path) -> None:
    config = config_of("sao", "trainer.schedule=pipelined", "trainer.pipeline_part=3", "trainer.steps=1")
    loop = loop_of(config, tmp_path)
    act, left = loop.store.act, iter([4, 1])

    def end_and_close() -> None:
        rollouts_of(loop)._ends = lambda running: running[: next(left, 0)]
        act()
        if len(rollouts_of(loop).claims) == 1:
            loop.store.set_run_status(loop.run.id, "interrupted")
            for episode in rollouts_of(loop).running:
                loop.store.complete(episode, EpisodeEnd(0, Termination.FAILED, Outcome.INFRASTRUCTURE, error="closed"))
            rollouts_of(loop).running.clear()

    loop.store.act = end_and_close
    assert loop.train()
    assert len(steps_of(loop)[0].consumed) == 5
