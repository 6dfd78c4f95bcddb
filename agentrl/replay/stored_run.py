"""A run's rows and files brought together for a check: the store, the model directory, the environment, the weights."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from uuid import UUID

import torch

from agentrl.config.stored import from_row, model_folder
from agentrl.environment.registry import load
from agentrl.errors import UsageError
from agentrl.model.model_dir import open_model_dir
from agentrl.replay.check import Evidence, ReplayCheck
from agentrl.replay.rescore import Rescorer
from agentrl.store.contract import RunRow
from agentrl.store.evidence import ended_trajectories, step_evidence, steps_of, tasks_of
from agentrl.store.postgres import PostgresStore
from agentrl.store.reader import Reader
from agentrl.tokens.chat_format import ChatFormat
from agentrl.trainer.gate import TOLERANCE

PAGE = 256
"""Trajectories read and scored at once."""


class StoredRun:
    """``check`` holds what was found so far, ``rescorer`` what was scored; ``chat`` writes what the run's rollout wrote."""

    def __init__(self, store: Reader | PostgresStore, run: RunRow, *, tolerance: float | None = None) -> None:
        """``tolerance``: largest difference of a log-prob; None: what the trainer's precision allows."""
        config, folder = from_row(run.spec.config)
        self._store = store
        self._run = run
        model = open_model_dir(model_folder(config, folder))
        settings = config.model
        self.chat = ChatFormat(model.path, tool_format=settings.chosen_tool_format, follow=settings.history == "template")
        allowed = TOLERANCE[config.trainer.layout.precision] if tolerance is None else tolerance
        self.rescorer = Rescorer(model, lambda version: store.version(run.id, version), tolerance=allowed)
        self.check = ReplayCheck(
            self.chat,
            load(config.environment, config.environment_options),
            config.algorithm,
            self.rescorer,
            max_context=int(model.config.raw["max_position_embeddings"]),
        )

    def check_all(self, limit: int | None = None) -> None:
        """The newest ``limit`` trajectories (None: all), then the newest steps until they hold as many. Raises `TokenDrift`."""
        ended = ended_trajectories(self._store, self._run.id, limit)
        if not ended:
            raise UsageError(f"No trajectory of run {self._run.spec.name} has ended yet: there is nothing to check.")
        torch.set_num_threads(1 if not torch.cuda.is_available() else torch.get_num_threads())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # announcements of kernels that a CPU does not have
            for at in range(0, len(ended), PAGE):
                self.check_trajectories(ended[at : at + PAGE])
        seen = 0
        for step, branch in reversed(steps_of(self._store, self._run.id)):
            seen += self.check_step(step, branch)
            if limit is not None and seen >= limit:
                return

    def check_trajectories(self, keys: Sequence[tuple[UUID, int]]) -> None:
        """By (id, start version)."""
        store, run = self._store, self._run.id
        ids, starts = [identity for identity, _ in keys], [start for _, start in keys]
        stored = store.trajectories(run, ids, starts)
        members = [member for i in ids if i in stored for member in (stored[i], *stored[i].sub_agents)]
        tasks = tasks_of(store, run, [m.id for m in members], [m.start_version for m in members])
        self.check.check([Evidence(member, tasks.get(member.id)) for member in members])

    def check_step(self, step: int, branch: int) -> int:
        """The trajectories of one step; returns how many there were."""
        evidence = step_evidence(self._store, self._run.id, step, branch)
        ids = [trained.trajectory for trained in evidence.trained]
        if ids:
            starts = dict(zip(evidence.roots, evidence.start_versions, strict=True))
            episodes = self._store.trajectories(self._run.id, list(starts), list(starts.values()))
            members = {member.id: member for episode in episodes.values() for member in episode.family}
            self.check.check_step([members[identity] for identity in ids], evidence)
        return len(ids)
