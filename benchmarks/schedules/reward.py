"""Reward after equal numbers of trajectories, for workers that load every 1st, 3rd or 5th version.

A small model learns to answer each of eight prompts with one of the tokens that earn a point. Trainer, loss, weights and lags
are real; a worker draws from the distribution that its weights give, and acts only when the trainer asks, so that the interval
alone makes data old.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
import torch

from agentrl.config.load import resolve
from agentrl.config.run import RunConfig
from agentrl.monitor.log import ProcessLog
from agentrl.staleness import refresh_due
from agentrl.store.contract import Claim, RunSpec, StepCommit, StepResult
from agentrl.store.memory import MemoryStore
from agentrl.trainer.channel import Channel
from agentrl.trainer.console import Console
from agentrl.trainer.loop import TrainerLoop
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.publish import Publisher
from agentrl.trainer.team import Team
from agentrl.types import EpisodeEnd, FinishReason, Lineage, Opened, Outcome, Reward, Sampling, Segment, Task, Termination
from benchmarks.schedules.refresh import EVERY
from benchmarks.trainer import layout_rank

PROMPTS, TOKENS, LAG = 8, 32, 4
LINEAGE = Lineage("tiny", "tok", "tmpl", "local", "1", "float32", Sampling(), environment="points", environment_version="1")


def measure(quick: bool = False) -> None:
    """Print a row for each interval."""
    steps, seeds = (1, 1) if quick else (24, 2)
    print(f"{steps} updates of 32 trajectories, {seeds} seeds; a quarter of the tokens earns a point.\n")
    print("| load every | mean lag | reward, first 8 updates | reward, last 8 updates (lowest to highest seed) |")
    print("|---|---|---|---|", flush=True)
    for every in EVERY:
        runs = [_learn(every, seed, steps) for seed in range(seeds)]
        lags = [step["lag_mean"] for run in runs for step in run]
        first = statistics.mean(step["reward_mean"] for run in runs for step in run[:8])
        last = [statistics.mean(step["reward_mean"] for step in run[-8:]) for run in runs]
        spread = f"{min(last):.3f} to {max(last):.3f}"
        print(
            f"| {every} | {statistics.mean(lags):.2f} | {first:.3f} | {statistics.mean(last):.3f} ({spread}) |",
            flush=True,
        )


class Acting:
    """A store in which a batch of episodes acts before each claim, on the weights that a worker would hold."""

    def __init__(self, store: MemoryStore, run: int, policy: TrainedModel, config: RunConfig) -> None:
        self._store, self._run, self._policy, self._config = store, run, policy, config
        self._chance = np.random.default_rng(config.seed)
        self._held = store.version(run, 0)
        self._table = self._distribution()
        self.metrics: list[Mapping[str, float]] = []

    def commit_step(self, run: int, fence: int, commit: StepCommit) -> StepResult:
        self.metrics.append(commit.metrics)
        return self._store.commit_step(run, fence, commit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, *arguments: Any, **named: Any) -> Claim:
        newest = self._store.newest_version(self._run)
        assert newest is not None
        if newest.version != self._held.version and refresh_due(
            newest.updates, self._held.updates, self._config.staleness.refresh_every
        ):
            self._held, self._table = newest, self._distribution()
        opened = self._store.open_episodes(
            self._run, worker="w", request=uuid4(), n=self._config.trainer.batch, engine_version=self._held.version,
            lineage=LINEAGE,
        )  # fmt: skip
        for episode in opened.episodes:
            self._act(episode)
        return self._store.claim(*arguments, **named)

    def _distribution(self) -> np.ndarray:
        """Log-probs float32 [PROMPTS, TOKENS] under the newest weights."""
        asked = [
            Row(torch.tensor([*_prompt(p), t]), torch.tensor([len(_prompt(p))])) for p in range(PROMPTS) for t in range(TOKENS)
        ]
        found = torch.cat([outputs["logprob"] for outputs in self._policy.forward(asked)])
        return found.reshape(PROMPTS, TOKENS).numpy()

    def _act(self, episode: Opened) -> None:
        prompt = int(cast(int, episode.task.payload["prompt"]))
        odds = np.exp(self._table[prompt].astype(np.float64))
        token = int(self._chance.choice(TOKENS, p=odds / odds.sum()))
        turn = Segment(
            0, np.array(_prompt(prompt), np.int32), np.array([token], np.int32), self._table[prompt, token : token + 1],
            np.array([self._held.version], np.int32), finish_reason=FinishReason.STOP,
        )  # fmt: skip
        self._store.write_segment(episode, turn)
        reward = Reward(float(token % 4 == prompt % 4))
        self._store.complete(episode, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED, reward))


def _prompt(number: int) -> list[int]:
    return [number, 1, 2]


def _learn(every: int, seed: int, steps: int) -> list[Mapping[str, float]]:
    """Metrics of each update."""
    settings = ("trainer.batch=32", f"trainer.steps={steps}", "algorithm.group_size=4", "evaluation.every=0", f"seed={seed}",
                "evaluation.episodes=1", "trainer.checkpoint_every=100000", f"staleness.refresh_every={every}",
                f"staleness.lag={LAG}", "trainer.learning_rate=2e-3")  # fmt: skip
    config = resolve(environment="code_agent", preset="rloo", file=None, flags={}, overrides=settings).config
    pace, store = config.pace, MemoryStore()
    spec = RunSpec(
        "points", "points", {}, "h", seed, pace.lag_bound, pace.batch_min, pace.batch_max, config.algorithm.group_size,
        target_steps=steps,
    )  # fmt: skip
    tasks = {"train": [Task(f"p{i}", {"prompt": i}) for i in range(PROMPTS)], "heldout": [Task("h", {"prompt": 0}, "heldout")]}
    run = store.create_run(spec, tasks)
    hf = {**layout_rank.config("llama", tied=True), "vocab_size": TOKENS, "num_hidden_layers": 2}
    policy = TrainedModel(hf, "policy", layout_rank.random_weights(hf).items(), OptimizerSettings())
    team = Team(policy, None, Channel())
    with tempfile.TemporaryDirectory() as named, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(named)
        start = store.start_trainer(run.id, owner="benchmark", lease_s=3600, checkpoint=None)
        publisher = Publisher(store, run.id, start, folder / "weights")
        version = publisher.publish(team.weights, parent=None, updates=0)
        acting = cast(Any, Acting(store, run.id, policy, config))
        log = ProcessLog(folder / "logs", "trainer")
        loop = TrainerLoop(acting, run, config, folder, start, version, team, publisher, log, Console(steps), threading.Event())
        loop.train()
    metrics: list[Mapping[str, float]] = acting.metrics
    return metrics
