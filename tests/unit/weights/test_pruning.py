"""Old weight files go when they take more than their room, and none that somebody may still load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl.store.contract import RunSpec
from agentrl.store.loads import EngineLoad
from agentrl.store.memory import MemoryStore
from agentrl.weights.files import export_weights
from agentrl.weights.pruning import Pruning


class Case:
    """A run whose versions all continue the first weights; each file takes ``size`` bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, MemoryStore()
        self.run = self.store.create_run(RunSpec("r", "toy", {}, "h", 0, lag_bound=0, batch_min=1, batch_max=1), {}).id
        self.fence = self.store.start_trainer(self.run, owner="t", lease_s=600, checkpoint=None).fence
        self.size = 0

    def publish(self) -> int:
        newest = self.store.newest_version(self.run)
        number = 0 if newest is None else newest.version + 1
        file = export_weights([("a", torch.ones(100))], self.folder / f"v{number}")
        self.size = file.n_bytes
        parent = None if newest is None else newest.version
        version = self.store.stage_version(
            self.run, self.fence, parent=parent, updates=0, uri=file.uri, checksum=file.checksum
        ).version
        self.store.publish_version(self.run, self.fence, version)
        return version

    def prune(self, files: float, keep: int = 2) -> list[str]:
        removed = Pruning(self.folder, int(files * self.size), keep).prune(self.store, self.run, self.fence)
        return [Path(uri).parent.name for uri in removed]

    def left(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    made = Case(tmp_path)
    for _ in range(6):
        made.publish()
    return made


def test_room__nothing_goes_while_all_fit(case: Case) -> None:
    assert case.prune(files=6) == []
    assert len(case.left()) == 6


def test_room__the_oldest_go_until_the_rest_fits(case: Case) -> None:
    assert case.prune(files=4.5) == ["v1", "v2"], "v0 is where a run without checkpoint resumes"
    assert case.left() == {"v0", "v3", "v4", "v5"}


def test_needed_stays__whatever_room_it_takes(case: Case) -> None:
    case.store.record_engine_load(case.run, EngineLoad("engine", 2))
    assert case.prune(files=0) == ["v1", "v3"]
    assert case.left() == {"v0", "v2", "v4", "v5"}


def test_row_before_file__marked_when_it_goes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, bool]] = []
    retire = case.store.retire_weights

    def watched(run: int, fence: int, *, keep: int, uris: list[str]) -> set[str]:
        order.extend((Path(uri).parent.name, Path(uri).is_file()) for uri in uris)
        case.store.record_engine_load(case.run, EngineLoad("late", 3))
        return retire(run, fence, keep=keep, uris=uris)

    monkeypatch.setattr(case.store, "retire_weights", watched)
    assert case.prune(files=0) == ["v1", "v2"], "an engine loaded v3 meanwhile"
    assert order == [("v1", True), ("v2", True), ("v3", True)]


def test_left_over__a_file_that_no_version_names_goes_too(case: Case) -> None:
    export_weights([("a", torch.ones(100))], case.folder / "killed")
    assert "killed" in case.prune(files=0)
    assert "killed" not in case.left()


def test_file_of_a_user__is_left_alone(case: Case) -> None:
    note = case.folder / "notes.txt"
    note.write_text("which of these is the good one")
    case.prune(files=0)
    assert case.left() == {"v0", "v4", "v5", note.name}
