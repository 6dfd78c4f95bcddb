"""What an inference engine is: token ids in; token ids, log-probs, version per token and finish reason out.

- Ids returned are the ids sampled, the stop token included when one was sampled.
- ``logprobs`` are of the distribution sampled from (temperature applied), float32, finite.
- ``versions`` name the weights that produced each token; they never decrease within a generation, and weights may change
  between two tokens. No cache entry of older weights is ever used after a load.
- A failed request raises `EngineError`; an aborted one returns its tokens so far with ``FinishReason.ABORT``.
- Sampling that can't be replayed exactly (top-p, top-k) is refused with `UsageError`, never approximated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from agentrl.store.loads import EngineLoad
from agentrl.types import FinishReason, PolicyVersion, Sampling


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One turn. ``session`` names the trajectory, so that its prefix may be reused; ``seed`` fixes the draw of an engine that
    is reproducible."""

    session: str
    token_ids: Sequence[int]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """Arrays of one length n >= 0: ids int32, log-probs float32, versions int32."""

    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish_reason: FinishReason
    text: str | None = None
    """What the engine itself decoded the ids to, control tokens included; None where it gives no text."""
    cached_tokens: int = 0
    queue_s: float = 0.0
    generate_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Name to log-prob kind are recorded in every trajectory's lineage."""

    name: str
    version: str
    dtype: str
    logprob_kind: str
    max_context: int
    reproducible: bool
    """A request's seed fixes its tokens, whoever shares the batch."""


class Engine(Protocol):
    """An engine serves many requests at once and one version at a time."""

    info: EngineInfo

    @property
    def version(self) -> int:
        """Version of the weights that would produce the next token."""
        ...

    async def load(self, version: PolicyVersion) -> None:
        """Swap the weights; running generations continue on the new ones. `WeightsCorrupt` leaves the old ones in place."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation: ...

    def release(self, session: str) -> None:
        """The session is over: its cache may go. Nothing happens when it is over already."""
        ...

    def take_loads(self) -> list[EngineLoad]:
        """Attempts to load weights since the last call, those of its servers included."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Totals since the start: `agentrl.engine.traffic`, and what is special to this engine."""
        ...

    async def close(self) -> None: ...
