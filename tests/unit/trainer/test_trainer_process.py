"""The trainer process at its ends: a start waits for a dead holder's lease, and a failed update releases nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from agentrl.errors import Fenced, NotReadyError, TokenDrift
from agentrl.launch.processes import FINAL_CODES
from agentrl.monitor.log import ProcessLog
from agentrl.store.contract import Checkpoint, RunRow, RunSpec, StepCommit
from agentrl.store.memory import MemoryStore
from agentrl.trainer import main as trainer
from agentrl.trainer import team
from agentrl.trainer.checkpointing import start_saving
from agentrl.trainer.console import Console
from agentrl.trainer.loop import TrainerLoop
from agentrl.trainer.update import Companions
from agentrl.types import (
    EpisodeEnd,
    FinishReason,
    Lineage,
    Outcome,
    Place,
    Reward,
    Sampling,
    Segment,
    Task,
    Termination,
)

LINEAGE = Lineage("tiny", "tok", "tmpl", "local", "1", "float32", Sampling(), environment="toy", environment_version="1")
LEASE_S = 0.4


class Case:
    """A run with one item ready, and what `_train` needs besides a model."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        spec = RunSpec("r", "toy", {}, "h", 0, lag_bound=0, batch_min=1, batch_max=1, max_lease_attempts=2)
        self.run: RunRow = self.store.create_run(spec, {"train": [Task("t0", {})]})
        self.folder = folder
        self.log = ProcessLog(folder, "trainer")
        self.stop = threading.Event()
        self.config: Any = SimpleNamespace(seed=0, trainer=SimpleNamespace(steps=1, lease_s=LEASE_S))
        start = self.store.start_trainer(self.run.id, owner="first", lease_s=60, checkpoint=None)
        version = self.store.stage_version(self.run.id, start.fence, parent=None, updates=0, uri="w", checksum="c")
        self.store.publish_version(self.run.id, start.fence, version.version)
        (episode,) = self.store.open_episodes(
            self.run.id, worker="w", request=uuid4(), n=1, engine_version=version.version, lineage=LINEAGE
        ).episodes
        ids = np.arange(2, dtype=np.int32)
        turn = Segment(0, ids, ids, np.zeros(2, np.float32), np.zeros(2, np.int32), finish_reason=FinishReason.STOP)
        self.store.write_segment(episode, turn)
        self.store.complete(episode, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED, Reward(1.0, True)))
        self.store.release_trainer(self.run.id, start.fence)

    def start(self) -> Any:
        return trainer._start(self.store, self.run, LEASE_S, Console(1), self.stop)[0]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_start_after_a_kill__waits_for_the_lease(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """A restarted trainer is no second trainer: it must not be turned away by the lease of the one that died."""
    killed = case.store.start_trainer(case.run.id, owner="killed", lease_s=LEASE_S, checkpoint=None)
    assert case.start().fence > killed.fence
    assert capsys.readouterr().out.count("waiting for a lease: trainer killed holds run") == 1


def test_start_after_an_outage__has_its_whole_time_for_the_lease(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database comes back, and another trainer's last renewal with it, after longer than a start waits."""
    killed: list[int] = []
    checkpoints = case.store.checkpoints

    def late(run: int) -> Sequence[Checkpoint]:
        if not killed:
            time.sleep(LEASE_S * trainer.PATIENCE * 1.1)
            killed.append(case.store.start_trainer(run, owner="killed", lease_s=LEASE_S, checkpoint=None).fence)
        return checkpoints(run)

    monkeypatch.setattr(case.store, "checkpoints", late)
    assert case.start().fence > killed[0]


def test_start_beside_a_living_trainer__fenced(case: Case) -> None:
    holder = case.store.start_trainer(case.run.id, owner="living", lease_s=LEASE_S, checkpoint=None)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LEASE_S / 8):
            case.store.renew_trainer(case.run.id, holder.fence, LEASE_S)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(Fenced, match="holds run"):
            case.start()
    finally:
        ended.set()
        thread.join()


def test_damaged_checkpoint__is_told_once_and_the_one_before_it_is_taken(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fence = case.start().fence
    claim = case.store.claim(case.run.id, fence, n_min=1, n_max=1, lease_s=60)
    consumed = [(item.item, item.token) for item in claim.items]
    case.store.commit_step(case.run.id, fence, StepCommit(1, False, 0, "h", {}, {}, consumed=consumed))
    for uri in ("older", "newer"):
        case.store.add_checkpoint(case.run.id, fence, step=1, updates=0, version=0, uri=uri, checksum="c")
    looked: list[str] = []

    def verify(checkpoint: Checkpoint) -> bool:
        looked.append(checkpoint.uri)
        return checkpoint.uri == "older"

    monkeypatch.setattr(trainer, "verify_checkpoint", verify)
    start, chosen = trainer._start(case.store, case.run, LEASE_S, Console(1), case.stop)
    assert (start.step, chosen.uri if chosen else None) == (1, "older")
    assert looked == ["newer", "older"], "while it waited for the lease, too"
    assert capsys.readouterr().out.count("the checkpoint of step 1 is passed over: files in newer are missing or changed") == 1


def test_no_checkpoint_is_whole__nothing_is_abandoned(case: Case) -> None:
    """A folder that is not mounted must not cost the run its steps."""
    fence = case.start().fence
    claim = case.store.claim(case.run.id, fence, n_min=1, n_max=1, lease_s=60)
    consumed = [(item.item, item.token) for item in claim.items]
    case.store.commit_step(case.run.id, fence, StepCommit(1, False, 0, "h", {}, {}, consumed=consumed))
    case.store.add_checkpoint(case.run.id, fence, step=1, updates=0, version=0, uri="/not/mounted/b1-f1-s1", checksum="c")
    case.store.release_trainer(case.run.id, fence)
    with pytest.raises(NotReadyError, match="/not/mounted/b1-f1-s1") as raised:
        case.start()
    assert raised.value.exit_code in FINAL_CODES
    row = case.store.find_run("r")
    assert row is not None
    assert row.step == 1
    assert len(case.store.checkpoints(case.run.id)) == 1


def test_start_while_stopping__does_not_wait(case: Case) -> None:
    case.store.start_trainer(case.run.id, owner="living", lease_s=60, checkpoint=None)
    case.stop.set()
    with pytest.raises(Fenced):
        case.start()


def test_one_stop__other_ranks_leave_it_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that reaches all ranks, as torchrun sends it, must not take from rank 0 those that save with it."""

    class Stopped:
        def hear(self) -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)

    monkeypatch.setattr(trainer, "join_world", lambda: None)
    monkeypatch.setattr(trainer, "Channel", Stopped)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert trainer.follow() == trainer.EXIT_DONE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_difference_between_engine_and_trainer__is_not_tried_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(*_: Any) -> int:
        raise TokenDrift("the prompt is another one")

    settings: Any = SimpleNamespace(store=SimpleNamespace(outage_s=0.0))
    monkeypatch.setattr(trainer, "from_row", lambda row: (settings, case.folder))
    monkeypatch.setattr(trainer, "_on_signal", lambda stop: None)
    monkeypatch.setattr(trainer, "_train", lie)
    assert trainer.run_trainer(case.store, case.run) == trainer.EXIT_FAILED
    assert trainer.EXIT_FAILED in FINAL_CODES


class FailingLoop:
    """Claims, renews, and fails as an update does that runs out of memory."""

    def __init__(self, case: Case, fence: int, inside: bool) -> None:
        self.case, self.fence, self.in_update, self.leases = case, fence, inside, ()

    def train(self) -> bool:
        claim = self.case.store.claim(self.case.run.id, self.fence, n_min=1, n_max=1, lease_s=60)
        if self.in_update:
            leases = [(i.item, i.token) for i in claim.items]
            self.case.store.renew_leases(self.case.run.id, self.fence, leases, 60)
        raise MemoryError("out of memory")


@pytest.mark.parametrize("inside", [True, False])
def test_failure_releases(case: Case, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed update is charged to its batch, so that it is dropped in the end; a failure outside costs nothing."""
    monkeypatch.setattr(trainer, "_model_dir", lambda *_: case.folder)
    monkeypatch.setattr(trainer, "_gather_team", lambda *_: SimpleNamespace(dismiss=lambda: None))
    monkeypatch.setattr(trainer, "_build_loop", lambda *a: FailingLoop(case, a[7].fence, inside))
    for _ in range(2):
        with pytest.raises(MemoryError):
            trainer._train(case.store, case.run, case.config, case.folder, case.log, case.stop)
    time.sleep(LEASE_S)
    case.start()
    places = case.store.conservation(case.run.id).places
    assert (places[Place.DROPPED], places[Place.READY]) == ((1, 0) if inside else (0, 1))


def test_update_longer_than_a_lease__keeps_its_batch(case: Case) -> None:
    start = case.start()
    claim = case.store.claim(case.run.id, start.fence, n_min=1, n_max=1, lease_s=LEASE_S)
    leases = [(i.item, i.token) for i in claim.items]

    def others_reap() -> int:
        """Opening episodes takes back what lapsed."""
        case.store.open_episodes(case.run.id, worker="w", request=uuid4(), n=1, engine_version=0, lineage=LINEAGE)
        return case.store.conservation(case.run.id).places[Place.LEASE]

    with trainer._renewed(case.store, case.run.id, start.fence, LEASE_S, case.stop, lambda: leases):
        time.sleep(1.5 * LEASE_S)
        assert others_reap() == 1
    time.sleep(1.5 * LEASE_S)
    assert others_reap() == 0


def test_checkpoint_file_by_step__paths_differ_and_no_file_is_overwritten(case: Case) -> None:
    folders: list[Path] = []
    for fence in (11, 12):
        loop: Any = SimpleNamespace(
            folder=case.folder, start=SimpleNamespace(branch=1, fence=fence), version=SimpleNamespace(version=0),
            team=SimpleNamespace(kl_coefficient=None, start_saving=lambda folder, progress: folders.append(folder)),
            _step=1, _updates=1, _commit_checkpoint=lambda: None,
        )  # fmt: skip
        TrainerLoop._checkpoint(loop)
    assert len(set(folders)) == 2
    folders[0].mkdir(parents=True)
    with pytest.raises(FileExistsError, match="never overwritten"):
        start_saving(folders[0], {}, {})


def test_checkpoint__brings_the_kl_coefficient_back(monkeypatch: pytest.MonkeyPatch) -> None:
    reference: Any = SimpleNamespace(coefficient=0.01)
    models: Any = SimpleNamespace()
    here = team.Team(models, None, models, Companions(reference))
    monkeypatch.setattr(team, "load_checkpoint", lambda uri, found: None)
    monkeypatch.setattr(team, "read_progress", lambda uri: {"kl_coefficient": 0.25})
    here.load_here("somewhere")
    assert here.kl_coefficient == 0.25
