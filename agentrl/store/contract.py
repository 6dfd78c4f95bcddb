"""What every trajectory store promises. Postgres is the real one; the in-memory twin exists for tests.

- **Atomic**: each method is one transaction. It happened or it did not; a broken connection is `UnknownOutcome`, and the same
  call with the same keys is safe and gives the first result.
- **Fenced**: whatever writes an episode carries the episode's fence, whatever trains carries the trainer's fence. A stale
  fence changes nothing and raises `Fenced`.
- **Idempotent**: request ids (open), segment keys (write), batch hashes (commit). The same key with another body is an error.
- **Ordered**: segments of a trajectory are gap-free; claims take the oldest item that is still in range first.
- **Complete**: a claim gives only trajectories that are complete, graded and in range, whole groups only, under a lease.
- **State is where the row is**: live, grade_job, graded, ready, lease, consumed, dropped, evaluated. Each move writes an event.
- **Conservation**: created = the sum of the seven training places at every moment; eval episodes on a line of their own.
- **Episodes are whole**: sub-agents are stored with the turn that started them and given with their episode; only episodes are
  admitted, claimed and counted.
- **Missing**: an unknown run or trajectory is None from a finder and `UsageError` from anything else.

All methods are blocking and thread-safe; callers in an event loop use threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

import numpy as np

from agentrl.store.loads import EngineLoad, LaggingEngine, PublishCost
from agentrl.types import (
    DropReason,
    EpisodeEnd,
    Json,
    Lineage,
    Opened,
    Origin,
    Place,
    PolicyVersion,
    Reward,
    Segment,
    StoredTrajectory,
    SubAgent,
    Task,
)

WORK_PLACES: tuple[Place, ...] = (Place.LIVE, Place.GRADE_JOB, Place.GRADED, Place.READY, Place.LEASE)
"""Places that a trajectory still leaves; their tables stay small however much was trained."""

TRAINING_PLACES: tuple[Place, ...] = tuple(p for p in Place if p is not Place.EVALUATED)
"""The seven places of which a training trajectory is always in exactly one."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a run fixes at its creation. ``batch_*`` count trajectories and are multiples of ``group_size``."""

    name: str
    environment: str
    config: Mapping[str, Json]
    config_hash: str
    seed: int
    lag_bound: int | None
    """None: unbounded."""
    batch_min: int
    batch_max: int
    group_size: int = 1
    target_steps: int | None = None
    """Nothing opens that could only serve a step beyond this one. None: no end."""
    max_running: int = 4096
    """Upper bound of live training episodes when the lag is unbounded."""
    max_attempts: int = 3
    """Attempts of an episode (failures and expiries; a clean release costs nothing)."""
    max_lease_attempts: int = 3
    """Claims that may end with a dead trainer before the item is dropped as max_attempts."""
    lease_s: float = 60.0
    max_age_s: float | None = None
    group_deadline_s: float | None = None
    """Age at which a group that is still open is dropped as group_incomplete, stragglers and all."""
    long_tokens: int | None = None
    """Tokens per trajectory from which an item counts as long; None: no places are reserved."""
    long_share: float = 0.0
    """Share of each claim's ``n_max`` reserved for long items while there are any."""
    long_wait_s: float = 30.0
    """Longest that a claim waits for long items; then short ones take their places."""
    resume_partial: bool = False
    """Whether an episode that lost its worker is continued from its last stored turn instead of starting again."""
    origins: Sequence[Origin] = (Origin.SIMULATED, Origin.RECORDED)
    """Origins whose trajectories it opens and takes for training; live traffic is only trained on where it is named."""
    ahead: int | None = None
    """Batches of ``batch_max`` that may be under way beside the one in hand, at most ``lag_bound``. None: as many batches of
    ``batch_min`` as ``lag_bound``."""
    staleness_mode: Literal["trajectory", "segment_mask"] = "trajectory"
    """trajectory: the lag bound holds for the oldest token of each. segment_mask: for its newest one; the trainer leaves
    action tokens over the bound out of the loss and says so in `StepCommit.masked`. Needs a bound."""
    group_extra: int = 0
    """Redundant seats of each group: it is complete with its first ``group_size`` graded members, and the others are dropped as
    superseded. They use no capacity. Only with groups."""
    oversample: int | None = None
    """Trajectories that may be under way beside one largest batch, at most ``lag_bound`` batches; None: what the lag admits."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as stored."""

    id: int
    spec: RunSpec
    status: str
    """``running``, ``finished``, ``interrupted`` or ``failed``."""
    branch: int
    step: int
    """Last committed step of the live branch history (critic-only steps included)."""
    updates: int
    """Policy updates of the live head."""


@dataclass(frozen=True, slots=True)
class OpenResult:
    """Episodes that may run now, or the reason why there are none (a value to log, not an error)."""

    episodes: Sequence[Opened]
    refusal: str | None = None
    """``no_version``, ``no_capacity``, ``no_tasks``, ``target_reached``, ``run_not_running``, or ``taken_over``: the request
    was served before, and other requests have its episodes since."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A request to score one published version on the first ``n`` tasks of a split."""

    id: int
    version: int
    updates: int
    step: int
    split: str
    n: int
    done: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The score of a finished evaluation: episodes graded, successes, mean reward."""

    evaluation: Evaluation
    graded: int
    successes: int
    mean_reward: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint on the live history. It exists only after its file was written and checksummed."""

    id: int
    branch: int
    step: int
    updates: int
    version: int
    uri: str
    checksum: str


@dataclass(frozen=True, slots=True)
class TrainerStart:
    """What a trainer start gives: its fence, its branch, and where the live history stands."""

    fence: int
    branch: int
    step: int
    updates: int
    version: PolicyVersion | None
    """Published; None on the very first start: the trainer stages the root version itself."""
    returned: int = 0
    """Items of abandoned steps and old leases that went back to ready."""
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ClaimedItem:
    """A leased item: one trajectory, or a whole group. ``lag`` is that of its oldest token that is within the bound."""

    item: UUID
    token: int
    oldest_update: int
    lag: int
    trajectories: Sequence[StoredTrajectory]


@dataclass(frozen=True, slots=True)
class Claim:
    """Items taken, or why none were. ``examined`` and ``admissible`` are trajectories looked at and found in range.

    ``counts``: training trajectories in each of `WORK_PLACES`, after the claim.
    """

    items: Sequence[ClaimedItem]
    examined: int
    admissible: int
    counts: Mapping[Place, int]
    waiting: str | None = None
    """``rollouts`` (not enough ready), ``nothing`` (no work can arise any more) or None."""


@dataclass(frozen=True, slots=True)
class GradeJob:
    """A complete trajectory that waits for its verdict, held under ``fence``. ``attempt`` counts from 1."""

    trajectory: StoredTrajectory
    fence: int
    attempt: int
    task: Task
    evidence: bytes | None = None
    """As the completion gave it; None for an agent outside of the library."""


@dataclass(frozen=True, slots=True)
class ImportFilter:
    """Which trajectories of another run to take; None: no condition. Steps are those that trained them in the source."""

    limit: int | None = None
    """Most items (trajectories, or groups)."""
    min_reward: float | None = None
    max_reward: float | None = None
    success: bool | None = None
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import made ready."""

    id: int
    items: int
    trajectories: int


@dataclass(frozen=True, slots=True)
class Trained:
    """What one step used of one trajectory; arrays float32 over its action tokens, in order.

    ``local_advantages``: one number a unit of credit, V after what followed it minus V before it, as the critic saw both.
    """

    trajectory: UUID
    logprobs: np.ndarray
    values: np.ndarray | None
    advantages: np.ndarray
    returns: np.ndarray | None
    local_advantages: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Masked:
    """What a step left out of the loss of one trajectory: its ``tokens`` action tokens of ``versions``, all over the bound."""

    trajectory: UUID
    versions: Sequence[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class StepCommit:
    """A step and its ledger. consumed + dropped + released must equal what was claimed, by (item, token)."""

    step: int
    policy_updated: bool
    """False for a critic-only step: ``updates`` does not grow."""
    trainer_version: int
    """Version whose weights computed the current log-probs."""
    batch_hash: str
    denominators: Mapping[str, float]
    metrics: Mapping[str, Any]
    consumed: Sequence[tuple[UUID, int]]
    dropped: Sequence[tuple[UUID, int, DropReason]] = ()
    released: Sequence[tuple[UUID, int]] = ()
    trained: Sequence[Trained] = ()
    masked: Sequence[Masked] = ()
    """Only of consumed trajectories, and only in a run whose mode is segment_mask."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Where the live history stands after a commit. ``repeated``: this batch hash was committed before."""

    step: int
    updates: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Conservation:
    """created = sum(places) for training episodes, at every moment."""

    created: int
    places: Mapping[Place, int]
    evaluated: int
    eval_open: int

    @property
    def holds(self) -> bool:
        return self.created == sum(self.places.values())


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows of a saved query."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]] = field(default_factory=list)

    def records(self) -> list[dict[str, Any]]:
        """Rows as dictionaries, column -> value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


Change = Literal["items", "policy", "evaluation", "grades"]
"""What a wake-up is about. items: something became ready; policy: a step or a version; evaluation: a request to score; grades:
something waits for a verdict."""


class Subscribed(Protocol):
    """A subscription; ``close`` ends it."""

    def close(self) -> None: ...


class TrajectoryStore(Protocol):
    """See the module's docstring for the promises that hold for all methods."""

    # runs -------------------------------------------------------------------------------------------------------------
    def create_run(self, spec: RunSpec, tasks: Mapping[str, Sequence[Task]]) -> RunRow:
        """Create a run and its task rows. `UsageError` when the name is taken."""
        ...

    def find_run(self, name: str) -> RunRow | None:
        """By name; ``latest`` is the newest run."""
        ...

    def set_run_status(self, run: int, status: str) -> None: ...

    def counts(self, run: int) -> Mapping[Place, int]:
        """Training trajectories in each of `WORK_PLACES`: cheap enough to ask often."""
        ...

    def conservation(self, run: int) -> Conservation: ...

    # episodes ---------------------------------------------------------------------------------------------------------
    def open_episodes(
        self, run: int, *, worker: str, request: UUID, n: int, engine_version: int, lineage: Lineage
    ) -> OpenResult:
        """Open up to ``n`` training episodes: retries, missing and redundant seats of open groups, new tasks, within capacity.

        Episodes that another worker left come first, alone and without a test of capacity: ``n_segments`` says how much of them
        is stored. Whose ``lineage.sandbox`` is `agentrl.types.OUTSIDE` can't continue them and is given none. Also reaps what
        has expired. The same ``request`` gives the same episodes again, but those that went to another one since. `UsageError`
        for an origin that the run does not take.
        """
        ...

    def open_evaluation_episodes(self, evaluation: int, *, worker: str, request: UUID, n: int, lineage: Lineage) -> OpenResult:
        """Open up to ``n`` of the evaluation's episodes that are neither running nor done."""
        ...

    def write_segment(self, episode: Opened, segment: Segment, sub_agents: Sequence[SubAgent] = ()) -> bool:
        """Store one turn and renew the lease. True: stored now; False: the same bytes were stored before.

        ``sub_agents``: those that the turn started, stored with it or not at all, parents before their own. They are part of
        the episode: without a place of their own, they go where it goes, and its oldest token may be one of theirs.

        Raises `SegmentGap`, `SegmentConflict`, `Fenced`, `UnknownVersion` or `BadValue`; the row is then unchanged.
        """
        ...

    def complete(self, episode: Opened, end: EpisodeEnd) -> Place:
        """End an episode and move it: through grade_job and graded to ready (group permitting), evaluated, or dropped.

        Infrastructure outcomes are dropped (``infrastructure``, or ``cancelled`` when aborted) and, if retryable and within
        max_attempts, served again as a new trajectory. Zero action tokens drop as ``zero_action``. Repeating it is harmless.
        ``end.verdicts`` are written with it; `IllegalMove` for one that is not of a sub-agent of the episode without a verdict.
        """
        ...

    def park(self, episode: Opened) -> bool:
        """Leave an episode to another worker, at no cost of an attempt; its stored turns stay.

        False, and nothing happened: the run doesn't continue episodes, no turn is stored, it is one of an agent outside of the
        library, or it is no longer the caller's.
        """
        ...

    def drop_stale(self, run: int, worker: str) -> set[UUID]:
        """Drop the worker's running episodes whose oldest token is over the lag bound already, as stale; returns them.

        Whatever they go on to sample, no claim would take them. Their seats start again, within max_attempts. Empty where older
        tokens are masked, or nothing bounds the lag. The same happens, for all workers and for what waits, when reaping.
        """
        ...

    def renew_episodes(self, worker: str, episodes: Mapping[UUID, int]) -> set[UUID]:
        """Renew live rows (trajectory -> fence); returns those that are no longer the worker's."""
        ...

    # policy versions --------------------------------------------------------------------------------------------------
    def newest_version(self, run: int) -> PolicyVersion | None:
        """The newest version that is not failed (staged ones included)."""
        ...

    def version(self, run: int, version: int) -> PolicyVersion: ...

    def record_engine_load(self, run: int, load: EngineLoad) -> None:
        """One attempt, also a failed one. The newest one again changes nothing. `UnknownVersion` for one without a row."""
        ...

    def lagging_engines(self, run: int, over: int) -> Sequence[LaggingEngine]:
        """Living engines more than ``over`` policy updates behind the newest published version, the furthest first.

        Alive is whose process gave a sign of life within a lease's time. Engines of evaluations stay behind by intention.
        """
        ...

    def needed_weights(self, run: int, keep: int) -> set[str]:
        """Uris of weights that somebody may still load: the ``keep`` newest published versions, those that living engines hold,
        the first one, those of checkpoints that a resume may take and of evaluations that are not finished."""
        ...

    def retire_weights(self, run: int, fence: int, *, keep: int, uris: Sequence[str]) -> set[str]:
        """Mark the versions at ``uris`` as removed, but those needed; returns the uris whose files may be deleted now."""
        ...

    # evaluations ------------------------------------------------------------------------------------------------------
    def request_evaluation(self, run: int, *, version: int, step: int, split: str, n: int) -> Evaluation:
        """Idempotent per (run, version, split)."""
        ...

    def pending_evaluation(self, run: int) -> Evaluation | None:
        """The oldest unfinished request."""
        ...

    def evaluation_results(self, run: int) -> Sequence[EvaluationResult]:
        """Finished evaluations, oldest first."""
        ...

    # trainer ----------------------------------------------------------------------------------------------------------
    def checkpoints(self, run: int) -> Sequence[Checkpoint]:
        """Checkpoints whose step lies on the live branch history and whose files were not removed, newest first."""
        ...

    def start_trainer(self, run: int, *, owner: str, lease_s: float, checkpoint: int | None) -> TrainerStart:
        """Take the trainer fence; with earlier history, open a branch at ``checkpoint`` (None: at the root) in one transaction.

        The branch begins with a new, published version of the weights that the checkpoint's version (or the root) has.

        `Fenced` while another trainer's lease is alive.
        """
        ...

    def renew_trainer(self, run: int, fence: int, lease_s: float) -> None: ...

    def release_trainer(self, run: int, fence: int) -> None: ...

    def claim(
        self, run: int, fence: int, *, n_min: int, n_max: int, lease_s: float, environments: Sequence[str] | None = None,
        held: Sequence[int] = (),
    ) -> Claim:  # fmt: skip
        """Lease between ``n_min`` and ``n_max`` trajectories, all or nothing, oldest in range first; whole groups.

        Also reaps. Fewer than ``n_min`` are given only when no more can arise (``waiting == "nothing"``).
        ``environments``: only items of these; imported rows may be of another environment than the run's.
        `RunSpec.long_share` reserves places for long items. ``held``: tokens of what earlier claims of the same step leased:
        nobody waits for those. What this fence leased under any other token, unless an update has it, is from a claim whose
        reply was lost: it goes back to ready first, at no charge, so that the same call again takes it again.
        """
        ...

    def renew_leases(self, run: int, fence: int, items: Sequence[tuple[UUID, int]], lease_s: float) -> None:
        """Before the optimizer step: renew, and check fence, count and lag. `Fenced` or `CommitRefused`."""
        ...

    def commit_step(self, run: int, fence: int, commit: StepCommit) -> StepResult:
        """Step, ledger and lease deletion in one transaction. The same batch hash again gives the first result."""
        ...

    def add_checkpoint(
        self, run: int, fence: int, *, step: int, updates: int, version: int, uri: str, checksum: str
    ) -> Checkpoint: ...

    def retire_checkpoints(self, run: int, fence: int, *, keep: int) -> set[str]:
        """Mark all but the ``keep`` newest checkpoints on the live history as removed; returns the uris of those that stay."""
        ...

    def stage_version(
        self, run: int, fence: int, *, parent: int | None, updates: int, uri: str, checksum: str
    ) -> PolicyVersion:
        """Give weights their name. From now on tokens may carry it. The same uri again gives the same version."""
        ...

    def publish_version(self, run: int, fence: int, version: int, cost: PublishCost | None = None) -> None: ...

    def fail_version(self, run: int, fence: int, version: int, cost: PublishCost | None = None) -> None: ...

    # grading ----------------------------------------------------------------------------------------------------------
    def claim_grades(self, run: int, *, worker: str, n: int, lease_s: float, held: Sequence[int] = ()) -> Sequence[GradeJob]:
        """Up to ``n`` jobs that nobody holds, oldest first. Also reaps.

        ``held``: fences of the jobs that ``worker``, a name of one process, has. Any other of its jobs is from a reply that was
        lost, and free again at no charge, so that the same call again gives it again.
        """
        ...

    def renew_grades(self, jobs: Mapping[UUID, int]) -> set[UUID]:
        """Renew jobs (trajectory -> fence); returns those that are no longer held."""
        ...

    def grade(self, trajectory: UUID, fence: int, reward: Reward) -> Place:
        """Write the verdict and move the trajectory on. Repeating it under the same fence is harmless. Raises `Fenced`."""
        ...

    def fail_grade(self, trajectory: UUID, fence: int, error: str) -> bool:
        """Give a job back after a failure of the grader; False: it was the last attempt, dropped as ungraded."""
        ...

    def regrade(self, trajectory: UUID, reward: Reward) -> int:
        """Add a verdict to an ended trajectory, whatever its place; the newest counts. Returns the verdict's number.

        `IllegalMove` while it runs, waits for its first verdict, or ended in an infrastructure failure.
        """
        ...

    # several runs over the same rows ----------------------------------------------------------------------------------
    def import_trajectories(self, run: int, source: int, which: ImportFilter) -> Imported:
        """Make complete training trajectories of another run ready for this one, each at most once, in one transaction.

        The source is left as it is; the ledger is this run's own. `UsageError` when this run has a lag bound: tokens of another
        run have no lag in it. With groups, whole groups of this run's size are taken.
        """
        ...

    # wake-ups ---------------------------------------------------------------------------------------------------------
    def subscribe(self, run: int, callback: Callable[[Change], None]) -> Subscribed:
        """Call ``callback`` soon after something of the run changed: items, policy, evaluation or grades.

        From another thread; sometimes for nothing; now and then not at all, so who waits asks again every ``poll_seconds``. It
        goes on by itself after an outage of the database.
        """
        ...

    # reading ----------------------------------------------------------------------------------------------------------
    def trajectory(self, trajectory: UUID) -> StoredTrajectory | None: ...

    def query(self, name: str, **parameters: Any) -> QueryResult:
        """A saved query; `UsageError` names the nearest one."""
        ...

    def close(self) -> None: ...
