"""Wake-ups come soon after a commit, heal by themselves, and nobody depends on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from store_bench import Bench, PostgresWorld, Server, World, segment

from agentrl.errors import NotReadyError, UnknownOutcome
from agentrl.store.embedded import start_embedded
from agentrl.store.postgres import PostgresStore
from agentrl.store.wakeup import Notifier
from agentrl.types import EpisodeEnd, Outcome, Reward, Termination

SOON_S = 20.0
"""Far above what it takes, and far below any poll of these tests, which do not poll."""


class Ear:
    """Remembers what it was woken for."""

    def __init__(self, world: World, bench: Bench) -> None:
        self.heard: list[str] = []
        self.arrived = threading.Condition()
        self.subscription = world.store.subscribe(bench.run, self.hear)
        if world.kind != "memory":
            self.expect("items")  # the first wake-up is for what may have been missed before
        time.sleep(0.1)
        self.forget()

    def hear(self, change: str) -> None:
        with self.arrived:
            self.heard.append(change)
            self.arrived.notify_all()

    def expect(self, change: str) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: change in self.heard, SOON_S), f"{change} not in {self.heard}"

    def forget(self) -> None:
        with self.arrived:
            self.heard.clear()


def test_each_change__is_heard(world: World) -> None:
    bench = world.bench()
    ear = Ear(world, bench)
    a, b = bench.open(2)
    bench.finish(a)
    ear.expect("items")
    ear.forget()
    world.store.write_segment(b, segment(0, bench.version))
    world.store.complete(b, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED))
    ear.expect("grades")
    (job,) = world.store.claim_grades(bench.run, worker="w", n=1, lease_s=60)
    world.store.grade(b.trajectory, job.fence, Reward(1.0))
    ear.expect("items")
    ear.forget()
    bench.commit(bench.claim().items)
    ear.expect("policy")
    ear.forget()
    bench.publish()
    ear.expect("policy")
    world.store.request_evaluation(bench.run, version=bench.version, step=1, split="heldout", n=1)
    ear.expect("evaluation")
    ear.subscription.close()


def test_other_runs__wake_nobody(world: World) -> None:
    quiet, busy = world.bench(), world.bench()
    ear, other = Ear(world, quiet), Ear(world, busy)
    busy.train(1)
    other.expect("policy")
    assert ear.heard == []
    ear.subscription.close()
    other.subscription.close()


def test_closed_subscription__hears_no_more(world: World) -> None:
    bench = world.bench()
    ear, open_ear = Ear(world, bench), Ear(world, bench)
    ear.subscription.close()
    bench.publish()
    open_ear.expect("policy")
    assert ear.heard == []
    open_ear.subscription.close()


def test_after_commit__no_writer_notifies_in_its_own_transaction(postgres: PostgresWorld) -> None:
    rows = postgres.store.rows(
        "select proname::text from pg_proc where pronamespace = 'agentrl'::regnamespace and prosrc ~* 'notify'"
    )
    assert rows == []


def test_killed_listener__hears_again_by_itself(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    ear = Ear(postgres, bench)
    killed = postgres.store.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity where query ilike %s", (f"listen agentrl_run_{bench.run}",)
    )
    assert killed == [(True,)]
    ear.expect("policy")  # woken once for what it may have missed
    time.sleep(0.1)
    ear.forget()
    bench.publish()
    ear.expect("policy")
    ear.subscription.close()


def test_killed_notifier__tells_again_by_itself(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    ear = Ear(postgres, bench)
    postgres.store.rows("select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'select pg_notify%%'")
    deadline = time.monotonic() + SOON_S
    while "policy" not in ear.heard:
        assert time.monotonic() < deadline
        bench.publish()
        time.sleep(0.2)
    ear.subscription.close()


class Fake:
    """A connection that breaks with the first word, and those after it, which send."""

    def __init__(self) -> None:
        self.connects = 0
        self.sent: list[tuple[str, str]] = []
        self.arrived = threading.Condition()

    def connect(self, *arguments: object, **named: object) -> Fake:
        self.connects += 1
        return self

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *error: object) -> None: ...

    def execute(self, statement: str, word: tuple[str, str]) -> None:
        if self.connects == 1:
            raise psycopg.OperationalError("server closed the connection")
        with self.arrived:
            self.sent.append(word)
            self.arrived.notify_all()


def test_connection_that_breaks_with_a_word__says_it_on_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr("agentrl.store.wakeup.psycopg.connect", fake.connect)
    notifier = Notifier("postgresql://nowhere")
    notifier.leave(1, "items")
    with fake.arrived:
        assert fake.arrived.wait_for(lambda: fake.sent, SOON_S)
    notifier.leave(1, "policy")
    notifier.close()
    assert (fake.sent, fake.connects) == ([("agentrl_run_1", "items"), ("agentrl_run_1", "policy")], 2)


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = Server("pg18", None, durable=True)
    yield server
    server.close()


def test_database_restart__both_sides_connect_again(own_server: Server) -> None:
    store = PostgresStore(own_server.url)
    world = PostgresWorld("embedded", store, own_server.url)
    bench = world.bench()
    ear = Ear(world, bench)
    own_server.kill()
    assert start_embedded(own_server.home) == own_server.url
    ear.expect("items")
    deadline = time.monotonic() + SOON_S
    ear.forget()
    while "policy" not in ear.heard:
        assert time.monotonic() < deadline
        try:
            bench.publish()
        except (UnknownOutcome, NotReadyError, psycopg.Error):
            time.sleep(0.1)
        time.sleep(0.2)
    ear.subscription.close()
    store.close()
