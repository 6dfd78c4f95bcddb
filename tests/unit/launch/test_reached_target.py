"""A run at its target that is started again: what is left of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from agentrl.errors import UsageError
from agentrl.launch import run as launch
from agentrl.launch.processes import RunProcesses
from agentrl.store.contract import RunRow, RunSpec, StepCommit
from agentrl.store.memory import MemoryStore
from agentrl.types import (
    EpisodeEnd,
    FinishReason,
    Lineage,
    Outcome,
    Reward,
    Sampling,
    Segment,
    Task,
    Termination,
)

LINEAGE = Lineage("tiny", "tok", "tmpl", "local", "1", "float32", Sampling(), environment="toy", environment_version="1")
IDS = np.arange(2, dtype=np.int32)


class AtItsTarget:
    """A run of one step, committed and published by a trainer that has ended."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = MemoryStore()
        spec = RunSpec("r", "toy", {}, "h", 0, lag_bound=0, batch_min=1, batch_max=1)
        run = self.store.create_run(spec, {"train": [Task("t0", {})], "heldout": [Task("h0", {}, "heldout")]})
        fence = self.store.start_trainer(run.id, owner="first", lease_s=60, checkpoint=None).fence
        self.publish(run, fence, parent=None, updates=0)
        self.score(run, version=0, step=0)
        (episode,) = self.store.open_episodes(
            run.id, worker="w", request=uuid4(), n=1, engine_version=0, lineage=LINEAGE
        ).episodes
        self.end(episode)
        claim = self.store.claim(run.id, fence, n_min=1, n_max=1, lease_s=60)
        consumed = [(item.item, item.token) for item in claim.items]
        self.store.commit_step(run.id, fence, StepCommit(1, True, 0, "h", {}, {}, consumed=consumed))
        self.publish(run, fence, parent=0, updates=1)
        self.store.release_trainer(run.id, fence)
        self.trained: list[bool] = []
        config = SimpleNamespace(
            trainer=SimpleNamespace(steps=1), store=SimpleNamespace(outage_s=0.0), rollout=SimpleNamespace(workers=1),
            reward=SimpleNamespace(workers=0),
        )  # fmt: skip
        monkeypatch.setattr(launch, "from_row", lambda row: (config, folder))
        monkeypatch.setattr(launch, "engine_servers", lambda *_: [])
        monkeypatch.setattr(launch, "_supervise", lambda *_: "finished")
        monkeypatch.setattr(launch, "print_summary", lambda *_: None)
        monkeypatch.setattr(RunProcesses, "start", lambda processes, *, trains: self.trained.append(trains))

    def publish(self, run: RunRow, fence: int, *, parent: int | None, updates: int) -> None:
        version = self.store.stage_version(run.id, fence, parent=parent, updates=updates, uri=f"w{updates}", checksum="c")
        self.store.publish_version(run.id, fence, version.version)

    def end(self, episode: Any) -> None:
        turn = Segment(0, IDS, IDS, np.zeros(2, np.float32), np.zeros(2, np.int32), finish_reason=FinishReason.STOP)
        self.store.write_segment(episode, turn)
        self.store.complete(episode, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED, Reward(1.0, True)))

    def ask(self, run: RunRow, version: int, step: int) -> int:
        return self.store.request_evaluation(run.id, version=version, step=step, split="heldout", n=1).id

    def score(self, run: RunRow, version: int, step: int) -> None:
        (episode,) = self.store.open_evaluation_episodes(
            self.ask(run, version, step), worker="e", request=uuid4(), n=1, lineage=LINEAGE
        ).episodes
        self.end(episode)

    @property
    def row(self) -> RunRow:
        found = self.store.find_run("r")
        assert found is not None
        return found


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AtItsTarget:
    return AtItsTarget(tmp_path, monkeypatch)


def test_final_evaluation__never_asked_for__the_trainer_goes_back(case: AtItsTarget) -> None:
    """Launcher and trainer died between the last step's commit and the request for its score."""
    assert launch.execute(case.row, case.store) == 0
    assert case.trained == [True]


def test_final_evaluation__asked_for__is_all_that_is_left(case: AtItsTarget) -> None:
    case.ask(case.row, version=1, step=1)
    assert launch.execute(case.row, case.store) == 0
    assert case.trained == [False]


def test_final_evaluation__scored__nothing_is_left(case: AtItsTarget) -> None:
    case.score(case.row, version=1, step=1)
    with pytest.raises(UsageError, match="has already reached its 1 steps"):
        launch.execute(case.row, case.store)
    assert case.trained == []
