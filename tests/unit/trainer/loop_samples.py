"""A trainer's loop on a store of its own, with small models and rollouts that act whenever the trainer asks for work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from trainer_samples import VOCABULARY, reference_model, trained

from agentrl.config.load import resolve
from agentrl.config.run import RunConfig
from agentrl.monitor.log import ProcessLog
from agentrl.store.contract import Claim, RunSpec
from agentrl.store.memory import MemoryStore
from agentrl.trainer.channel import Channel
from agentrl.trainer.console import Console
from agentrl.trainer.loop import TrainerLoop
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import TrainedModel
from agentrl.trainer.publish import Publisher
from agentrl.trainer.team import Team
from agentrl.types import EpisodeEnd, FinishReason, Lineage, Opened, Outcome, Reward, Sampling, Segment, Task, Termination

LINEAGE = Lineage("tiny", "tok", "tmpl", "local", "1", "float32", Sampling(), environment="toy", environment_version="1")
Chooser = Callable[[list[Opened]], Sequence[Opened]]
"""Of the running episodes, those that end now."""


def everything(running: list[Opened]) -> Sequence[Opened]:
    return list(running)


class Rollouts:
    """A store in which episodes act before each claim: sampled by the policy itself, so that log-probs are the engine's."""

    def __init__(self, store: Any, run: int, policy: TrainedModel, ends: Chooser) -> None:
        self._store, self._run, self._policy, self._ends = store, run, policy, ends
        self.running: list[Opened] = []
        self.opened: list[Opened] = []
        self.claims: list[Claim] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, *arguments: Any, **named: Any) -> Claim:
        self.act()
        claim: Claim = self._store.claim(*arguments, **named)
        self.claims.append(claim)
        return claim

    def act(self) -> None:
        newest = self._store.newest_version(self._run).version
        opened = self._store.open_episodes(
            self._run, worker="w", request=uuid4(), n=64, engine_version=newest, lineage=LINEAGE
        ).episodes
        self.running += opened
        self.opened += opened
        for episode in self._ends(self.running):
            self.running.remove(episode)
            self.end(episode)

    def end(self, episode: Opened) -> None:
        """One turn, as if it had been sampled when the episode opened."""
        chance = np.random.default_rng(episode.seed)
        seen, done = (chance.integers(0, VOCABULARY, n).astype(np.int32) for n in (5, 2 + episode.seed % 4))
        ids = torch.from_numpy(np.concatenate([seen, done]).astype(np.int64))
        row = Row(ids, torch.arange(len(seen), len(ids)))
        logprobs = self._policy.forward([row])[0]["logprob"].numpy()
        turn = Segment(
            0, seen, done, logprobs, np.full(len(done), episode.start_version, np.int32), finish_reason=FinishReason.STOP
        )
        self._store.write_segment(episode, turn)
        reward = Reward(float(chance.integers(0, 2)))
        self._store.complete(episode, EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED, reward))


def config_of(preset: str, *overrides: str) -> RunConfig:
    """Small settings of a run; evaluations are asked for once and never made."""
    small = ("trainer.steps=3", "trainer.batch=8", "evaluation.episodes=1", "evaluation.every=0", "store.poll_seconds=0.01",
             "trainer.checkpoint_every=1000")  # fmt: skip
    if preset.startswith(("sao", "ppo", "turn")):
        small += ("algorithm.critic.warmup_batches=0",)
    chosen = dict(setting.split("=", 1) for setting in (*small, *overrides))
    settings = [f"{key}={value}" for key, value in chosen.items()]
    return resolve(environment="code_agent", preset=preset, file=None, flags={}, overrides=settings).config


def spec_of(config: RunConfig, **changes: Any) -> RunSpec:
    """The run's row as a launch writes it, without what needs an environment."""
    pace = config.pace
    values: dict[str, Any] = {
        "name": f"loop-{uuid4().hex[:8]}", "environment": "toy", "config": {}, "config_hash": "h", "seed": 3,
        "lag_bound": pace.lag_bound, "batch_min": pace.batch_min, "batch_max": pace.batch_max, "ahead": pace.ahead,
        "group_size": config.algorithm.group_size, "target_steps": config.trainer.steps,
    }  # fmt: skip
    return RunSpec(**(values | changes))


def loop_of(
    config: RunConfig, folder: Path, *, store: Any = None, n_tasks: int = 50, ends: Chooser = everything, **spec: Any
) -> TrainerLoop:
    """A loop that has published its first version; its store is a `Rollouts`."""
    store = store or MemoryStore()
    tasks = {"train": [Task(f"t{i}", {"n": i}) for i in range(n_tasks)], "heldout": [Task("h0", {}, "heldout")]}
    run = store.create_run(spec_of(config, **spec), tasks)
    model = reference_model()
    policy = trained(model)
    critic = trained(model, "critic") if config.algorithm.critic is not None else None
    team = Team(policy, critic, Channel())
    start = store.start_trainer(run.id, owner="test", lease_s=600, checkpoint=None)
    publisher = Publisher(store, run.id, start, folder / "weights")
    version = publisher.publish(team.weights, parent=None, updates=0)
    rollouts: Any = Rollouts(store, run.id, policy, ends)
    log = ProcessLog(folder / "logs", "trainer")
    return TrainerLoop(
        rollouts, run, config, folder, start, version, team, publisher, log, Console(config.trainer.steps), threading.Event()
    )


def rollouts_of(loop: TrainerLoop) -> Rollouts:
    """The loop's store."""
    assert isinstance(loop.store, Rollouts)
    return loop.store
