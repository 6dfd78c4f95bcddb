"""Bytes a second of publishing weights, against a plain copy in memory and against a plain safetensors file."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from agentrl.engine.sglang.loading import read_checked
from agentrl.model.config import ModelConfig
from agentrl.store.contract import RunSpec
from agentrl.store.memory import MemoryStore
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.publish import Publisher
from benchmarks.report import Row, Sample, interleaved, table, timed
from benchmarks.trainer.layout_rank import random_weights
from benchmarks.trainer.steps import default_config

ROUNDS = 3
SIZES = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "vocab_size": 16384}
"""Beside the default model's: 258 MB in float32."""


class Case:
    """One model in the trainer's memory, a folder on disk, and a store in memory: only the weights take time."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self.hf = default_config() if quick else {**default_config(), **SIZES, "head_dim": SIZES["hidden_size"] // 4}
        self.model = TrainedModel(self.hf, "policy", random_weights(self.hf).items(), OptimizerSettings())
        self.tensors = {name: tensor.contiguous() for name, tensor in self.model.export()}
        self.copies = {name: torch.empty_like(tensor) for name, tensor in self.tensors.items()}
        self.n_bytes = sum(tensor.nbytes for tensor in self.tensors.values())
        self.folder, self.numbers = folder, itertools.count()
        self.store = MemoryStore()
        run = self.store.create_run(RunSpec("r", "toy", {}, "h", 0, lag_bound=0, batch_min=1, batch_max=1), {}).id
        self.start = self.store.start_trainer(run, owner="t", lease_s=1e6, checkpoint=None)
        self.run = run
        self.phases: dict[str, list[float]] = {}

    def copy(self) -> Sample:
        def work() -> None:
            for name, tensor in self.tensors.items():
                self.copies[name].copy_(tensor)

        return timed(work)

    def save(self) -> Sample:
        return timed(lambda: save_file(self.tensors, self.folder / f"plain-{next(self.numbers)}.safetensors"))

    def save_synced(self) -> Sample:
        """As safe from a crash of the machine as a published file."""
        path = self.folder / f"synced-{next(self.numbers)}.safetensors"

        def work() -> None:
            save_file(self.tensors, path)
            with path.open("rb") as file:
                os.fsync(file.fileno())

        return timed(work)

    def publish(self) -> Sample:
        """Export, file on disk, checksum, rows, verification."""
        publisher = Publisher(self.store, self.run, self.start, self.folder / str(next(self.numbers)))
        sample = timed(lambda: publisher.publish(self.model.export, parent=None, updates=0))
        for phase, seconds in publisher.cost.phases.items():
            self.phases.setdefault(phase, []).append(seconds)
        return sample

    def load(self) -> Sample:
        """What an engine does before it changes its weights."""
        version = self.store.newest_version(self.run)
        assert version is not None
        config = ModelConfig.from_raw(self.hf, "the measured model")
        return timed(lambda: read_checked(version, config))


def measure(quick: bool) -> bool:
    """Print the table; there is no target."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        case = Case(Path(folder), quick)
        variants = {
            "copy": case.copy,
            "save": case.save,
            "synced": case.save_synced,
            "publish": case.publish,
            "load": case.load,
        }
        found = interleaved(1 if quick else ROUNDS, variants)
    rate = {name: case.n_bytes / sample.wall / 1e6 for name, sample in found.items()}
    size = f"{case.n_bytes / 1e6:,.0f} MB"
    rows = [
        Row(f"copy in memory, {size}", f"{rate['copy']:,.0f} MB/s"),
        Row("safetensors file, not synced", f"{rate['save']:,.0f} MB/s", "the copy", rate["save"] / rate["copy"]),
        Row("the same, on disk", f"{rate['synced']:,.0f} MB/s", "the copy", rate["synced"] / rate["copy"]),
        Row("publication", f"{rate['publish']:,.0f} MB/s", "the copy", rate["publish"] / rate["copy"]),
        Row("publication", f"{rate['publish']:,.0f} MB/s", "the file on disk", rate["publish"] / rate["synced"]),
    ]
    cpu = {name: sample.cpu * 1e9 / case.n_bytes for name, sample in found.items()}
    rows.append(
        Row("publication", f"{cpu['publish']:.2f} CPU s/GB", f"the file: {cpu['synced']:.2f}", cpu["publish"] / cpu["synced"])
    )
    for phase, seconds in case.phases.items():
        share = min(seconds) / found["publish"].wall
        rows.append(Row(f"of it: {phase}", f"{min(seconds) * 1e3:,.0f} ms", "the publication", share))
    rows.append(Row("an engine reads and checks it", f"{rate['load']:,.0f} MB/s", "the copy", rate["load"] / rate["copy"]))
    print(table(rows), flush=True)
    return True
