"""Each alert fires on the fault that it is for, and none on a run that is well."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from store_bench import FAILED, Bench, PostgresWorld, segment

from agentrl.store.contract import StepCommit
from agentrl.store.reader import Reader
from agentrl.types import DropReason, EpisodeEnd, Outcome, Termination

WELL = {
    "reward_mean": 0.5, "reward_std": 0.3, "entropy": 0.4, "action_tokens": 200.0, "kl_k3": 0.01, "engine_gap_mean": 0.001,
    "ess_sequence": 0.95, "kept_fraction": 0.999, "lag_max": 1, "hit_rate": 1.0, "explained_variance": 0.4,
    "critic_grad_norm": 1.0, "truncated_share": 0.05, "uniform_groups": 0.2, "gradient_cosine": 0.1, "sync_share": 0.02,
    "reward_share": 0.05, "wait_s": 1.0, "wall_s": 10.0,
}  # fmt: skip
STEPS = 60
Fault = Callable[[int], Mapping[str, float]]
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "watch-a-run.md"


def run_of(world: PostgresWorld, fault: Fault, steps: int = STEPS, loss: str = "dis") -> Bench:
    """A run whose steps have the numbers of `WELL`, and those of ``fault``; only its ledger is real."""
    bench = world.bench(config={"algorithm": {"loss": loss}}, lag_bound=1)
    bench.train(1)
    world.store.rows(
        "update agentrl.step set metrics = '{}' where run = %s returning step", (bench.run,)
    )  # of a step that says nothing, no alert says anything
    for step in range(2, steps + 2):
        world.store.commit_step(
            bench.run, bench.fence,
            StepCommit(step, True, bench.version, f"hash {step}", {}, {**WELL, **fault(step)}, consumed=()),
        )  # fmt: skip
    world.store.rows("update agentrl.step set n_trajectories = 2 where run = %s returning step", (bench.run,))
    return bench


def alerts(bench: Bench) -> dict[str, dict[str, Any]]:
    return {row["alert"]: row for row in bench.store.query("alerts", run=bench.spec.name).records()}


def after(step: int, **changes: float) -> Fault:
    return lambda at: changes if at > step else {}


def rising(at: int) -> float:
    return 0.3 + at / 200


FAULTS: Mapping[str, tuple[Fault, str]] = {
    "reward_drop": (after(55, reward_mean=0.2), "critical"),
    "reward_spread": (lambda at: {"reward_mean": rising(at), "reward_std": 0.2 if at < 45 else 0.4}, "warning"),
    "kl": (after(50, kl_k3=0.06), "warning"),
    "engine_gap": (after(50, engine_gap_mean=0.03), "warning"),
    "sample_size": (after(50, ess_sequence=0.4), "warning"),
    "masked": (after(50, kept_fraction=0.98), "warning"),
    "lag": (after(60, lag_max=2), "critical"),
    "hit_rate": (after(50, hit_rate=0.8), "warning"),
    "critic": (after(20, explained_variance=-0.1), "warning"),
    "critic_gradient": (after(55, critic_grad_norm=3.0), "warning"),
    "entropy": (lambda at: {"entropy": 0.5 * 0.97**at, "reward_mean": 0.5 - at / 1000}, "warning"),
    "length": (lambda at: {"action_tokens": 200 - 2 * at, "reward_mean": rising(at)}, "warning"),
    "truncated": (after(50, truncated_share=0.3), "warning"),
    "uniform_groups": (after(50, uniform_groups=1.0), "warning"),
    "gradient_cosine": (after(50, gradient_cosine=0.95), "warning"),
    "sync_share": (after(40, sync_share=0.2), "warning"),
    "reward_share": (after(40, reward_share=0.4), "warning"),
    "waiting": (after(40, wait_s=8.0), "warning"),
}
CRITICAL: Mapping[str, Fault] = {
    "engine_gap": after(50, engine_gap_mean=0.2),
    "sample_size": after(50, ess_sequence=0.1),
    "masked": after(50, kept_fraction=0.9),
}


def test_a_run_that_is_well__has_none(postgres: PostgresWorld) -> None:
    assert alerts(run_of(postgres, lambda at: {"reward_mean": rising(at), "action_tokens": 200 + at})) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault__fires_its_alert_and_no_other(postgres: PostgresWorld, name: str) -> None:
    fault, severity = FAULTS[name]
    found = alerts(run_of(postgres, fault))
    assert set(found) == {name}
    row = found[name]
    assert (row["severity"], row["active"], row["last_step"]) == (severity, True, STEPS + 1)
    assert row["first_step"] + row["steps"] == STEPS + 2
    assert re.fullmatch(rf"agentrl db query \w+ --run {row['run']}", row["look"])


@pytest.mark.parametrize("name", CRITICAL)
def test_worse_fault__is_critical(postgres: PostgresWorld, name: str) -> None:
    assert alerts(run_of(postgres, CRITICAL[name]))[name]["severity"] == "critical"


def test_one_bad_step__is_noise(postgres: PostgresWorld) -> None:
    bad = {
        "reward_mean": 0.0, "kl_k3": 1.0, "ess_sequence": 0.1, "kept_fraction": 0.98, "truncated_share": 1.0,
        "uniform_groups": 1.0,
        "sync_share": 0.3, "wait_s": 9.0, "explained_variance": -3.0, "entropy": 0.3, "action_tokens": 150.0,
    }  # fmt: skip
    assert alerts(run_of(postgres, lambda at: bad if at == 40 else {})) == {}


def test_bound_of_masked_tokens__is_wider_for_losses_that_clip(postgres: PostgresWorld) -> None:
    assert alerts(run_of(postgres, after(50, kept_fraction=0.85), loss="ppo")) == {}
    assert alerts(run_of(postgres, after(50, kept_fraction=0.75), loss="ppo"))["masked"]["severity"] == "warning"


def test_fault_that_is_over__stays_with_its_steps_and_is_not_active(postgres: PostgresWorld) -> None:
    (row,) = alerts(run_of(postgres, lambda at: {"hit_rate": 0.5} if 20 <= at < 30 else {})).values()
    assert row["alert"] == "hit_rate"
    assert (row["active"], row["first_step"], row["last_step"], row["steps"], row["value"]) == (False, 20, 29, 10, 0.5)


def test_abandoned_steps__are_not_looked_at(postgres: PostgresWorld) -> None:
    bench = run_of(postgres, after(40, hit_rate=0.5))
    assert set(alerts(bench)) == {"hit_rate"}
    postgres.take_over(bench)
    assert alerts(bench) == {}


def test_numbers_that_are_missing_or_no_numbers__fire_nothing(postgres: PostgresWorld) -> None:
    names = dict.fromkeys(WELL, "much")
    assert alerts(run_of(postgres, lambda at: names if at % 2 else dict.fromkeys(WELL))) == {}  # type: ignore[arg-type]


def test_dropped_for_age__is_told_over_five_per_cent(postgres: PostgresWorld) -> None:
    bench = postgres.bench(batch_min=10, batch_max=10, lag_bound=9, n_tasks=64)
    for dropped in (0, 1):  # of 10 trained ones, then of 20
        for episode in bench.open(10 + dropped):
            bench.finish(episode)
        claim = bench.claim(10, 10)
        bench.commit(claim.items)
        if dropped:
            (more,) = bench.claim(1, 1).items
            bench.commit([], dropped=[(more.item, more.token, DropReason.STALE)])
        assert alerts(bench) == {}
    (episode,) = bench.open(1)
    bench.finish(episode)
    (more,) = bench.claim(1, 1).items
    bench.commit([], dropped=[(more.item, more.token, DropReason.TOO_OLD)])
    row = alerts(bench)["too_old"]
    assert (row["severity"], row["active"], row["value"]) == ("warning", True, pytest.approx(2 / 22))


def test_failures_and_verdicts_that_never_came__are_told(postgres: PostgresWorld) -> None:
    bench = postgres.bench(max_attempts=1, lag_bound=9)
    failing, ungraded, *rest = bench.open(4)
    bench.store.complete(failing, FAILED)
    bench.store.write_segment(ungraded, segment(0))
    bench.store.complete(ungraded, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED))
    (job,) = bench.store.claim_grades(bench.run, worker="g", n=1, lease_s=60)
    assert not bench.store.fail_grade(job.trajectory.id, job.fence, "the judge is away")
    assert alerts(bench) == {}  # before the first step there is nothing to compare with
    for episode in rest:
        bench.finish(episode)
    bench.commit(bench.claim().items)
    found = alerts(bench)
    assert {name: (row["severity"], row["value"]) for name, row in found.items()} == {
        "failed": ("warning", pytest.approx(1 / 4)),
        "ungraded": ("warning", pytest.approx(1 / 4)),
    }


def test_silence__is_told_of_running_runs_only(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    bench.train(2)
    assert alerts(bench) == {}
    postgres.store.rows("update agentrl.step set at = at - interval '11 min' where run = %s returning step", (bench.run,))
    row = alerts(bench)["silence"]
    assert (row["severity"], row["bound"]) == ("critical", 600)
    assert row["value"] == pytest.approx(660, abs=30)
    bench.store.set_run_status(bench.run, "finished")
    assert alerts(bench) == {}


def test_every_alert__is_on_the_page_with_what_to_do(postgres: PostgresWorld) -> None:
    named = set(re.findall(r"^\| `(?!agentrl_)(\w+)` (?:\(critical\) )?\|", PAGE.read_text(), re.M))
    code = (Path(__file__).parents[3] / "agentrl/store/schema/functions/63_alerts.sql").read_text()
    explained = set(re.findall(r"^  \('(\w+)', '[A-Z]", code, re.M))
    assert named == explained
    assert set(FAULTS) | {"too_old", "failed", "ungraded", "silence"} == explained


def test_alerts__may_be_read_by_everybody_who_may_read(postgres: PostgresWorld) -> None:
    bench = run_of(postgres, after(50, hit_rate=0.5), steps=55)
    reader = Reader(postgres.url)
    try:
        assert reader.saved("alerts", run=bench.spec.name).result.records()[0]["alert"] == "hit_rate"
    finally:
        reader.close()
