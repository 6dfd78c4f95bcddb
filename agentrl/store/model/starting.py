"""A trainer start: take the fence, choose a checkpoint, open a branch; one transaction.

SQL: `start_trainer_v1` with `abandon_v1`, `recompute_lag_v1`, `return_lease_v1` and `refresh_ready_v1`.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.store.model.invariants import Invariant
from agentrl.store.model.moves import Draft, Move, drop, fresh_name, in_range, move, oldest_update, outstanding
from agentrl.store.model.reaping import return_lease
from agentrl.store.model.rules import Rules
from agentrl.store.model.state import NOBODY, Checkpoint, State, Trainer, Version, Weights, common

ROOT = Checkpoint((), ())


def start_moves(state: State, rules: Rules, t: int) -> Iterator[Move]:
    """Starts of trainer ``t``, with the newest usable checkpoint and, as a fault, with the one before it."""
    if not _may_start(state, rules, t):
        return
    usable = [ROOT, *(c for c in state.checkpoints if c.file == c.weights)]
    if rules.checkpoint_pick == "live":
        usable = [c for c in usable if c.weights == state.ledger[: len(c.weights)]]
    usable.sort(key=lambda c: len(c.weights))
    for unreadable in (False, True)[: 1 + (state.faults > 0 and len(usable) > 1)]:
        weights = usable[-1 - unreadable].weights
        draft = Draft(state)
        _resume(draft, state, rules, t, weights)
        end = " (the newest is unreadable)" if unreadable else ""
        if not unreadable:  # with a newer checkpoint that can't be read, what was trained before it may be gone for good
            draft.breaks(Invariant.RETAINED, _lost(state, draft))
        yield move(f"T{t} starts from the checkpoint of step {len(weights)}{end}", draft, fault=unreadable)


def _may_start(state: State, rules: Rules, t: int) -> bool:
    me, other = state.trainers[t], state.trainers[1 - t]
    if me.refused:
        return True
    # Processes that are off are alike: the first one starts.
    if t == 1 and other.at == "off":
        return False
    return other.at == "off" or other.stalled


def _resume(draft: Draft, state: State, rules: Rules, t: int, weights: Weights) -> None:
    keep = common(state.ledger, weights)
    ledger = state.ledger[:keep]
    draft.breaks(Invariant.RESUME, weights != ledger)
    for _, items in state.ledger[keep:]:
        for i in items:
            draft.slot(i, place="ready" if rules.abandoned == "ready" else "marked", claims=0)
        if any(state.slots[i].gone for i in items) and not rules.removed_returns:
            for i in items:
                drop(draft, i)
    _return_leases(draft, state, rules)
    for i, slot in enumerate(draft.slots):
        if slot.place == "ready":
            draft.slot(i, oldest=oldest_update(draft, rules, i, ledger))
    for i, slot in enumerate(draft.slots):
        if slot.place == "ready" and not in_range(rules, ledger, slot.oldest):
            drop(draft, i)
    draft.breaks(Invariant.ADMISSION_STATE, rules.bound == "state" and outstanding(rules, draft.slots) > rules.capacity)
    # Published in the same transaction, so that nothing is claimed before.
    version = Version(fresh_name(state), weights)
    draft.set(holder=t, ledger=ledger, branch=state.branch + 1, published=version, staged=None)
    draft.trainers[t] = Trainer(at="idle", weights=weights)


def _lost(state: State, draft: Draft) -> bool:
    """Whether the start dropped something that was trained and then removed."""
    return any(a.gone and a.place == "consumed" and b.place == "dropped" for a, b in zip(state.slots, draft.slots, strict=True))


def _return_leases(draft: Draft, state: State, rules: Rules) -> None:
    for i, slot in enumerate(draft.slots):
        if slot.place == "lease":
            died = slot.owner == NOBODY or state.holder >= 0
            return_lease(draft, rules, i, charge=rules.charge_dead_trainer and died and slot.in_update)
