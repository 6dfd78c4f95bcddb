"""Re-scoring: log-probs of stored actions, computed again by the trainer's model with the weights that sampled them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl.errors import UnknownVersion
from agentrl.model.model_dir import ModelDir
from agentrl.model.weight_files import model_tensors, verified
from agentrl.tokens.audit import drift
from agentrl.trainer.batch import BatchTrajectory
from agentrl.trainer.gate import check_logprobs
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.types import PolicyVersion, StoredTrajectory


class Rescorer:
    """Holds one model and loads into it the versions that trajectories name. ``find`` gives the row of a version.

    ``tokens`` and ``largest``: what was compared so far. ``gone``: versions whose weights are no longer on disk.
    """

    def __init__(self, model: ModelDir, find: Callable[[int], PolicyVersion], *, tolerance: float) -> None:
        self.tokens = 0
        self.skipped = 0
        self.largest = 0.0
        self.versions: set[int] = set()
        self.gone: set[int] = set()
        self._model = model
        self._find = find
        self._tolerance = tolerance
        self._policy: TrainedModel | None = None
        self._loaded: int | None = None

    def check(self, trajectories: Sequence[BatchTrajectory], stored: Sequence[StoredTrajectory]) -> None:
        """`TokenDrift` for a version without a row, and for the first log-prob that the version's weights don't give."""
        for version in sorted({int(v) for t in trajectories for v in t.token_version.unique().tolist()}):
            sampled = [t for t in trajectories if bool((t.token_version == version).any())]
            try:
                row = self._find(version)
            except UnknownVersion:
                liar = next(s for s in stored if s.id == sampled[0].id)
                raise drift(liar, None, None, f"tokens of version {version}, which the run never had") from None
            policy = self._load(row)
            if policy is None:
                self.gone.add(version)
                self.skipped += sum(int((t.token_version == version).sum()) for t in sampled)
                continue
            compared = check_logprobs(sampled, policy, version=version, tolerance=self._tolerance)
            self.tokens += compared.tokens
            self.largest = max(self.largest, compared.largest)
            self.versions.add(version)

    def _load(self, version: PolicyVersion) -> TrainedModel | None:
        """The model with the weights of ``version``; None when their file is gone. A file that was changed is an error."""
        if version.version in self.gone or not Path(version.uri).is_file():
            return None
        if self._policy is not None and self._loaded == version.version:
            return self._policy
        tensors = dict(model_tensors(verified(Path(version.uri), version.checksum), self._model.config))
        if self._policy is None:
            self._policy = TrainedModel(self._model.config.raw, "policy", tensors.items(), OptimizerSettings())
        else:
            self._policy.load(tensors.items())
        self._loaded = version.version
        return self._policy
