"""A run with short words for what store tests do all the time, and the worlds in which the contract is tested.

Every test makes a run of its own, so that one database serves a whole session. Time is moved, not waited for.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from agentrl.errors import StoreError
from agentrl.store.contract import Claim, ClaimedItem, OpenResult, RunRow, RunSpec, StepCommit, StepResult, TrainerStart
from agentrl.store.embedded import start_embedded, stop_embedded
from agentrl.store.memory import MemoryStore
from agentrl.store.postgres import PostgresStore
from agentrl.types import (
    EpisodeEnd,
    FinishReason,
    Lineage,
    Opened,
    Outcome,
    Place,
    Reward,
    Sampling,
    Segment,
    Task,
    Termination,
)

LINEAGE = Lineage("tiny", "tok", "tmpl", "local", "1", "float32", Sampling(), environment="toy", environment_version="1")
SYSTEM_15 = Path("/usr/lib/postgresql/15/bin")
_names = itertools.count()


def segment(index: int = 0, version: int = 0, n: int = 3, **changes: Any) -> Segment:
    """A small turn whose tokens all carry one version."""
    made = Segment(
        index=index,
        observation=np.arange(4, dtype=np.int32),
        action=np.arange(n, dtype=np.int32) + 100,
        logprobs=-np.arange(1, n + 1, dtype=np.float32),
        versions=np.full(n, version, np.int32),
        finish_reason=FinishReason.STOP,
        observation_text="say something",
        action_text="something",
        action_raw=b"something",
    )
    return replace(made, **changes)


def graded(n_segments: int = 1, value: float = 1.0) -> EpisodeEnd:
    return EpisodeEnd(n_segments, Termination.TERMINATED, Outcome.GRADED, Reward(value, value > 0))


FAILED = EpisodeEnd(0, Termination.FAILED, Outcome.INFRASTRUCTURE, error="the sandbox died")
CANCELLED = EpisodeEnd(0, Termination.ABORTED, Outcome.INFRASTRUCTURE, error="shutdown")


class Bench:
    """One run in one store, with short words for what tests do all the time."""

    def __init__(self, store: Any, n_tasks: int = 8, **spec: Any) -> None:
        self.store = store
        settings: dict[str, Any] = {
            "name": f"run-{os.getpid()}-{next(_names)}-{uuid.uuid4().hex[:6]}",
            "environment": "toy", "config": {"a": 1}, "config_hash": "h", "seed": 7, "lag_bound": 1,
            "batch_min": 2, "batch_max": 2,
        }  # fmt: skip
        self.spec = RunSpec(**(settings | spec))
        tasks = {
            "train": [Task(f"t{i}", {"n": i}) for i in range(n_tasks)],
            "heldout": [Task(f"h{i}", {"n": i}, "heldout") for i in range(4)],
        }
        self.row: RunRow = store.create_run(self.spec, tasks)
        self.run = self.row.id
        self.fence = 0
        self.version = 0
        self.updates = 0
        self.tokens: list[int] = []
        """Of all claims."""

    def start(self, checkpoint: int | None = None, owner: str = "trainer", lease_s: float = 1000.0) -> TrainerStart:
        started: TrainerStart = self.store.start_trainer(self.run, owner=owner, lease_s=lease_s, checkpoint=checkpoint)
        self.fence = started.fence
        self.updates = started.updates
        if started.version is not None:
            self.version = started.version.version
        return started

    def publish(self, updates: int | None = None) -> int:
        """Stage and publish the weights of the present head."""
        if updates is not None:
            self.updates = updates
        newest = self.store.newest_version(self.run)
        staged = self.store.stage_version(
            self.run,
            self.fence,
            parent=None if newest is None else self.version,
            updates=self.updates,
            uri=f"w{self.updates}-{uuid.uuid4().hex}",
            checksum="c",
        )
        self.store.publish_version(self.run, self.fence, staged.version)
        self.version = staged.version
        return self.version

    def ask(
        self, n: int = 64, worker: str = "w", request: uuid.UUID | None = None, engine: int | None = None,
        lineage: Lineage = LINEAGE,
    ) -> OpenResult:  # fmt: skip
        result: OpenResult = self.store.open_episodes(
            self.run,
            worker=worker,
            request=request or uuid.uuid4(),
            n=n,
            engine_version=self.version if engine is None else engine,
            lineage=lineage,
        )
        return result

    def open(self, n: int = 64, **more: Any) -> Sequence[Opened]:
        return self.ask(n, **more).episodes

    def finish(self, episode: Opened, version: int | None = None, value: float = 1.0) -> Place:
        self.store.write_segment(episode, segment(0, self.version if version is None else version))
        place: Place = self.store.complete(episode, graded(1, value))
        return place

    def claim(self, n_min: int | None = None, n_max: int | None = None, lease_s: float = 60.0) -> Claim:
        claim: Claim = self.store.claim(
            self.run,
            self.fence,
            n_min=self.spec.batch_min if n_min is None else n_min,
            n_max=self.spec.batch_max if n_max is None else n_max,
            lease_s=lease_s,
            held=self.tokens,
        )
        self.tokens += {i.token for i in claim.items}
        return claim

    def commit(
        self,
        items: Sequence[ClaimedItem],
        step: int | None = None,
        policy: bool = True,
        batch_hash: str | None = None,
        **more: Any,
    ) -> StepResult:
        row = self.store.find_run(self.spec.name)
        number = row.step + 1 if step is None else step
        result: StepResult = self.store.commit_step(
            self.run,
            self.fence,
            StepCommit(
                step=number,
                policy_updated=policy,
                trainer_version=self.version,
                batch_hash=batch_hash or f"hash of step {number}",
                denominators={"tokens": 6.0},
                metrics={"loss": 0.5},
                consumed=keys(items),
                **more,
            ),
        )
        self.updates = result.updates
        return result

    def train(self, n_steps: int = 1, publish: bool = True) -> None:
        """Full steps: open what fits, finish all, claim, commit, publish."""
        for _ in range(n_steps):
            for episode in self.open():
                self.finish(episode)
            claim = self.claim()
            assert claim.items, claim
            self.commit(claim.items)
            if publish:
                self.publish()

    def checkpoint(self) -> int:
        row = self.store.find_run(self.spec.name)
        saved = self.store.add_checkpoint(
            self.run,
            self.fence,
            step=row.step,
            updates=row.updates,
            version=self.version,
            uri=f"ck-{uuid.uuid4()}",
            checksum="c",
        )
        identifier: int = saved.id
        return identifier

    @contextmanager
    def acting(self, fence: int, version: int) -> Iterator[None]:
        """Act as an earlier trainer, which still has the fence and the version of before."""
        present = self.fence, self.version
        self.fence, self.version = fence, version
        try:
            yield
        finally:
            self.fence, self.version = present

    def place(self, place: Place) -> int:
        found: Mapping[Place, int] = self.store.conservation(self.run).places
        return found[place]

    def check(self) -> None:
        """The invariant that holds at every moment."""
        conservation = self.store.conservation(self.run)
        assert conservation.holds, conservation


def keys(items: Sequence[ClaimedItem]) -> list[tuple[uuid.UUID, int]]:
    return [(i.item, i.token) for i in items]


class World:
    """A store and its clock."""

    kind = "memory"

    def __init__(self) -> None:
        self.now = 1000.0
        self.store: Any = MemoryStore(lambda: self.now)

    def bench(self, *, started: bool = True, n_tasks: int = 8, **spec: Any) -> Bench:
        """A run with a trainer and a published root version."""
        bench = Bench(self.store, n_tasks, **spec)
        if started:
            bench.start()
            bench.publish()
        return bench

    def advance(self, bench: Bench, seconds: float) -> None:
        self.now += seconds

    def take_over(self, bench: Bench, checkpoint: int | None = None) -> TrainerStart:
        """The trainer's lease lapses and another one starts."""
        self.advance(bench, 2000)
        return bench.start(checkpoint, owner=f"successor-{next(_names)}")

    def drop_reasons(self, bench: Bench) -> dict[str, int]:
        counts: dict[str, int] = {}
        for e in self.store._runs[bench.run].episodes.values():
            if e.drop is not None:
                counts[e.drop.reason.value] = counts.get(e.drop.reason.value, 0) + 1
        return counts


class PostgresWorld(World):
    """A real server; time passes by moving every stored time of the run into the past."""

    def __init__(self, kind: str, store: PostgresStore, url: str) -> None:
        self.kind, self.store, self.url = kind, store, url

    def advance(self, bench: Bench, seconds: float) -> None:
        columns = {
            "live": ("lease_until",), "grade_job": ("lease_until",), "lease": ("lease_until", "oldest_start", "ready_at"),
            "ready": ("oldest_start", "at"), "reap": ("at",), "trajectory": ("started_at",), "grp": ("created_at",),
        }  # fmt: skip
        with self.store.transaction() as connection:
            for table, names in columns.items():
                moved = ", ".join(f"{c} = {c} - make_interval(secs => {seconds})" for c in names)
                connection.execute(f"update agentrl.{table} set {moved} where run = %s".encode(), (bench.run,))
            connection.execute(
                "update agentrl.run set trainer_lease_until = trainer_lease_until - make_interval(secs => %s) where id = %s",
                (float(seconds), bench.run),
            )

    def overlap(self, first: str, parameters: Sequence[Any], second: Callable[[], Any]) -> Any:
        """``first`` is a statement whose transaction commits only when ``second``, in another thread, waits for it.

        The result of ``second``, or its error.
        """
        waits = "select count(*) from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
        with ThreadPoolExecutor(1) as pool:
            with self.store.transaction() as connection:
                connection.execute(first.encode(), parameters)
                future = pool.submit(second)
                while not future.done() and self.store.row(waits, (connection.info.backend_pid,)) == (0,):
                    time.sleep(0.01)
                assert not future.done(), "it should have waited"
            try:
                return future.result()
            except StoreError as error:
                return error

    def drop_reasons(self, bench: Bench) -> dict[str, int]:
        rows = self.store.rows("select reason, count(*) from agentrl.dropped where run = %s group by reason", (bench.run,))
        return dict(rows)


class Server:
    """A private server of one kind of binaries in a directory that ``nobody`` can reach."""

    def __init__(self, kind: str, binaries: Path | None, durable: bool = False) -> None:
        self.kind = kind
        self.binaries = binaries
        self.home = Path(tempfile.mkdtemp(prefix=f"agentrl-test-{kind}-", dir="/tmp"))
        self.home.chmod(0o755)
        self.url = self._start()
        if not durable:
            self._forget_durability()

    def _start(self) -> str:
        previous = os.environ.get("AGENTRL_PG_BIN")
        if self.binaries is not None:
            os.environ["AGENTRL_PG_BIN"] = str(self.binaries)
        try:
            return start_embedded(self.home)
        finally:
            self._restore(previous)

    def _forget_durability(self) -> None:
        # Each run has partitions of its own; syncing thousands of small files would be most of the suite's time.
        with psycopg.connect(self.url, autocommit=True) as connection:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                connection.execute(f"alter system set {setting} = off".encode())
            connection.execute("select pg_reload_conf()")

    def stop(self) -> None:
        previous = os.environ.get("AGENTRL_PG_BIN")
        if self.binaries is not None:
            os.environ["AGENTRL_PG_BIN"] = str(self.binaries)
        try:
            stop_embedded(self.home)
        finally:
            self._restore(previous)

    def restart_immediately(self) -> None:
        """What ``pg_ctl restart -m immediate`` does: all sessions are cut off, and the server recovers from its log."""
        pid = self._pid()
        os.kill(pid, signal.SIGQUIT)
        while _runs(pid):
            time.sleep(0.01)  # while it ends it counts as running, and would not be started again
        self.url = self._start()

    def _pid(self) -> int:
        (pid_file,) = self.home.glob("pg*/postmaster.pid")
        return int(pid_file.read_text().splitlines()[0])

    def kill(self) -> None:
        """kill -9 of the whole server, and wait until it is gone."""
        pid = self._pid()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (pid, *map(int, children)):
            os.kill(one, signal.SIGKILL)
        while any(map(_runs, (pid, *map(int, children)))):
            time.sleep(0.01)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.home)

    def database(self) -> str:
        """The URL of a fresh, empty database."""
        name = f"db_{uuid.uuid4().hex[:10]}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        return self.url.replace("/agentrl?", f"/{name}?")

    @staticmethod
    def _restore(previous: str | None) -> None:
        os.environ.pop("AGENTRL_PG_BIN", None)
        if previous is not None:
            os.environ["AGENTRL_PG_BIN"] = previous


def _runs(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def no_grace(store: PostgresStore) -> None:
    """Let leases lapse although the test server has just started."""
    with store.transaction() as connection:
        connection.execute(
            "create or replace function agentrl.server_started_v1() returns timestamptz language sql stable as"
            " $$ select '-infinity'::timestamptz $$"
        )
