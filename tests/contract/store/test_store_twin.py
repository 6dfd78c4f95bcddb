"""The in-memory twin and a real server answer every sequence of calls alike."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from store_bench import CANCELLED, FAILED, LINEAGE, Bench, PostgresWorld, World, graded, keys, segment

from agentrl.errors import AgentRLError
from agentrl.store.contract import ImportFilter, StepCommit
from agentrl.types import DropReason, EpisodeEnd, Opened, Outcome, Reward, Termination

SHOWN = ("trajectory", "task", "task_index", "seed", "start_version", "purpose")
UNGRADED = EpisodeEnd(1, Termination.TRUNCATED_TURNS, Outcome.POLICY_ENDED)
ENDS = [
    graded(1),
    graded(1),
    graded(1, 0.0),
    UNGRADED,
    FAILED,
    CANCELLED,
    EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED),
]


class Pair(RuleBasedStateMachine):
    """The same calls on both; the n-th episode, item and version of one is the n-th of the other.

    Time moves by two seconds before each call that reaps, so that both always reap there; leases are an odd number of seconds,
    so that none ends at a moment where milliseconds decide.
    """

    postgres: PostgresWorld

    @initialize(
        group=st.sampled_from([1, 2]), bound=st.sampled_from([0, 1, 2, None]), end=st.sampled_from([None, 3]),
        attempts=st.integers(1, 3), age=st.sampled_from([None, 301.0]), deadline=st.sampled_from([None, 201.0]),
        long=st.sampled_from([None, 12]), partial=st.booleans(), ahead=st.sampled_from([None, 0]),
        mode=st.sampled_from(["trajectory", "segment_mask"]), extra=st.sampled_from([0, 1]),
        surplus=st.sampled_from([None, None, 2]),
    )  # fmt: skip
    def start(
        self, group: int, bound: int | None, end: int | None, attempts: int, age: float | None, deadline: float | None,
        long: int | None, partial: bool, ahead: int | None, mode: str, extra: int, surplus: int | None,
    ) -> None:  # fmt: skip
        self.worlds: list[World] = [World(), self.postgres]
        spec: dict[str, Any] = {
            "group_size": group, "lag_bound": bound, "target_steps": end, "max_attempts": attempts, "max_age_s": age,
            "batch_min": 2, "batch_max": 2 if bound == 0 else 4, "max_running": 6, "max_lease_attempts": 2, "lease_s": 61.0,
            "group_deadline_s": deadline, "long_tokens": long, "long_share": 0.5, "long_wait_s": 51.0,
            "resume_partial": partial, "ahead": ahead, "staleness_mode": "trajectory" if bound is None else mode,
            "group_extra": extra if group > 1 else 0, "oversample": surplus if bound else None,
        }  # fmt: skip
        reuse: dict[str, Any] = {"group_size": group, "lag_bound": None, "batch_min": 2, "batch_max": 4, "environment": "other"}
        self.consumers: list[Bench] = [w.bench(n_tasks=0, **reuse) for w in self.worlds]
        self.jobs: list[list[Any]] = [[], []]
        self.benches: list[Bench] = [w.bench(n_tasks=3, **spec) for w in self.worlds]
        self.episodes: list[list[Opened]] = [[], []]
        self.known: list[dict[uuid.UUID, int]] = [{}, {}]
        self.claims: list[Any] = [None, None]
        self.checkpoints: list[list[int]] = [[], []]
        self.owners = 0
        self.ticked_at = time.monotonic()

    def both(self, call: Any) -> list[Any]:
        """Call on each side; results or error types must be equal after ids became positions."""
        results = []
        for side in (0, 1):
            try:
                results.append(call(side, self.benches[side]))
            except AgentRLError as e:
                results.append(type(e))
        assert self.plain(0, results[0]) == self.plain(1, results[1])
        return results

    def plain(self, side: int, value: Any) -> Any:
        known = self.known[side]
        if isinstance(value, uuid.UUID):
            return known.setdefault(value, len(known))
        if isinstance(value, Opened):
            fields = (
                "trajectory",
                "task",
                "task_index",
                "seed",
                "start_version",
                "purpose",
                "group",
                "seat",
                "attempt",
                "n_segments",
            )
            return [self.plain(side, getattr(value, f)) for f in fields]
        if isinstance(value, list | tuple):
            return [self.plain(side, v) for v in value]
        return value

    def tick(self, seconds: float = 2.0) -> None:
        """Time moves on both sides; what really passed meanwhile is taken back, so that a slow machine changes nothing."""
        now = time.monotonic()
        passed, self.ticked_at = now - self.ticked_at, now
        for world, bench in zip(self.worlds, self.benches, strict=True):
            world.advance(bench, seconds if world.kind == "memory" else seconds - passed)

    @rule(n=st.integers(1, 5), behind=st.booleans())
    def open(self, n: int, behind: bool) -> None:
        self.tick()

        def call(side: int, bench: Bench) -> Any:
            result = bench.ask(n, engine=max(0, bench.version - 1) if behind else bench.version)
            return result.refusal, list(result.episodes)

        for side, result in enumerate(self.both(call)):
            if isinstance(result, tuple):
                self.episodes[side] += result[1]

    @rule()
    def drop_stale(self) -> None:
        self.both(lambda side, bench: sorted(self.plain(side, t) for t in bench.store.drop_stale(bench.run, "w")))

    @rule(pick=st.integers(0, 40))
    def park(self, pick: int) -> None:
        if self.episodes[0]:
            self.both(lambda side, bench: bench.store.park(self.episodes[side][pick % len(self.episodes[side])]))

    @rule(
        pick=st.integers(0, 40), index=st.sampled_from([0, 0, 0, 1]), back=st.integers(0, 2), text=st.sampled_from("ab"),
        size=st.sampled_from([3, 3, 9]),
    )  # fmt: skip
    def write(self, pick: int, index: int, back: int, text: str, size: int = 3) -> None:
        if self.episodes[0]:
            self.both(
                lambda side, bench: bench.store.write_segment(
                    self.episodes[side][pick % len(self.episodes[side])],
                    segment(index, max(0, bench.version - back), size, action_text=text),
                )
            )

    @rule(pick=st.integers(0, 40), end=st.sampled_from(ENDS), newest=st.booleans())
    def complete(self, pick: int, end: EpisodeEnd, newest: bool) -> None:
        if self.episodes[0]:
            at = -1 - pick % min(4, len(self.episodes[0])) if newest else pick % len(self.episodes[0])
            self.both(lambda side, bench: bench.store.complete(self.episodes[side][at], end))

    @rule(judged=st.booleans())
    def finish_all(self, judged: bool = False) -> None:
        """Every open episode ends, with its verdict or waiting for one of a reward worker."""
        for at in range(len(self.episodes[0]))[-10:]:

            def call(side: int, bench: Bench, at: int = at) -> Any:
                episode = self.episodes[side][at]
                if bench.store.renew_episodes("w", {episode.trajectory: episode.fence}):
                    return "gone"
                if not bench.store.trajectory(episode.trajectory).segments:
                    bench.store.write_segment(episode, segment(0, bench.version))
                end = graded(len(bench.store.trajectory(episode.trajectory).segments))
                return bench.store.complete(episode, replace(end, reward=None) if judged else end)

            self.both(call)

    @rule(seconds=st.sampled_from([2.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.tick(seconds)

    @rule(n_min=st.integers(1, 2), lost=st.sampled_from([False, False, True]))
    def claim(self, n_min: int, lost: bool = False) -> None:
        self.tick()

        def call(side: int, bench: Bench) -> Any:
            heard = list(bench.tokens)
            claim = bench.claim(n_min=n_min * bench.spec.group_size)
            if lost:
                bench.tokens = heard
            else:
                self.claims[side] = claim
            found = [(i.lag, i.oldest_update, [(t.id, t.attempt) for t in i.trajectories]) for i in claim.items]
            return found, claim.waiting, claim.examined, claim.admissible, sorted(claim.counts.items())

        self.both(call)

    @precondition(lambda self: self.claims[0] is not None and self.claims[0].items)
    @rule(renew=st.booleans(), policy=st.booleans(), fate=st.sampled_from(["consume", "drop one", "release one"]))
    def commit(self, renew: bool, policy: bool, fate: str) -> None:
        def call(side: int, bench: Bench) -> Any:
            held = keys(self.claims[side].items)
            if renew:
                bench.store.renew_leases(bench.run, bench.fence, held, 61.0)
            kept, last = (held, None) if fate == "consume" else (held[:-1], held[-1])
            row = bench.store.find_run(bench.spec.name)
            result = bench.store.commit_step(
                bench.run,
                bench.fence,
                StepCommit(
                    row.step + 1, policy, bench.version, "hash", {"n": 1.0}, {}, kept,
                    [(*last, DropReason.ZERO_VARIANCE)] if last and fate == "drop one" else [],
                    [last] if last and fate == "release one" else [],
                ),
            )  # fmt: skip
            bench.updates = result.updates
            return result.step, result.updates, result.repeated

        self.both(call)

    @rule(n=st.integers(1, 4), wait=st.sampled_from([2.0, 2.0, 70.0]), lost=st.sampled_from([False, False, True]))
    def claim_grades(self, n: int, wait: float, lost: bool) -> None:
        self.tick(wait)

        def call(side: int, bench: Bench) -> Any:
            held = [job.fence for job in self.jobs[side]]
            found = bench.store.claim_grades(bench.run, worker="judge", n=n, lease_s=61.0, held=held)
            self.jobs[side] += [] if lost else found
            return [(j.trajectory.id, j.attempt) for j in found]

        self.both(call)

    @precondition(lambda self: self.jobs[0])
    @rule(pick=st.integers(0, 40), fails=st.booleans(), renew=st.booleans(), value=st.sampled_from([0.0, 1.0]))
    def verdict(self, pick: int, fails: bool, renew: bool, value: float) -> None:
        def call(side: int, bench: Bench) -> Any:
            job = self.jobs[side][pick % len(self.jobs[side])]
            identity = job.trajectory.id
            lost = sorted(self.plain(side, t) for t in bench.store.renew_grades({identity: job.fence})) if renew else None
            if fails:
                return lost, bench.store.fail_grade(identity, job.fence, "the judge failed")
            return lost, bench.store.grade(identity, job.fence, Reward(value, value > 0, "judge"))

        self.both(call)

    @precondition(lambda self: self.episodes[0])
    @rule(pick=st.integers(0, 40), value=st.sampled_from([0.0, 0.5]))
    def regrade(self, pick: int, value: float) -> None:
        def call(side: int, bench: Bench) -> Any:
            identity = self.episodes[side][pick % len(self.episodes[side])].trajectory
            bench.store.regrade(identity, Reward(value, None, "judge", "2"))
            return bench.store.trajectory(identity).reward.value

        self.both(call)

    @rule(low=st.sampled_from([None, 0.5]), limit=st.sampled_from([None, 1]), step=st.sampled_from([None, 1]))
    def reuse(self, low: float | None, limit: int | None, step: int | None) -> None:
        """Another run takes what this one has made, and trains a step on it."""
        self.tick()

        def call(side: int, bench: Bench) -> Any:
            consumer = self.consumers[side]
            which = ImportFilter(limit=limit, min_reward=low, first_step=step)
            taken = consumer.store.import_trajectories(consumer.run, bench.run, which)
            claim = consumer.claim()
            if claim.items:
                consumer.commit(claim.items)
            return taken.items, taken.trajectories, [t.id for i in claim.items for t in i.trajectories], claim.waiting

        self.both(call)
        left, right = (c.store.conservation(c.run) for c in self.consumers)
        assert left == right
        assert left.holds

    @rule(publish=st.booleans(), lose=st.booleans(), checkpoint=st.booleans(), renew=st.booleans(), end=st.sampled_from(ENDS))
    def step(self, publish: bool, lose: bool, checkpoint: bool, renew: bool, end: EpisodeEnd) -> None:
        """One turn of the whole loop, so that sequences get far; one episode may be lost or end in another way."""
        self.open(n=5, behind=False)
        if lose:
            self.write(pick=len(self.episodes[0]) - 1, index=0, back=1, text="a")
            self.complete(pick=0, end=end, newest=True)
        self.finish_all()
        self.claim(n_min=2)
        if self.claims[0] is not None and self.claims[0].items:
            self.commit(renew=renew, policy=True, fate="consume")
            if publish:
                self.publish()
            if checkpoint:
                self.checkpoint()

    @rule()
    def publish(self) -> None:
        self.both(lambda side, bench: bench.publish())

    @precondition(lambda self: self.claims[0] is not None)
    @rule()
    def checkpoint(self) -> None:
        def call(side: int, bench: Bench) -> Any:
            self.checkpoints[side].append(bench.checkpoint())
            return None

        self.both(call)

    @precondition(lambda self: self.benches[0].store.find_run(self.benches[0].spec.name).step > 0 and self.owners < 4)
    @rule(clean=st.booleans(), pick=st.integers(-1, 5))
    def restart(self, clean: bool, pick: int) -> None:
        self.owners += 1
        if not clean:
            self.tick(100.0)

        def call(side: int, bench: Bench) -> Any:
            if clean:
                bench.store.release_trainer(bench.run, bench.fence)
            known = self.checkpoints[side]
            at = known[pick % len(known)] if pick >= 0 and known else None
            started = bench.start(at, owner=f"trainer {self.owners}", lease_s=61.0)
            version = started.version
            assert version is not None
            left = [(c.step, c.updates, c.version) for c in bench.store.checkpoints(bench.run)]
            counts = (started.step, started.updates, started.returned, started.dropped)
            return started.branch, counts, version.version, version.parent, left

        self.both(call)

    @invariant()
    def same_conservation(self) -> None:
        if not hasattr(self, "benches"):
            return
        left, right = (b.store.conservation(b.run) for b in self.benches)
        assert left == right
        assert left.holds
        assert self.worlds[0].drop_reasons(self.benches[0]) == self.worlds[1].drop_reasons(self.benches[1])


def test_twin_and_server__answer_alike(embedded_world: PostgresWorld) -> None:
    machine = type("BoundPair", (Pair,), {"postgres": embedded_world})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=15, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
            phases=(Phase.generate,),
            database=None,
        ),
    )  # fmt: skip


def test_lineage__read_back_equal(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    assert world.store.trajectory(episode.trajectory).lineage == LINEAGE
    with pytest.raises(AttributeError):
        world.store.trajectory(episode.trajectory).lineage.model = "other"
