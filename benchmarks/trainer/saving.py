"""What a checkpoint of the default model costs, and which interval keeps saving under its share of a run."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from agentrl.trainer.checkpointing import SAVING_SHARE, affordable_interval, start_saving
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from benchmarks.report import Row, table
from benchmarks.trainer.layout_rank import random_weights
from benchmarks.trainer.steps import default_config, rows

SAVES = 5


def measure(quick: bool) -> bool:
    """Print the table."""
    torch.set_num_threads(1)
    hf = default_config()
    model = TrainedModel(hf, "policy", random_weights(hf).items(), OptimizerSettings())
    batch = rows(8 if quick else 64)
    began = time.perf_counter()
    model.step(batch, lambda o, c: -o["logprob"].sum(), denominator=1e4, learning_rate=1e-5)
    step_s = time.perf_counter() - began
    blocked, whole = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 if quick else SAVES):
            began = time.perf_counter()
            saving = start_saving(Path(folder) / str(number), {"policy": model}, {"step": number})
            while not saving.written:
                time.sleep(0.001)
            saving.finish()
            whole.append(time.perf_counter() - began)
            blocked.append(saving.seconds)
    interval = affordable_interval(min(blocked), step_s)
    row = Row(
        "a checkpoint of the default policy",
        f"{min(blocked) * 1e3:.0f} ms of the trainer's time",
        f"{min(whole) * 1e3:.0f} ms until it is on disk; a step takes {step_s * 1e3:.0f} ms; every {interval} steps",
        min(blocked) / (min(blocked) + interval * step_s),
        f"<= {SAVING_SHARE:g}",
        min(blocked) / (min(blocked) + interval * step_s) <= SAVING_SHARE,
    )
    print(table([row]), flush=True)
    return bool(row.met)
