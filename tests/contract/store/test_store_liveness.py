"""A run never waits for itself: whatever the lag bound, batch, groups, workers and failures, each batch is reached.

Workers and trainer are simulated in one thread, in an order that hypothesis chooses; the clock moves with every round. What no
round can unblock is a dead-lock of the protocol, so the test fails with what every side was told.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from store_bench import FAILED, Bench, World, graded, segment
from test_store_sub_agents import child

from agentrl.errors import Fenced
from agentrl.staleness import refresh_due
from agentrl.types import Opened

STEPS = 5
PATIENCE = 40
"""Rounds in which nothing opens and nothing is trained: leases and deadlines pass, retries and refreshes have their turn."""
MOST_ROUNDS = 4000


@dataclass
class Worker:
    """A rollout worker: weights, running episodes, and what the store said last."""

    name: str
    version: int
    running: list[Opened] = field(default_factory=list)
    told: str | None = None


@dataclass
class Simulation:
    """One run with its workers and its trainer."""

    world: World
    bench: Bench
    chance: random.Random
    workers: list[Worker]
    slots: int
    refresh_every: int
    failures: float
    deaths: float
    trainer_told: str = "nothing yet"

    def refresh(self, worker: Worker) -> None:
        newest = self.bench.store.newest_version(self.bench.run)
        held = self.bench.store.version(self.bench.run, worker.version)
        starved = worker.told == "no_capacity" and not worker.running
        if newest.version != held.version and (starved or refresh_due(newest.updates, held.updates, self.refresh_every)):
            worker.version = newest.version

    def open(self, worker: Worker) -> None:
        free = self.slots - len(worker.running)
        if free:
            opened = self.bench.ask(free, worker=worker.name, engine=worker.version)
            worker.told = opened.refusal
            worker.running += opened.episodes

    def end_one(self, worker: Worker) -> None:
        if not worker.running:
            return
        episode = worker.running.pop(self.chance.randrange(len(worker.running)))
        with suppress(Fenced):  # its group was given up
            if self.chance.random() < self.failures:
                self.bench.store.complete(episode, FAILED)
            else:
                own = (segment(0, worker.version),)
                started = [child(episode, seat, segments=own) for seat in range(self.chance.randrange(3))]
                self.bench.store.write_segment(episode, segment(0, worker.version), started)
                self.bench.store.complete(episode, graded(1, self.chance.choice([0.0, 1.0])))

    def die(self, worker: Worker) -> None:
        """Its leases lapse later; another worker of the same name starts with the newest weights."""
        worker.running.clear()
        worker.version = self.bench.version

    def train(self) -> bool:
        claim = self.bench.claim()
        self.trainer_told = claim.waiting or "items"
        if not claim.items:
            return False
        self.bench.commit(claim.items)
        self.bench.publish()
        return True

    def round(self) -> bool:
        """Everybody moves a few times, in any order; whether a step was made."""
        stepped = False
        for _ in range(4 * len(self.workers) + 2):
            worker = self.chance.choice(self.workers)
            if self.chance.random() < self.deaths:
                self.die(worker)
            move = self.chance.choice([self.refresh, self.open, self.end_one, self.end_one])
            move(worker)
            stepped = stepped or (self.chance.random() < 0.3 and self.train())
        return stepped or self.train()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lag=st.sampled_from([None, 0, 1, 2, 5]),
    groups=st.integers(1, 3),
    group_size=st.sampled_from([1, 1, 2, 4]),
    smaller=st.booleans(),
    rounds=st.booleans(),
    n_workers=st.integers(1, 4),
    slots=st.integers(1, 9),
    refresh_every=st.integers(1, 4),
    failures=st.sampled_from([0.0, 0.2, 0.6]),
    deaths=st.sampled_from([0.0, 0.05]),
    mode=st.sampled_from(["trajectory", "segment_mask"]),
    extra=st.integers(0, 2),
    surplus=st.sampled_from([None, None, 0, 0.5, 1]),
    seed=st.integers(0, 2**32),
)
def test_no_dead_lock__every_batch_is_reached(
    lag: int | None, groups: int, group_size: int, smaller: bool, rounds: bool, n_workers: int, slots: int, refresh_every: int,
    failures: float, deaths: float, mode: str, extra: int,
    surplus: float | None, seed: int,
) -> None:  # fmt: skip
    batch = groups * group_size
    world = World()
    bench = world.bench(
        n_tasks=50,
        lag_bound=lag,
        batch_min=group_size if smaller and lag != 0 else batch,
        batch_max=batch,
        ahead=0 if rounds else None,
        group_size=group_size,
        target_steps=STEPS,
        max_attempts=3,
        max_running=2 * batch,
        staleness_mode="trajectory" if lag is None else mode,
        group_extra=extra if group_size > 1 else 0,
        oversample=None if surplus is None or not lag else int(surplus * groups) * group_size,
        group_deadline_s=300.0 if group_size > 1 else None,
    )
    simulation = Simulation(
        world, bench, random.Random(seed), [Worker(f"w{i}", bench.version) for i in range(n_workers)], slots,
        1 if rounds else refresh_every if lag is None else min(refresh_every, lag + 1), failures, deaths,
    )  # fmt: skip
    idle = created = 0
    for _ in range(MOST_ROUNDS):
        stepped = simulation.round()
        before, created = created, bench.store.conservation(bench.run).created
        idle = 0 if stepped or created > before else idle + 1
        assert idle < PATIENCE, (simulation.trainer_told, simulation.workers, bench.store.conservation(bench.run))
        world.advance(bench, 30.0)
        for worker in simulation.workers:
            held = {e.trajectory: e.fence for e in worker.running}
            lost = bench.store.renew_episodes(worker.name, held) | bench.store.drop_stale(bench.run, worker.name)
            worker.running = [e for e in worker.running if e.trajectory not in lost]
        bench.check()
        if bench.store.find_run(bench.spec.name).step == STEPS:
            return
    raise AssertionError("the target was never reached")
