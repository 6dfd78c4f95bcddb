"""Old checkpoints go, and none that a resume may take."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from loop_samples import config_of, loop_of

from agentrl.errors import Fenced
from agentrl.trainer import old_checkpoints
from agentrl.trainer.checkpointing import verify_checkpoint
from agentrl.trainer.loop import TrainerLoop
from agentrl.trainer.old_checkpoints import remove_old_checkpoints


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> TrainerLoop:
    """After four steps with a checkpoint each, of which all but two are gone."""
    config = config_of("grpo", "trainer.steps=4", "trainer.checkpoint_every=1")
    made = loop_of(config, tmp_path_factory.mktemp("run"))
    assert made.train()
    return made


@pytest.fixture
def folder(loop: TrainerLoop, tmp_path: Path) -> Path:
    """A copy of the checkpoints, with what somebody left half-written."""
    shutil.copytree(loop.folder / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "b1-f1-s9" / "policy").mkdir(parents=True)
    return tmp_path / "checkpoints"


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("s")[2]) for path in folder.iterdir())


def remove(loop: TrainerLoop, folder: Path, keep: int, fence: int | None = None) -> list[Path]:
    return remove_old_checkpoints(loop.store, loop.run.id, loop.start.fence if fence is None else fence, folder, keep=keep)


def test_needed_stays(loop: TrainerLoop) -> None:
    kept = loop.store.checkpoints(loop.run.id)
    assert [checkpoint.step for checkpoint in kept] == [4, 3]
    assert all(verify_checkpoint(checkpoint) for checkpoint in kept)
    assert steps(loop.folder / "checkpoints") == [3, 4]


def test_half_written__goes_with_the_next_one_committed(loop: TrainerLoop, folder: Path) -> None:
    assert [path.name for path in remove(loop, folder, 2)] == ["b1-f1-s9"]
    assert steps(folder) == [3, 4]


def test_row_before_file(loop: TrainerLoop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[list[int]] = []
    monkeypatch.setattr(
        old_checkpoints.shutil, "rmtree", lambda path: listed.append([c.step for c in loop.store.checkpoints(loop.run.id)])
    )
    remove(loop, folder, 2)
    assert listed == [[4, 3]]


def test_only_older_files(loop: TrainerLoop, folder: Path) -> None:
    """Once the store has checked the fence, another trainer may start and write."""

    class Store:
        def retire_checkpoints(self, *arguments: Any, **named: Any) -> set[str]:
            stay = loop.store.retire_checkpoints(*arguments, **named)
            (folder / "b2-f99-s5").mkdir()
            return stay

    store: Any = Store()
    remove_old_checkpoints(store, loop.run.id, loop.start.fence, folder, keep=2)
    assert steps(folder) == [3, 4, 5]


def test_only_checkpoints(loop: TrainerLoop, folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder / "best-b1-f1-s9").mkdir()
    assert [path.name for path in remove(loop, folder, 2)] == ["b1-f1-s9"]
    assert {"notes.txt", "best-b1-f1-s9"} <= {path.name for path in folder.iterdir()}


def test_fenced_out__removes_nothing(loop: TrainerLoop, folder: Path) -> None:
    with pytest.raises(Fenced):
        remove(loop, folder, 1, fence=loop.start.fence - 1)
    assert steps(folder) == [3, 4, 9]
