"""A rollout worker whose model and tools only take time, so that what is measured is everything else."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.engine.contract import EngineInfo, GenerateRequest, Generation
from agentrl.environment import Environment, Episode, Message, Task, tool
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.contract import RunRow, RunSpec, TrajectoryStore
from agentrl.store.loads import EngineLoad
from agentrl.tokens.chat_format import ChatFormat
from agentrl.types import FinishReason, Lineage, PolicyVersion, Sampling
from sandboxes.contract import Sandbox

TEXT = "the agent reads a file runs the tests sees what failed changes one line and runs them again"
WORDS = TEXT.split()
LINEAGE = Lineage("simulated", "tok", "tmpl", "simulated", "1", "float32", Sampling(), environment="simulated")


class SimulatedEngine:
    """Answers with ``answer(request)`` after ``seconds``; a load takes ``load_s``, in which nothing is generated."""

    def __init__(self, answer: Callable[[GenerateRequest], list[int]], seconds: float = 0.0, load_s: float = 0.0) -> None:
        self.info = EngineInfo("simulated", "1", "float32", "sampled", 1 << 16, reproducible=True)
        self._answer, self._seconds, self._version = answer, seconds, -1
        self._load_s, self._serving = load_s, asyncio.Event()
        self._serving.set()
        self.busy_s = 0.0
        self.loads = 0

    @property
    def version(self) -> int:
        return self._version

    async def load(self, version: PolicyVersion) -> None:
        if self._load_s:
            self._serving.clear()
            await asyncio.sleep(self._load_s)
            self._serving.set()
        self._version, self.loads = version.version, self.loads + 1

    def take_loads(self) -> list[EngineLoad]:
        """Nothing is loaded."""
        return []

    async def generate(self, request: GenerateRequest) -> Generation:
        await self._serving.wait()
        version = self._version
        await asyncio.sleep(self._seconds)
        self.busy_s += self._seconds
        ids = np.array(self._answer(request), dtype=np.int32)
        n = len(ids)
        return Generation(ids, np.full(n, -0.5, np.float32), np.full(n, version, np.int32), FinishReason.STOP)

    def release(self, session: str) -> None:
        """There is no cache."""

    def metrics(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}

    async def close(self) -> None:
        """There is nothing to close."""


class Simulated(Environment):
    """Every turn calls one tool, which takes the seconds that the task names for the episode's seat and returns a page of text;
    the last one ends."""

    max_turns = 64
    max_tokens = 1 << 15
    page = " ".join(random.Random(1).choices(WORDS, k=150))

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._seats: Counter[str] = Counter()

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        raise NotImplementedError("the benchmark writes the tasks")

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", f"Work on task {task.id}. {self.page}")]

    @tool
    async def work(self, episode: Episode, note: str) -> Any:
        """Work for a while."""
        rows = episode.task.payload["seconds"]
        if episode.n_turns == 0:
            episode.state.row = rows[self._seats[episode.task.id] % len(rows)]
            self._seats[episode.task.id] += 1
        seconds = episode.state.row[episode.n_turns]
        await asyncio.sleep(seconds)
        self.busy_s += seconds
        return self.page

    async def reward(self, episode: Episode, sandbox: Sandbox) -> float:
        return 1.0


class NoPool:
    """The simulated environment needs no sandbox."""

    def acquire(self, spec: Any, *, timeout: float | None = 60.0, first: bool = False) -> Any:
        raise AssertionError("no sandbox is needed")

    def acquire_group(self, spec: Any, n: int, *, timeout: float = 60.0) -> Any:
        raise AssertionError("no sandbox is needed")

    def metrics(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        """There is nothing to close."""


@dataclass
class Simulation:
    """One run in a real store with one worker on it."""

    store: TrajectoryStore
    run: RunRow
    worker: RolloutWorker
    fence: int
    engine: SimulatedEngine
    environment: Simulated

    def publish(self, updates: int, parent: int | None) -> PolicyVersion:
        """New weights, which are only a name."""
        staged = self.store.stage_version(
            self.run.id, self.fence, parent=parent, updates=updates, uri=f"updates {updates}", checksum="none"
        )
        self.store.publish_version(self.run.id, self.fence, staged.version)
        return staged


def simulation(
    store: TrajectoryStore, folder: Path, seconds: list[list[float]], *, concurrency: int, model_s: float, load_s: float = 0.0,
    refresh_every: int = 1, **spec: Any,
) -> Simulation:  # fmt: skip
    """A run whose trajectory ``i`` has a tool call of ``seconds[i][k]`` in turn k, then an answer; groups are of consecutive
    ones."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer([Simulated.page] * 5, TokenizerPlan(scaffold=()), folder / "tokenizer")
    chat = ChatFormat(folder / "tokenizer")
    note = " ".join(WORDS * 2)
    call = json.dumps({"name": "work", "arguments": {"note": note}})
    turn, last = chat.encode_action(f"{note}\n<tool_call>{call}</tool_call>"), chat.encode_action(note)
    left: dict[str, int] = {}

    def answer(request: GenerateRequest) -> list[int]:
        turns = left.setdefault(request.session, len(seconds[0]))
        left[request.session] = turns - 1
        if turns:
            return turn
        del left[request.session]
        return last

    settings: dict[str, Any] = {"environment": "simulated", "config": {}, "config_hash": "h", "seed": 0} | spec
    size = settings.get("group_size", 1)
    tasks = [Task(f"t{i}", {"seconds": seconds[i : i + size]}) for i in range(0, len(seconds), size)]
    run = store.create_run(RunSpec(name=folder.name, **settings), {"train": tasks, "heldout": tasks[:1]})
    fence = store.start_trainer(run.id, owner="benchmark", lease_s=3600, checkpoint=None).fence
    engine, environment = SimulatedEngine(answer, model_s, load_s), Simulated()
    runner = EpisodeRunner(environment, store, engine, chat, NoPool(), Sampling())
    worker = RolloutWorker(store, run, "worker", engine, runner, LINEAGE, concurrency, ProcessLog(folder, "rollout"),
                           refresh_every=refresh_every)  # fmt: skip
    return Simulation(store, run, worker, fence, engine, environment)
