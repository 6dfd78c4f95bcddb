"""Collecting what has expired, inside open and claim; and what age, deadlines and outages do.

SQL: `reap_v1` with `reap_episodes_v1`, `park_live_v1`, `reap_waiting_v1`, `reap_stale_v1`, `reap_groups_v1`, `close_group_v1`
and `reap_items_v1`; `lapsed_v1`.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.store.model.invariants import Invariant
from agentrl.store.model.moves import Draft, Move, counted_from, drop, end_seat, in_range, lapsed, move, park, unheard
from agentrl.store.model.rules import Rules
from agentrl.store.model.state import NOBODY, State, Weights


def reap_moves(state: State, rules: Rules, who: str) -> Iterator[Move]:
    """One collection of everything. It is rate-limited, so it may come with a call or not: a move of its own."""
    draft, done = Draft(state), []
    for i in range(len(state.slots)):
        slot = draft.slots[i]
        forgotten = rules.forgotten == "lapses" and unheard(state, i)
        expired = slot.late or lapsed(state, slot.owner) or forgotten
        draft.breaks(Invariant.OUTAGE, slot.late)
        if slot.place == "live" and expired:
            if park(draft, rules, i, charge=True):
                done.append(f"live slot {i}, which is parked")
                continue
            end_seat(draft, rules, i, retry=True)
            done.append(f"live slot {i}")
        elif slot.place in ("live", "grade_job", "graded") and _doomed(draft, rules, i, state.ledger):
            end_seat(draft, rules, i, retry=True)
            done.append(f"{slot.place} slot {i}, which is stale")
            draft.breaks(Invariant.NO_WASTE, _calm(state, rules))
        elif slot.place == "grade_job" and expired:
            draft.slot(i, owner="", late=False)
            done.append(f"the grade job of slot {i}")
        elif slot.place == "lease" and expired:
            draft.breaks(Invariant.FAIR_CHARGE, forgotten or (slot.owner != NOBODY and state.holder != int(slot.owner[1])))
            return_lease(draft, rules, i, charge=True)
            done.append(f"the lease of slot {i}")
        elif slot.place == "ready" and not in_range(rules, state.ledger, slot.oldest):
            drop(draft, i)
            done.append(f"stale slot {i}")
            draft.breaks(Invariant.NO_WASTE, _calm(state, rules))
    if done:
        yield move(f"{who} reaps {', '.join(done)}", draft)


def _calm(state: State, rules: Rules) -> bool:
    """Whether nothing has failed, and no other episode can overtake one: then nothing may become stale."""
    return state.faults == rules.faults and (rules.lag_bound == 0 or rules.workers == 1)


def _doomed(draft: Draft, rules: Rules, i: int, ledger: Weights) -> bool:
    """Whether the oldest token of a slot that is not ready yet is out of range, so that no claim would ever take it."""
    tokens = draft.slots[i].tokens
    if not tokens or rules.staleness != "trajectory":
        return False
    return not in_range(rules, ledger, min(counted_from(rules, t, ledger) for t in tokens))


def return_lease(draft: Draft, rules: Rules, i: int, *, charge: bool) -> None:
    """A leased slot goes back to ready, or is dropped when its claims are used up."""
    claims = draft.slots[i].claims + charge
    if claims >= rules.max_lease_attempts:
        drop(draft, i)
    else:
        draft.slot(i, place="ready", owner="", claims=claims, in_update=False, late=False)


def ageing_moves(state: State, rules: Rules) -> Iterator[Move]:
    """Faults of time: a trajectory that exceeds its age, a database that is down for longer than a lease."""
    if not state.faults:
        return
    for i, slot in enumerate(state.slots):
        if slot.place in ("live", "grade_job", "graded", "ready"):
            draft = Draft(state)
            end_seat(draft, rules, i, retry=rules.group > 1 and slot.place != "ready")
            yield move(f"slot {i} ({slot.place}) exceeds its age", draft, fault=True)
    if rules.deadline:
        yield from _deadlines(state, rules)
    if rules.outage and any(slot.owner for slot in state.slots):
        draft = Draft(state)
        for i, slot in enumerate(state.slots):
            if slot.owner and not rules.grace:
                draft.slot(i, late=True)
        yield move("the database is down for longer than a lease", draft, fault=True)


def _deadlines(state: State, rules: Rules) -> Iterator[Move]:
    """A group that was opened and is neither complete nor dropped is given up."""
    ended = {
        "group": ("live", "grade_job", "graded", "wanted"),
        "members": ("live", "grade_job", "graded"),
        "waiting": ("graded",),
    }[rules.deadline_ends]
    for first in range(0, len(state.slots), rules.group):
        members = range(first, first + rules.group)
        if not {state.slots[i].place for i in members} <= {"live", "grade_job", "graded", "wanted"}:
            continue
        draft = Draft(state)
        for i in members:
            if state.slots[i].place in ended:
                drop(draft, i)
        yield move(f"the group of slot {first} exceeds its deadline", draft, fault=True)
