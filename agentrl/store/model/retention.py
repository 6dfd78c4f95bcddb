"""Removing trajectories that nobody needs any more: at any time, by anybody.

SQL: `needed_v1` and `retire_v1`, which holds the run row and admission between the question and the removal.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.store.model.moves import Draft, Move, move
from agentrl.store.model.rules import Rules
from agentrl.store.model.state import State


def retention_moves(state: State, rules: Rules) -> Iterator[Move]:
    """Every trajectory that ended is old enough. Nothing may rely on somebody who cleans up."""
    if state.removing >= 0:
        draft = Draft(state)
        draft.slot(state.removing, gone=True)
        draft.set(removing=-1)
        yield move(f"retention removes slot {state.removing}, which nobody needed", draft, hoped=True)
        return
    for i, slot in enumerate(state.slots):
        if slot.gone or slot.place not in ("consumed", "dropped") or (slot.place == "consumed" and _needed(state, rules, i)):
            continue
        draft = Draft(state)
        if rules.removal_lock:
            draft.slot(i, gone=True)
        else:
            draft.set(removing=i)
        yield move(f"retention {'removes' if rules.removal_lock else 'finds nobody to need'} slot {i}", draft, hoped=True)


def _needed(state: State, rules: Rules, i: int) -> bool:
    """Whether a resume from the newest checkpoint row would take the slot's step again."""
    if rules.removes == "trained":
        return False
    saved = max((len(c.weights) for c in state.checkpoints if c.weights == state.ledger[: len(c.weights)]), default=0)
    return any(i in items for _, items in state.ledger[saved:])
