"""A small world to replay: an environment, a model in two versions, and trajectories whose log-probs are true."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.engine.contract import GenerateRequest
from agentrl.engine.scripted import ScriptedEngine
from agentrl.environment import Done, Environment, Episode, Message, Reward, Task, tool
from agentrl.errors import UnknownVersion
from agentrl.model.model_dir import open_model_dir
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.replay.check import Evidence, ReplayCheck
from agentrl.replay.rescore import Rescorer
from agentrl.rollout.episode import EpisodeRunner
from agentrl.store.contract import RunSpec, Trained
from agentrl.store.evidence import StepEvidence
from agentrl.store.memory import MemoryStore
from agentrl.tokens.chat_format import ChatFormat
from agentrl.trainer.batch import build_batch
from agentrl.trainer.credit import Values, assign_credit
from agentrl.trainer.gate import TOLERANCE
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.rows import action_rows, join_rows
from agentrl.types import Lineage, PolicyVersion, Sampling, Segment, StoredTrajectory
from agentrl.weights.files import export_weights
from sandboxes.contract import Sandbox

CONTEXT = 256
FIRST, SECOND = 0, 1
"""The two versions; turns from the second on were sampled by the second."""


class Counter(Environment):
    """Counts; "stop" ends the episode. A count that is right earns its turn a reward."""

    max_turns = 3
    max_turn_tokens = 60
    max_tokens = 240

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        return [Task(f"count/{i}", {"to": i}, split) for i in range(n)]

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", f"count to {task.payload['to']}")]

    @tool
    async def count(self, episode: Episode, number: int) -> str:
        """Say a number."""
        if number == 1:
            episode.add_reward(0.5)
        return f"ok {number}"

    async def respond(self, episode: Episode, text: str) -> str | Done:
        return Done() if text == "stop" else "say stop"

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        return Reward(1.0, True)


def call(number: int) -> str:
    return f'<tool_call>{{"name": "count", "arguments": {{"number": {number}}}}}</tool_call>'


class World:
    """Built once: ``model`` directory, ``chat``, weights of both versions on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "model"
        build_tokenizer(["count to 3 say stop ok", call(1), "stop"] * 20, TokenizerPlan(), self.folder)
        build_tiny_model(self.folder, seed=1, d=32, layers=1, heads=2, kv=1, ff=32, max_positions=CONTEXT)
        self.chat = ChatFormat(self.folder)
        self.model = open_model_dir(self.folder)
        self.environment = Counter()
        self.algorithm = AlgorithmConfig(advantage="turn_gae")
        first = {name: tensor * 20 for name, tensor in self.model.tensors()}
        second = {name: tensor + 0.3 * torch.sign(tensor) for name, tensor in first.items()}
        self.weights = {FIRST: first, SECOND: second}
        self.versions = {v: self._published(v, folder / f"v{v}") for v in self.weights}
        self.policy = TrainedModel(self.model.config.raw, "policy", first.items(), OptimizerSettings())

    def _published(self, version: int, folder: Path) -> PolicyVersion:
        file = export_weights(self.weights[version].items(), folder)
        return PolicyVersion(version, None, version, file.uri, file.checksum, "published")

    def find(self, version: int) -> PolicyVersion:
        if version not in self.versions:
            raise UnknownVersion(f"version {version} has no row")
        return self.versions[version]

    def checker(self) -> ReplayCheck:
        rescorer = Rescorer(self.model, self.find, tolerance=TOLERANCE["fp32"])
        return ReplayCheck(self.chat, self.environment, self.algorithm, rescorer, max_context=CONTEXT)

    def play(self, turns: Sequence[str], number: int = 0) -> Evidence:
        """A true trajectory: played by the rollout's own code, with log-probs of the versions that it names."""
        stored = asyncio.run(self._played(turns, number))
        segments = [replace(s, versions=np.full(s.n_act, min(s.index, SECOND), np.int32)) for s in stored.segments]
        stored = replace(stored, segments=self._scored(replace(stored, segments=segments)))
        task = self.environment.tasks("train", 0, 4)[0]
        return Evidence(stored, task)

    async def _played(self, turns: Sequence[str], number: int) -> StoredTrajectory:
        store = MemoryStore()
        spec = RunSpec("r", "counter", {}, "h", number, lag_bound=1, batch_min=1, batch_max=1)
        run = store.create_run(spec, {"train": self.environment.tasks("train", 0, 4)})
        start = store.start_trainer(run.id, owner="t", lease_s=60, checkpoint=None)
        version = store.stage_version(run.id, start.fence, parent=None, updates=0, uri="u", checksum="c")
        store.publish_version(run.id, start.fence, version.version)
        answers = iter(turns)

        def script(request: GenerateRequest) -> list[int]:
            text = next(answers)
            return self.chat.encode_content(text[1:]) if text.startswith("~") else self.chat.encode_action(text)

        engine = ScriptedEngine(script, max_context=CONTEXT)
        await engine.load(version)
        lineage = Lineage(
            "m", self.chat.tokenizer_hash, self.chat.template_hash, "scripted", "1", "float32", Sampling(),
            environment_version=self.environment.version,
        )  # fmt: skip
        opened = store.open_episodes(
            run.id, worker="w", request=uuid4(), n=1, engine_version=version.version, lineage=lineage
        ).episodes[0]
        await EpisodeRunner(self.environment, store, engine, self.chat, None, Sampling()).run(opened)  # type: ignore[arg-type]
        stored = store.trajectory(opened.trajectory)
        assert stored is not None
        return stored

    def _scored(self, stored: StoredTrajectory) -> list[Segment]:
        batch = build_batch([replace(stored, segments=[_blank(s) for s in stored.segments])], max_context=CONTEXT)
        by_version = {}
        for version, weights in self.weights.items():
            self.policy.load(weights.items())
            by_version[version] = join_rows(batch, self.policy.forward(action_rows(batch, {})), "logprob")[0].numpy()
        segments, at = [], 0
        for segment in stored.segments:
            version = int(segment.versions[0]) if segment.n_act else FIRST
            segments.append(replace(segment, logprobs=by_version[version][at : at + segment.n_act].copy()))
            at += segment.n_act
        return segments

    def step(self, trajectories: Sequence[StoredTrajectory]) -> StepEvidence:
        """What a step on these would have stored."""
        batch = build_batch(trajectories, max_context=CONTEXT)
        values = [Values(torch.linspace(0.1, 0.4, t.n_actions), 0.0) for t in batch.trajectories]
        credit = assign_credit(batch, values, self.algorithm)
        assert credit.returns is not None
        assert credit.local is not None
        assigned = zip(batch.trajectories, values, credit.advantages, credit.returns, credit.local, strict=True)
        trained = [
            Trained(t.id, t.logp_rollout.numpy(), v.at_actions.numpy(), a.numpy(), r.numpy(), local.numpy())
            for t, v, a, r, local in assigned
        ]
        verdicts = [s.reward.value if s.reward else None for s in trajectories]
        ids = [t.trajectory for t in trained]
        return StepEvidence(1, len(trained), ids, [0] * len(trained), verdicts, trained, [()] * len(trained))


def _blank(segment: Segment) -> Segment:
    return replace(segment, logprobs=np.full(segment.n_act, -1.0, np.float32))


def forged(evidence: Evidence, number: int, **changes: object) -> Evidence:
    """Another content of one segment, its hash made to fit: only what it says can give it away."""
    segments = list(evidence.stored.segments)
    segments[number] = replace(segments[number], **changes)  # type: ignore[arg-type]
    return resealed(evidence, segments=segments)


def resealed(evidence: Evidence, **changes: object) -> Evidence:
    stored = replace(evidence.stored, **changes)  # type: ignore[arg-type]
    return Evidence(stored, evidence.task)
