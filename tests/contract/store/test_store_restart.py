"""A server that is restarted at once, in the middle of writes, claims and commits, and what SQL says about it afterwards."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from store_bench import Bench, PostgresWorld, Server, graded, segment

from agentrl.errors import NotReadyError, UnknownOutcome
from agentrl.store.postgres import PostgresStore
from agentrl.types import Place

T = TypeVar("T")
TURNS, WRITERS, RESTARTS = 3, 3, 2

AUDIT = {
    "a turn is missing": """
        select t.id from agentrl.trajectory t where t.run = %(run)s and t.complete and t.n_segments is distinct from (
          select case when count(*) = max(s.seg) + 1 then count(*) end from agentrl.segment s
          where s.run = t.run and s.start_version = t.start_version and s.trajectory = t.id)""",
    "a running one does not know its turns": """
        select l.trajectory from agentrl.live l where l.run = %(run)s and l.next_seg <> (
          select count(*) from agentrl.segment s
          where s.run = l.run and s.start_version = l.start_version and s.trajectory = l.trajectory)""",
    "a step without its rows": """
        select s.step from agentrl.step s where s.run = %(run)s and s.n_trajectories <> (
          select count(*) from agentrl.consumed c where c.run = s.run and c.branch = s.branch and c.step = s.step)""",
    "trained twice": """
        select trajectory from agentrl.consumed where run = %(run)s and abandoned_by is null
        group by trajectory having count(*) > 1""",
    "a fence issued twice": """
        select fence from agentrl.trajectory where run = %(run)s group by fence having count(*) > 1""",
    "moves that don't lead to its place": """
        select e.trajectory from (
          select distinct on (trajectory) trajectory, to_place from agentrl.event where run = %(run)s
          order by trajectory, id desc) e
        join agentrl.trajectory_state p on p.trajectory = e.trajectory and p.run = %(run)s where p.place <> e.to_place""",
}


class Clients:
    """Writers and a trainer that make each call again until they know its outcome."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.stop = threading.Event()
        self.interrupted = 0
        self.stored: list[tuple[uuid.UUID, int]] = []
        self.trained: list[uuid.UUID] = []

    def surely(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except (UnknownOutcome, NotReadyError):
                self.interrupted += 1
                time.sleep(0.01)

    def write(self, worker: str) -> None:
        store = self.bench.store
        while not self.stop.is_set():
            request = uuid.uuid4()
            for episode in self.surely(lambda r=request: self.bench.ask(1, worker=worker, request=r)).episodes:  # type: ignore[misc]
                for index in range(TURNS):
                    self.surely(lambda e=episode, i=index: store.write_segment(e, segment(i, self.bench.version)))  # type: ignore[misc]
                    self.stored.append((episode.trajectory, index))
                assert self.surely(lambda e=episode: store.complete(e, graded(TURNS))) is Place.READY  # type: ignore[misc]

    def train(self) -> None:
        held: list[Any] = []
        step = 0
        while not self.stop.is_set() or held:
            if not held:
                held = list(self.surely(lambda: self.bench.claim(2, 2, lease_s=1000.0)).items)
                continue
            step += 1
            self.surely(lambda h=held, s=step: self.bench.commit(h, step=s))  # type: ignore[misc]
            self.trained += [t.id for item in held for t in item.trajectories]
            held = []


def test_immediate_restart_in_the_middle__what_was_answered_is_there_and_the_books_agree() -> None:
    server = Server("restarted", None, durable=True)
    store = PostgresStore(server.url, pool_size=WRITERS + 1)
    try:
        bench = PostgresWorld("restarted", store, server.url).bench(lag_bound=None, max_running=4, batch_min=2, batch_max=2)
        clients = Clients(bench)
        threads = [threading.Thread(target=clients.write, args=(f"w{i}",)) for i in range(WRITERS)]
        threads.append(threading.Thread(target=clients.train))
        for thread in threads:
            thread.start()
        for _ in range(RESTARTS):
            reached = len(clients.stored) + 4 * TURNS, len(clients.trained) + 4
            while (len(clients.stored), len(clients.trained)) < reached and any(t.is_alive() for t in threads):
                time.sleep(0.01)
            server.restart_immediately()
        clients.stop.set()
        for thread in threads:
            thread.join()
        assert clients.interrupted
        audit(store, bench, clients)
    finally:
        store.close()
        server.close()


def audit(store: PostgresStore, bench: Bench, clients: Clients) -> None:
    bench.check()
    stored = set(store.rows("select trajectory, seg from agentrl.segment where run = %s", (bench.run,)))
    assert stored >= set(clients.stored), "acknowledged turns"
    consumed = {row[0] for row in store.rows("select trajectory from agentrl.consumed where run = %s", (bench.run,))}
    assert consumed == set(clients.trained), "acknowledged steps, and no other"
    for what, statement in AUDIT.items():
        with store.transaction() as connection:
            assert connection.execute(statement.encode(), {"run": bench.run}).fetchall() == [], what
