"""A run in the store, and the few things that measurements do with it."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from agentrl.store.codec import end_parameters, segment_parameters
from agentrl.store.contract import ClaimedItem, RunSpec, StepCommit
from agentrl.store.postgres import PostgresStore
from agentrl.store.postgres_episodes import COMPLETE, WRITE_SEGMENT
from agentrl.types import EpisodeEnd, Lineage, Opened, Outcome, Reward, Sampling, Segment, StoredTrajectory, Task, Termination

if TYPE_CHECKING:
    import torch

LINEAGE = Lineage("model", "tokenizer", "template", "engine", "1", "bfloat16", Sampling())
LEASE_S = 3600.0
MAX_RUNNING = 1_000_000


class Run:
    """A new run with its trainer and a published root version."""

    def __init__(self, store: PostgresStore, max_running: int = MAX_RUNNING) -> None:
        self.store = store
        spec = RunSpec(
            f"benchmark-{uuid.uuid4().hex[:8]}", "benchmark", {}, "", 1, None, 64, 64, max_running=max_running, lease_s=LEASE_S
        )
        self.id = store.create_run(spec, {"train": [Task(str(i), {"n": i}) for i in range(1000)]}).id
        self.fence = store.start_trainer(self.id, owner="benchmark", lease_s=LEASE_S, checkpoint=None).fence
        root = store.stage_version(self.id, self.fence, parent=None, updates=0, uri="root", checksum="c")
        store.publish_version(self.id, self.fence, root.version)
        self.version = root.version
        self.step = 0

    def open(self, n: int) -> list[Opened]:
        return open_episodes(self.store, self.id, self.version, n)

    def claim(self, n: int = 64) -> Sequence[ClaimedItem]:
        items = self.store.claim(self.id, self.fence, n_min=n, n_max=n, lease_s=60).items
        assert len(items) == n, f"{len(items)} of {n} items were claimed"
        return items

    def commit(self, items: Sequence[ClaimedItem]) -> None:
        """Acknowledge a claim as the next step."""
        consumed = [(i.item, i.token) for i in items]
        commit = StepCommit(self.step + 1, True, self.version, f"hash {self.step + 1}", {"tokens": 1.0}, {}, consumed)
        self.step = self.store.commit_step(self.id, self.fence, commit).step


def open_episodes(store: PostgresStore, run: int, version: int, n: int, worker: str = "benchmark") -> list[Opened]:
    """``n`` open episodes, asked for 64 at a time."""
    opened: list[Opened] = []
    while len(opened) < n:
        result = store.open_episodes(
            run, worker=worker, request=uuid.uuid4(), n=min(64, n - len(opened)), engine_version=version, lineage=LINEAGE
        )
        assert result.episodes, f"nothing opened: {result.refusal}"
        opened += result.episodes
    return opened


def end(n_segments: int) -> EpisodeEnd:
    return EpisodeEnd(n_segments, Termination.TERMINATED, Outcome.GRADED, Reward(1.0, True))


def write_turn_by_turn(store: PostgresStore, episode: Opened, segments: Sequence[Segment]) -> None:
    """As a rollout worker does it: every turn and the end are durable before the next begins."""
    for segment in segments:
        store.write_segment(episode, segment)
    store.complete(episode, end(len(segments)))


def write_at_once(store: PostgresStore, episode: Opened, segments: Sequence[Segment]) -> None:
    """The same statements, fences and checks in one transaction, as group commit issues them."""
    key = (episode.trajectory, episode.fence)
    calls = [(WRITE_SEGMENT, (*key, *segment_parameters(s))) for s in segments]
    store.together([*calls, (COMPLETE, (*key, *end_parameters(end(len(segments)))))])


def tensors(trajectory: StoredTrajectory) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and log-probs of a whole trajectory."""
    import torch  # here, so that children which only write start at once

    ids = np.concatenate([part for s in trajectory.segments for part in (s.observation, s.action)])
    logprobs = np.concatenate([s.logprobs for s in trajectory.segments])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(ids), torch.from_numpy(logprobs)
