"""Checkpoints: a folder of sharded files for each model and one manifest that names them all with their hashes.

Invariants
- whole_or_nothing: a checkpoint counts only once its row is committed, with the manifest's hash; the manifest is written after
  all files, and a file that is missing, cut or replaced makes it one that is never loaded.
- unread_is_not_damaged: what a disk does not answer for now is no reason to give up the work that it holds.
- no_overwrite: the folder's name holds branch, fence and step, and a folder that exists is never written into.
- any_layout: what was written with one layout of ranks is read with another.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentrl.errors import NotReadyError, UsageError
from agentrl.store.contract import Checkpoint

if TYPE_CHECKING:
    from agentrl.trainer.megatron.model import TrainedModel
    from agentrl.trainer.megatron.sharded_files import Writing

FORMAT = 2
MANIFEST = "manifest.json"
SAVING_SHARE = 0.05
"""Largest share of a run that saving may take when the interval is chosen here."""
LONGEST_S = 600.0
"""Work that a crash may cost, at most, when the interval is chosen here."""


@dataclass
class Saving:
    """A checkpoint on its way to the disk. ``seconds``: what it has kept the trainer from its work so far."""

    folder: Path
    progress: Mapping[str, Any]
    models: Mapping[str, Any]
    writings: Mapping[str, Writing]
    seconds: float

    @property
    def written(self) -> bool:
        """Whether this rank has nothing left to write; `finish` then waits for nobody for long."""
        return all(writing.written for writing in self.writings.values())

    def finish(self) -> tuple[str, str]:
        """(uri, sha256) of the checkpoint, on every rank. All ranks call it."""
        began = time.perf_counter()
        files = {f"{name}/{file}": digest for name, w in self.writings.items() for file, digest in w.finish().items()}
        manifest = {"format": FORMAT, "progress": dict(self.progress), "models": dict(self.models), "files": files}
        data = json.dumps(manifest, indent=1, sort_keys=True).encode()
        if _first_rank():
            with (self.folder / MANIFEST).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        self.seconds += time.perf_counter() - began
        return str(self.folder), hashlib.sha256(data).hexdigest()


def start_saving(folder: Path, models: Mapping[str, TrainedModel], progress: Mapping[str, Any]) -> Saving:
    """Copy the state of ``models`` and start to write it. All ranks call it; ``progress`` is what JSON can carry.

    `FileExistsError` when the folder is there.
    """
    began = time.perf_counter()
    if _first_rank() and folder.exists():
        raise FileExistsError(f"{folder} exists: a checkpoint is never overwritten")
    random = {"random_state": torch.get_rng_state().numpy().tobytes().hex()}
    described = {name: model.describe() for name, model in models.items()}
    writings = {name: model.start_writing(folder / name) for name, model in models.items()}
    return Saving(folder, {**progress, **random}, described, writings, time.perf_counter() - began)


def verify_checkpoint(checkpoint: Checkpoint) -> bool:
    """The manifest is the one whose hash was committed, and every file in it is there and whole.

    `NotReadyError` when the disk does not say.
    """
    if not has_manifest(checkpoint):
        return False
    folder = Path(checkpoint.uri)
    return all(_is_whole(folder / name, digest) for name, digest in _manifest(checkpoint.uri)["files"].items())


def has_manifest(checkpoint: Checkpoint) -> bool:
    """Whether the manifest is the one whose hash was committed; of the files that it names nothing is read.

    `NotReadyError` when the disk does not say.
    """
    return _is_whole(Path(checkpoint.uri) / MANIFEST, checkpoint.checksum)


def read_progress(uri: str) -> Mapping[str, Any]:
    """What was saved beside the models. `NotReadyError` for a format this version does not know."""
    manifest = _manifest(uri)
    progress: Mapping[str, Any] = manifest["progress"]
    return progress


def load_checkpoint(uri: str, models: Mapping[str, TrainedModel]) -> None:
    """Weights, optimizer and this process's random state from a verified checkpoint. All ranks call it.

    `NotReadyError` when it is of another format, `UsageError` when it holds other models.
    """
    manifest = _manifest(uri)
    require_same_models(uri, {name: model.describe() for name, model in models.items()})
    for name, model in models.items():
        model.read(Path(uri) / name)
    state = bytearray.fromhex(manifest["progress"]["random_state"])
    torch.set_rng_state(torch.frombuffer(state, dtype=torch.uint8).clone())


def require_same_models(uri: str, described: Mapping[str, Mapping[str, Any]]) -> None:
    """`UsageError` unless the checkpoint holds exactly the models that `TrainedModel.describe` describes, by name."""
    saved = _manifest(uri)["models"]
    if saved.keys() != described.keys():
        raise UsageError(
            f"Checkpoint {uri} holds {', '.join(sorted(saved))}, this run trains {', '.join(sorted(described))}: "
            "it is of another run."
        )
    for name, own in described.items():
        differing = [key for key in own if saved[name].get(key) != own[key]]
        if differing:
            told = "; ".join(f"{key} is {saved[name].get(key)} in the checkpoint, {own[key]} in the model" for key in differing)
            raise UsageError(
                f"Checkpoint {uri} is of another {name}: {told}. Resume with the model that the run was started with."
            )


def affordable_interval(saving_s: float, step_s: float) -> int:
    """Steps between checkpoints so that saving takes under `SAVING_SHARE` of the run, and a crash costs `LONGEST_S` at most
    where both can be had."""
    least = max(1, -int(-saving_s * (1 - SAVING_SHARE) // (SAVING_SHARE * max(step_s, 1e-6))))
    return max(least, min(20, max(1, int(LONGEST_S / max(step_s, 1e-6)))))


def _manifest(uri: str) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((Path(uri) / MANIFEST).read_bytes())
    except NotADirectoryError:
        manifest = {"format": 1}
    if manifest.get("format") != FORMAT:
        raise NotReadyError(
            f"Checkpoint {uri} has format {manifest.get('format')}, this version reads {FORMAT}: "
            "resume with the version of agentrl that wrote it."
        )
    return manifest


def _first_rank() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(path: Path, digest: str) -> bool:
    try:
        return _hash(path) == digest
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    except OSError as error:
        raise NotReadyError(
            f"{path} of a checkpoint can't be read: {error}. Nothing was given up: resume when it can be read again, or remove "
            "the checkpoint's folder to go on from the one before it."
        ) from None
