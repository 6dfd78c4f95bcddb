"""The vocabulary every room shares: tasks, segments, endings, outcomes, places and drop reasons.

Values of the enums are stored as text in Postgres (CHECK constraints are built from them) and are public API.
Arrays are numpy: token ids int32, log-probs float32, versions int32. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

import numpy as np

Json = Any
"""What ``json.dumps`` accepts without NaN and without U+0000."""
LEASE_LIMIT = 65_536
"""Trajectories of one batch at most: it is leased, renewed and committed in one transaction each."""


class Purpose(StrEnum):
    """Why an episode was opened."""

    TRAIN = "train"
    EVAL = "eval"


class Origin(StrEnum):
    """Where the traffic of a trajectory came from."""

    SIMULATED = "simulated"
    RECORDED = "recorded"
    LIVE = "live"


class FinishReason(StrEnum):
    """Why the engine stopped one generation."""

    STOP = "stop"
    """A stop token was sampled; it is the last action token."""
    LENGTH = "length"
    """The token budget of the request ran out."""
    ABORT = "abort"
    """The engine was told to stop; the tokens so far are valid."""


class ToolFormat(StrEnum):
    """How a model writes tool calls into its text."""

    HERMES = "hermes"
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen2.5, Qwen3."""
    QWEN3_CODER = "qwen3_coder"
    """``<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>``."""
    LLAMA3_JSON = "llama3_json"
    """The turn is ``{"name": ..., "parameters": {...}}``, or several of them; ``<|python_tag|>`` may precede it."""
    MISTRAL = "mistral"
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}]`` or ``[TOOL_CALLS]NAME[ARGS]{...}``."""
    DEEPSEEK = "deepseek"
    """Calls between ``<｜tool▁calls▁begin｜>`` and its end, as DeepSeek V3, R1 and V3.1 write them."""
    GLM = "glm"
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>``."""
    KIMI = "kimi"
    """``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>``."""
    FENCED = "fenced"
    """A code block whose language names a tool with one required parameter, or a JSON block with name and arguments."""
    RESPONSE_TEMPLATE = "response_template"
    """Whatever the tokenizer's own ``response_template`` says, read by transformers."""


class Termination(StrEnum):
    """How an episode ended. A natural end and each exhausted budget are different values."""

    TERMINATED = "terminated"
    """The environment (or the policy, by its own last turn) ended the episode."""
    TRUNCATED_TURN_TOKENS = "truncated_turn_tokens"
    """A turn reached its token budget before a stop token."""
    TRUNCATED_TOKENS = "truncated_tokens"
    """The trajectory reached its token budget."""
    TRUNCATED_CONTEXT = "truncated_context"
    """The next prompt or turn would not fit the model's context window."""
    TRUNCATED_TURNS = "truncated_turns"
    """The turn budget ran out."""
    TRUNCATED_TIME = "truncated_time"
    """The wall-clock budget ran out."""
    TRUNCATED_TURN_TIME = "truncated_turn_time"
    """A turn, its tool calls included, took longer than its own wall-clock budget."""
    ABORTED = "aborted"
    """Cancelled from outside: shutdown, eviction."""
    FAILED = "failed"
    """Infrastructure failed: sandbox, engine, grader or store."""

    def is_truncated(self) -> bool:
        return self.value.startswith("truncated_")

    def is_error(self) -> bool:
        return self in (Termination.ABORTED, Termination.FAILED)


class Outcome(StrEnum):
    """The class of an ended episode; only the first two may feed a baseline."""

    GRADED = "graded"
    """The grader scored the final state (whatever the termination)."""
    POLICY_ENDED = "policy_ended"
    """The policy's behaviour ended it and nothing was graded: reward is NULL, credit bootstraps."""
    INFRASTRUCTURE = "infrastructure"
    """Something of ours failed: never a reward of 0, retried or dropped."""


class Place(StrEnum):
    """State is where the row is: the table that holds a trajectory."""

    LIVE = "live"
    GRADE_JOB = "grade_job"
    GRADED = "graded"
    READY = "ready"
    LEASE = "lease"
    CONSUMED = "consumed"
    DROPPED = "dropped"
    EVALUATED = "evaluated"


class DropReason(StrEnum):
    """Why a trajectory will not be trained on: one exact reason each."""

    STALE = "stale"
    """Its oldest token fell out of the lag bound before it was claimed."""
    TOO_OLD = "too_old"
    """It exceeded the maximum age in seconds."""
    OVERLONG = "overlong"
    """It is longer than the trainer can take."""
    ZERO_ACTION = "zero_action"
    """No action token was sampled."""
    TOKEN_DRIFT = "token_drift"
    """Stored ids and the ids the engine saw differ."""
    NON_FINITE = "non_finite"
    """A log-prob, value or advantage is NaN or infinite."""
    INFRASTRUCTURE = "infrastructure"
    """Sandbox, engine, grader or worker failed."""
    SUPERSEDED = "superseded"
    """Its group was complete without it."""
    DUPLICATE = "duplicate"
    """The same content was delivered before."""
    CANCELLED = "cancelled"
    """The run or a user cancelled it."""
    ABANDONED_BRANCH = "abandoned_branch"
    """Its step was abandoned by a resume and it is out of range on the new branch."""
    GROUP_INCOMPLETE = "group_incomplete"
    """A member of its group could not be completed."""
    ZERO_VARIANCE = "zero_variance"
    """All members of its group got the same reward and the filter is on."""
    EMPTY_AFTER_MASK = "empty_after_mask"
    """Every action token was masked out of the loss."""
    BAD_VERSIONS = "bad_versions"
    """Its token versions decrease or do not exist."""
    UNGRADED = "ungraded"
    """The grader could not give a verdict."""
    MAX_ATTEMPTS = "max_attempts"
    """It was claimed or attempted too often without success."""


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work of an environment: an id, a JSON payload and the split it belongs to."""

    id: str
    payload: Mapping[str, Json]
    split: str = "train"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed call. ``arguments`` is None when the call could not be parsed; ``error`` then says why."""

    name: str
    arguments: Mapping[str, Json] | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call returned: text shown to the policy, and the raw bytes behind it when they differ."""

    name: str
    text: str
    is_error: bool = False
    duration_s: float = 0.0
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock parts of a turn, in seconds."""

    queue_s: float = 0.0
    generate_s: float = 0.0
    tool_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Segment:
    """One turn: the new observation tokens, then the action tokens sampled after them.

    ``observation`` int32 [n_obs] (prompt, tool output, template scaffolding: never trained);
    ``action`` int32 [n_act], exactly as sampled, the stop token included;
    ``logprobs`` float32 [n_act] of the distribution sampled from; ``versions`` int32 [n_act], policy version per token;
    ``loss_mask`` uint8 [n_act] or None (all action tokens train);
    ``unit_starts`` uint8 [n_act], 1 on the action tokens with which a unit of credit begins, or None: the turn is a unit.
    A final observation without an action is a last segment with n_act == 0; it is not a turn.
    """

    index: int
    observation: np.ndarray
    action: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    loss_mask: np.ndarray | None = None
    context: int = 0
    compacted: tuple[Mapping[str, Json], ...] | None = None
    """Messages that the environment put in the place of the history before this turn; None: it left the history alone."""
    finish_reason: FinishReason | None = None
    observation_text: str = ""
    action_text: str = ""
    action_raw: bytes | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    reward: float | None = None
    timings: Timings = field(default_factory=Timings)
    unit_starts: np.ndarray | None = None

    @property
    def n_obs(self) -> int:
        return len(self.observation)

    @property
    def n_act(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Log-probs are recorded after the temperature is applied."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means off."""


OUTSIDE = "outside"
"""The sandbox of an episode that an agent program outside of the library drove."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What produced a trajectory; stored with it so that a trainer can refuse what its loss can't use."""

    model: str
    tokenizer_hash: str
    template_hash: str
    engine: str
    engine_version: str
    engine_dtype: str
    sampling: Sampling
    logprob_kind: str = "sampled"
    """``sampled``: of the distribution sampled from; ``raw``: of the unscaled model."""
    environment: str = ""
    environment_version: str = ""
    sandbox: str = ""
    """Provider and image digest, e.g. ``docker:sha256:...``."""
    origin: Origin = Origin.SIMULATED


@dataclass(frozen=True, slots=True)
class Opened:
    """An episode a worker may run: identity, the task, and the fence that its writes must carry."""

    trajectory: UUID
    fence: int
    task: Task
    task_index: int
    seed: int
    start_version: int
    purpose: Purpose = Purpose.TRAIN
    group: UUID | None = None
    seat: int = 0
    attempt: int = 1
    run: int = 0
    n_segments: int = 0
    """Turns that are stored already: an episode to be continued, from a worker that left it."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A verdict: ``value`` is finite; ``success`` is the environment's own yes or no."""

    value: float
    success: bool | None = None
    grader: str = "environment"
    grader_version: str = "1"
    detail: Mapping[str, Json] = field(default_factory=dict)
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EpisodeEnd:
    """How an episode ended. ``reward`` is set exactly when ``outcome`` is GRADED and grading happened in the episode."""

    n_segments: int
    termination: Termination
    outcome: Outcome
    reward: Reward | None = None
    error: str | None = None
    retryable: bool = True
    sandbox: str | None = None
    """Provider and image digest, where only the task decides them; replaces the lineage's. None: that one stays."""
    verdicts: Mapping[UUID, Reward] = field(default_factory=dict)
    """By trajectory: what the episode's reward code gave sub-agents that have no verdict yet. Only with a ``reward``."""
    evidence: bytes | None = None
    """What a reward worker needs to grade it, see `agentrl.environment.evidence`. Only GRADED without a ``reward``."""


@dataclass(frozen=True, slots=True)
class SubAgent:
    """A sub-agent that has ended: a trajectory of its own, written with the turn that started it."""

    trajectory: UUID
    parent: UUID
    parent_segment: int
    """The turn of ``parent`` that started it."""
    seat: int
    """Its number among the sub-agents of the whole episode, in the order of their starts."""
    task: Task
    seed: int
    environment: str
    environment_version: str
    termination: Termination
    segments: Sequence[Segment]
    graded: bool = False
    """True: it has a verdict of its own, or its end gets none; False: its verdict is its parent's."""
    reward: Reward | None = None
    duration_s: float = 0.0

    @property
    def outcome(self) -> Outcome | None:
        """None: that of its parent."""
        if not self.graded:
            return None
        return Outcome.POLICY_ENDED if self.reward is None else Outcome.GRADED


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A name of weights. ``updates`` counts policy updates on its lineage; names grow and are never reused."""

    version: int
    parent: int | None
    updates: int
    uri: str
    checksum: str
    status: str
    """``staged``, ``published`` or ``failed``."""


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """A trajectory read back whole, segments in order."""

    id: UUID
    task_id: str
    environment: str
    purpose: Purpose
    group: UUID | None
    seat: int
    attempt: int
    seed: int
    start_version: int
    termination: Termination
    outcome: Outcome
    reward: Reward | None
    lineage: Lineage
    segments: Sequence[Segment]
    parent: UUID | None = None
    """The trajectory that started it as a sub-agent."""
    parent_segment: int | None = None
    """The turn of its parent that started it."""
    inherits: bool = False
    """Whether ``outcome`` and ``reward`` are its parent's."""
    sub_agents: Sequence[StoredTrajectory] = ()
    """All that this episode started, those of its sub-agents too, in the order of their starts."""

    @property
    def family(self) -> Sequence[StoredTrajectory]:
        """Itself and its sub-agents that acted: what is trained of the episode."""
        return (self, *(child for child in self.sub_agents if child.n_turns))

    error: str | None = None
    """What failed, for an infrastructure outcome."""
    ended: bool = True
    """False: it runs, or its worker was lost. ``termination`` and ``outcome`` then say that it failed so far."""

    @property
    def n_tokens(self) -> int:
        return sum(s.n_obs + s.n_act for s in self.segments)

    @property
    def n_turns(self) -> int:
        return sum(1 for s in self.segments if s.n_act)
