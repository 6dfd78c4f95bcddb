"""The named configurations: those that must hold, and for each other reading one that must fail.

The quick set is what every test run explores. A reading's configuration is the smallest that shows its fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.store.model.invariants import Invariant
from agentrl.store.model.rules import Rules
from agentrl.store.model.search import Result, Search
from agentrl.store.model.segments import SegmentInvariant, SegmentRules, search_segments


@dataclass(frozen=True, slots=True)
class Configuration:
    """A name, what is explored, and which invariant must be found broken (None: everything holds)."""

    name: str
    rules: Rules | SegmentRules
    breaks: Invariant | SegmentInvariant | None = None
    quick: bool = True

    def run(self) -> Result:
        """Explore it; a reading only up to its invariant, so that the trace is the shortest."""
        if isinstance(self.rules, SegmentRules):
            return search_segments(self.rules)
        until = self.breaks if isinstance(self.breaks, Invariant) else None
        return Search(self.rules, until).run()

    def as_expected(self, result: Result) -> bool:
        """Whether the verdict is the wanted one."""
        return not result.broken if self.breaks is None else self.breaks.value in result.broken


HOLDING = (
    Configuration("synchronous", Rules(faults=1)),
    Configuration("synchronous-2-faults", Rules(faults=2), quick=False),
    Configuration("lag-1", Rules(faults=1, lag_bound=1, workers=1)),
    Configuration("lag-1-2-workers", Rules(faults=1, lag_bound=1), quick=False),
    Configuration("lag-1-4-slots", Rules(lag_bound=1, workers=1, slots=4)),
    Configuration("batch-2", Rules(faults=1, batch=2, workers=1, slots=4)),
    Configuration("batch-2-2-workers", Rules(faults=1, batch=2, slots=4), quick=False),
    Configuration("batch-1-to-2", Rules(faults=1, lag_bound=1, batch_min=1, batch=2, workers=1, slots=3)),
    Configuration("drop-last", Rules(lag_bound=1, ahead=0, batch_min=1, batch=2, slots=4)),
    Configuration("drop-last-fault", Rules(faults=1, lag_bound=1, ahead=0, batch_min=1, batch=2, slots=3), quick=False),
    Configuration("group", Rules(faults=1, group=2, batch=2)),
    Configuration("group-4-slots", Rules(faults=1, group=2, batch=2, slots=4), quick=False),
    Configuration("group-2-faults", Rules(faults=2, group=2, batch=2), quick=False),
    Configuration("push", Rules(faults=1, transport="push", workers=1)),
    Configuration("push-2-workers", Rules(faults=1, transport="push"), quick=False),
    Configuration("push-lag-1", Rules(faults=1, transport="push", lag_bound=1), quick=False),
    Configuration("reward-worker", Rules(faults=1, grading="worker", workers=1)),
    Configuration("reward-worker-2-faults", Rules(faults=2, grading="worker", workers=1), quick=False),
    Configuration("reward-worker-group", Rules(faults=1, grading="worker", group=2, batch=2), quick=False),
    Configuration("2-turns-rare-checkpoints", Rules(faults=1, turns=2, checkpoint_every=2, workers=1)),
    Configuration("2-turns-2-faults", Rules(faults=2, turns=2, checkpoint_every=2, workers=1), quick=False),
    Configuration("lag-1-3-steps", Rules(faults=1, lag_bound=1, slots=3, workers=1, checkpoint_every=2), quick=False),
    Configuration("poison", Rules(poison=True)),
    Configuration("outage", Rules(faults=1, outage=True, workers=1)),
    Configuration("oversampled", Rules(faults=1, lag_bound=1, oversample=1, batch=2, workers=1, slots=4), quick=False),
    Configuration("redundant-seat", Rules(faults=1, group=2, extra=1, batch=2, slots=3)),
    Configuration("redundant-seat-fault", Rules(faults=1, group=2, extra=1, batch=2, slots=6, workers=1), quick=False),
    Configuration("segment-mask", Rules(faults=1, turns=2, checkpoint_every=2, workers=1, staleness="segment_mask")),
    Configuration(
        "segment-mask-group", Rules(faults=1, turns=2, group=2, batch=2, slots=4, staleness="segment_mask"), quick=False
    ),
    Configuration(
        "segment-mask-lag-1", Rules(faults=1, turns=2, lag_bound=1, workers=1, slots=3, staleness="segment_mask"), quick=False
    ),
    Configuration("parking", Rules(faults=1, expired="park", turns=2)),
    Configuration("parking-2-faults", Rules(faults=2, expired="park", turns=2, workers=1), quick=False),
    Configuration("parking-group", Rules(faults=1, expired="park", group=2, batch=2, turns=2), quick=False),
    Configuration("parking-deadly", Rules(faults=1, deadly=True, expired="park", turns=2, workers=1)),
    Configuration("group-deadline", Rules(faults=1, group=2, batch=2, deadline=True, workers=1)),
    Configuration("group-deadline-2-faults", Rules(faults=2, group=2, batch=2, deadline=True), quick=False),
    Configuration("retention", Rules(faults=1, retention=True, workers=1)),
    Configuration("retention-2-faults", Rules(faults=2, retention=True, workers=1), quick=False),
    Configuration("late-checkpoints", Rules(faults=1, late_checkpoints=True, workers=1)),
    Configuration("late-checkpoints-2-faults", Rules(faults=2, late_checkpoints=True, workers=1), quick=False),
    Configuration("segments", SegmentRules()),
    Configuration("segments-asynchronous", SegmentRules(flushed=False)),
)
"""What must hold."""

READINGS = (
    Configuration("admission-before", Rules(admission="before"), Invariant.ADMISSION),
    Configuration("admission-unlocked", Rules(slots=3, open_lock=False), Invariant.ADMISSION),
    Configuration(
        "admission-by-largest-batch",
        Rules(lag_bound=1, batch_min=1, batch=2, workers=1, slots=3, admission_batch="max"),
        Invariant.NO_WASTE,
    ),
    Configuration("capacity-at-commit", Rules(count_unpublished=False), Invariant.NO_WASTE),
    Configuration(
        "capacity-at-commit-lag-1", Rules(lag_bound=1, workers=1, slots=4, count_unpublished=False), Invariant.NO_WASTE
    ),
    Configuration(
        "bound-in-every-state",
        Rules(faults=1, workers=1, checkpoint_every=2, slots=3, bound="state"),
        Invariant.ADMISSION_STATE,
    ),
    Configuration("group-opens-whole", Rules(group=2, batch=2, group_open="whole"), Invariant.DEAD_LOCK),
    Configuration(
        "parked-needs-room", Rules(faults=1, workers=1, expired="park", turns=2, parked_needs_room=True), Invariant.DEAD_LOCK
    ),
    Configuration(
        "parked-uncharged", Rules(deadly=True, workers=1, expired="park", turns=2, parked_charged=False), Invariant.LIVE_LOCK
    ),
    Configuration(
        "deadline-keeps-seats",
        Rules(faults=2, workers=1, group=2, batch=2, deadline=True, deadline_ends="members"),
        Invariant.DEAD_LOCK,
    ),
    Configuration(
        "deadline-spares-running",
        Rules(faults=1, workers=2, group=2, batch=2, deadline=True, deadline_ends="waiting"),
        Invariant.DEAD_LOCK,
    ),
    Configuration(
        "retention-before-checkpoint", Rules(faults=1, workers=1, retention=True, removes="trained"), Invariant.RETAINED
    ),
    Configuration("removed-item-returns", Rules(faults=2, workers=1, retention=True, removed_returns=True), Invariant.CONTENT),
    Configuration("retention-unlocked", Rules(faults=2, workers=1, retention=True, removal_lock=False), Invariant.CONTENT),
    Configuration(
        "checkpoint-of-head-only",
        Rules(workers=1, lag_bound=1, slots=3, late_checkpoints=True, checkpoint_of="head"),
        Invariant.LIVE_LOCK,
    ),
    Configuration(
        "redundant-seats-counted",
        Rules(group=2, extra=1, batch=2, slots=3, redundant_seats="counted"),
        Invariant.DEAD_LOCK,
    ),
    Configuration("claim-unfenced", Rules(faults=2, slots=1, workers=1, claim_fenced=False), Invariant.FAIR_CHARGE),
    Configuration("claim-forgotten", Rules(faults=1, slots=1, workers=1, forgotten="lapses"), Invariant.FAIR_CHARGE),
    Configuration("fence-unlocked", Rules(faults=1, workers=1, fence_lock=False), Invariant.CHECKPOINT_TRUTH),
    Configuration("version-unlocked", Rules(faults=1, workers=1, fence_lock=False), Invariant.VERSION_TRUTH),
    Configuration("ready-unlocked", Rules(faults=1, workers=1, ready_lock=False), Invariant.LAG),
    Configuration("refused-restarts", Rules(faults=1, workers=1, slots=1, restart="always"), Invariant.LIVE_LOCK),
    Configuration("death-uncharged", Rules(poison=True, workers=1, charge_dead_trainer=False), Invariant.LIVE_LOCK),
    Configuration("failure-releases", Rules(poison=True, workers=1, error_releases=True), Invariant.LIVE_LOCK),
    Configuration("outage-without-grace", Rules(faults=1, workers=1, outage=True, grace=False), Invariant.OUTAGE),
    Configuration(
        "failed-version-waits", Rules(faults=1, workers=1, transport="push", failed_push="wait"), Invariant.DEAD_LOCK
    ),
    Configuration(
        "publish-waits-for-pull", Rules(verify="loaded", pull_idle=False, count_unpublished=False), Invariant.DEAD_LOCK
    ),
    Configuration("pull-between-turns", Rules(pull_idle=False), Invariant.DEAD_LOCK),
    Configuration("pull-between-turns-uncounted", Rules(pull_idle=False, count_unpublished=False), Invariant.NO_WASTE),
    Configuration("push-trusted", Rules(faults=1, workers=1, transport="push", reconcile=False), Invariant.DEAD_LOCK),
    Configuration(
        "abandoned-items-stay", Rules(faults=1, workers=1, checkpoint_every=2, abandoned="stay"), Invariant.CONSERVATION
    ),
    Configuration(
        "checkpoint-highest-step", Rules(faults=3, workers=1, max_attempts=1, checkpoint_pick="highest"), Invariant.EXACTLY_ONCE
    ),
    Configuration("checkpoint-file-by-step", Rules(faults=1, workers=1, checkpoint_path="step"), Invariant.CHECKPOINT_FILE),
    Configuration("lag-by-numbers", Rules(faults=1, workers=1, lag="raw"), Invariant.LAG),
    Configuration(
        "masked-group-by-any-member",
        Rules(faults=1, group=2, batch=2, slots=4, workers=1, staleness="segment_mask", masked_group="any"),
        Invariant.LAG,
    ),
    Configuration("future-by-updates", Rules(faults=1, workers=1, future="updates"), Invariant.TOKEN_REFUSED),
    Configuration("next-seg-set", SegmentRules(next_seg="set"), SegmentInvariant.FORWARD),
    Configuration("fence-kept", SegmentRules(new_fence=False), SegmentInvariant.NOT_STUCK),
    Configuration("count-unchecked", SegmentRules(flushed=False, counted=False), SegmentInvariant.NO_HOLE),
    Configuration("segments-not-kept", SegmentRules(flushed=False, resent=False), SegmentInvariant.NOT_STUCK),
)
"""The other readings; each must be found broken."""

CONFIGURATIONS = (*HOLDING, *READINGS)
