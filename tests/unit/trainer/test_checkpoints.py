"""Checkpoints: whole or not at all, of the right model, and at a price that is known."""

from __future__ import annotations

import errno
import json
import os
import queue
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from trainer_samples import reference_model, sample_rows, trained

from agentrl.errors import NotReadyError, UsageError
from agentrl.store.contract import Checkpoint
from agentrl.trainer import checkpointing
from agentrl.trainer.checkpointing import (
    MANIFEST,
    SAVING_SHARE,
    affordable_interval,
    load_checkpoint,
    read_progress,
    start_saving,
    verify_checkpoint,
)
from agentrl.trainer.megatron import sharded_files


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    model = trained(reference_model())
    model.step(sample_rows([9, 8]), lambda o, c: -o["logprob"].sum(), denominator=1.0, learning_rate=1e-3)
    torch.manual_seed(7)
    saving = start_saving(tmp_path_factory.mktemp("run") / "s1", {"policy": model}, {"step": 1, "kl_coefficient": 0.25})
    torch.manual_seed(8)
    uri, checksum = saving.finish()
    return Checkpoint(id=1, branch=1, step=1, updates=1, version=0, uri=uri, checksum=checksum)


def test_no_overwrite(saved: Checkpoint) -> None:
    with pytest.raises(FileExistsError, match="never overwritten"):
        start_saving(Path(saved.uri), {}, {})


def test_progress_and_random_state__come_back_together(saved: Checkpoint) -> None:
    assert {name: read_progress(saved.uri)[name] for name in ("step", "kl_coefficient")} == {"step": 1, "kl_coefficient": 0.25}
    torch.manual_seed(99)
    load_checkpoint(saved.uri, {"policy": trained(reference_model(seed=3))})
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(3))


@pytest.mark.parametrize("damage", ["cut", "missing", "manifest", "no manifest"])
def test_whole_or_nothing(saved: Checkpoint, damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved.uri, folder)
    copy = Checkpoint(id=1, branch=1, step=1, updates=1, version=0, uri=str(folder), checksum=saved.checksum)
    assert verify_checkpoint(copy)
    part = next((folder / "policy").glob("*.distcp"))
    if damage == "cut":
        part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    elif damage == "missing":
        part.unlink()
    elif damage == "manifest":
        (folder / MANIFEST).write_text((folder / MANIFEST).read_text() + " ")
    else:
        (folder / MANIFEST).unlink()
    assert not verify_checkpoint(copy)


@pytest.mark.parametrize("unread", [MANIFEST, ".distcp"])
def test_unread_is_not_damaged(saved: Checkpoint, unread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = checkpointing._hash

    def stale(path: Path) -> str:
        if path.name.endswith(unread):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path)

    monkeypatch.setattr(checkpointing, "_hash", stale)
    with pytest.raises(NotReadyError, match=r"can't be read: .*Stale"):
        verify_checkpoint(saved)


def test_checkpoint_of_another_model__both_sizes_are_named(saved: Checkpoint) -> None:
    with pytest.raises(UsageError, match="vocab_size is 48 in the checkpoint, 50 in the model"):
        load_checkpoint(saved.uri, {"policy": trained(reference_model(vocab_size=50))})
    model = trained(reference_model())
    with pytest.raises(UsageError, match="holds policy, this run trains critic, policy"):
        load_checkpoint(saved.uri, {"policy": model, "critic": model})


def test_format_of_another_release__says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"format": 7}))
    with pytest.raises(NotReadyError, match="format 7"):
        read_progress(str(tmp_path))
    (tmp_path / "state.pt").touch()
    with pytest.raises(NotReadyError, match="format 1"):
        read_progress(str(tmp_path / "state.pt"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_hashes__each_file_is_read_once(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of what the ranks' threads wrote are known when rank 0, between two steps, completes a checkpoint."""
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
        (tmp_path / name).write_text(name)
    written = [{f"__{rank}_0.distcp": f"of rank {rank}"} for rank in range(2)]
    if ranks == 1:
        written[0] |= written[1]
    told: list[Any] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    monkeypatch.setattr(dist, "all_gather_object", lambda found, own: found.__setitem__(slice(None), written))
    monkeypatch.setattr(dist, "broadcast_object_list", lambda objects, src: told.extend(objects))
    hashed: list[str] = []
    monkeypatch.setattr(sharded_files, "file_hash", lambda path: (hashed.append(path.name), "of rank 0, read here")[1])
    request: Any = SimpleNamespace(finalize_fns=[])
    hashes = sharded_files.Writing(tmp_path, request, [], [], queue.Queue(), written[0]).finish()
    assert hashes == {
        "__0_0.distcp": "of rank 0", "__1_0.distcp": "of rank 1", ".metadata": "of rank 0, read here"
    }  # fmt: skip
    assert hashed == [".metadata"]
    assert told == ([hashes] if ranks > 1 else [])


@pytest.mark.parametrize(("saving_s", "step_s"), [(0.01, 1.0), (30.0, 1.0), (5.0, 100.0), (0.0, 1e-9), (200.0, 3000.0)])
def test_interval__keeps_saving_under_its_share(saving_s: float, step_s: float) -> None:
    interval = affordable_interval(saving_s, step_s)
    assert saving_s <= SAVING_SHARE * (saving_s + interval * max(step_s, 1e-6)) * (1 + 1e-9)
    cheaper = (interval - 1) * step_s * SAVING_SHARE < saving_s * (1 - SAVING_SHARE)
    assert interval == 1 or cheaper or (interval <= 20 and interval * step_s <= 600)
