"""What all moves share: the draft of the next state, and the short words for slots, groups and versions.

A move is one transaction, or one step of a process between two transactions. It is atomic and durable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from agentrl.store.model.invariants import Invariant
from agentrl.store.model.rules import Rules
from agentrl.store.model.state import NOBODY, OUTSTANDING, State, Version, Weights, common, names_in_use


class Draft:
    """A copy of a state that a move changes; ``broken`` collects the invariants that the move breaks."""

    __slots__ = ("_base", "_changes", "broken", "slots", "trainers", "workers")

    def __init__(self, state: State) -> None:
        self._base = state
        self._changes: dict[str, Any] = {}
        self.slots, self.workers, self.trainers = list(state.slots), list(state.workers), list(state.trainers)
        self.broken: list[Invariant] = []

    def set(self, **changes: Any) -> None:
        """Change whole fields of the state."""
        self._changes.update(changes)

    def slot(self, i: int, **changes: Any) -> None:
        self.slots[i] = self.slots[i]._replace(**changes)

    def worker(self, w: int, **changes: Any) -> None:
        self.workers[w] = self.workers[w]._replace(**changes)

    def trainer(self, t: int, **changes: Any) -> None:
        self.trainers[t] = self.trainers[t]._replace(**changes)

    def breaks(self, invariant: Invariant, when: bool) -> None:
        if when:
            self.broken.append(invariant)

    def state(self) -> State:
        return self._base._replace(
            slots=tuple(self.slots), workers=tuple(self.workers), trainers=tuple(self.trainers), **self._changes
        )


class Move(NamedTuple):
    """One possible next state and what led there."""

    label: str
    state: State
    broken: tuple[Invariant, ...]
    fault: bool
    hoped: bool
    """Liveness must not rely on it: a fault, or a stalled trainer that wakes although another could take over."""


def move(label: str, draft: Draft, *, fault: bool = False, hoped: bool = False) -> Move:
    """Finish a draft; a fault uses up one of the budget."""
    state = draft.state()
    if fault:
        state = state._replace(faults=state.faults - 1)
    return Move(label, state, tuple(draft.broken), fault, hoped or fault)


def group_of(rules: Rules, i: int) -> range:
    """The slots of the group that slot ``i`` belongs to."""
    first = i - i % rules.seats
    return range(first, first + rules.seats)


def outstanding(rules: Rules, slots: list[Any] | tuple[Any, ...]) -> int:
    """Trajectories that are opened and neither consumed nor dropped; of a group not more than are ever trained."""
    here = [slot.place in OUTSTANDING for slot in slots]
    if rules.redundant_seats == "counted":
        return sum(here)
    return sum(min(rules.group, sum(here[i : i + rules.seats])) for i in range(0, len(here), rules.seats))


def drop(draft: Draft, i: int) -> None:
    draft.slot(i, place="dropped", owner="", tokens=(), claims=0, oldest=0, in_update=False, late=False, turns=0)


def end_seat(draft: Draft, rules: Rules, i: int, *, retry: bool) -> None:
    """A seat ended without data: it is wanted again while attempts are left, else its group is dropped once it lacks seats."""
    if retry and draft.slots[i].attempt < rules.max_attempts:
        attempt = draft.slots[i].attempt + 1
        draft.slot(i, place="wanted", attempt=attempt, owner="", tokens=(), claims=0, oldest=0, late=False, turns=0)
        return
    if draft.slots[i].place != "ready":
        drop(draft, i)
        if sum(draft.slots[j].place == "dropped" for j in group_of(rules, i)) <= rules.extra:
            return
    for j in group_of(rules, i):
        if draft.slots[j].place not in ("consumed", "dropped", "lease"):
            drop(draft, j)


def park(draft: Draft, rules: Rules, i: int, *, charge: bool) -> bool:
    """Leave a running episode to whoever continues it; False when nothing is stored or its attempts are used up."""
    slot = draft.slots[i]
    charged = charge and rules.parked_charged
    if rules.expired != "park" or not slot.turns or slot.attempt + charged > rules.max_attempts:
        return False
    draft.slot(i, attempt=slot.attempt + charged, owner="", late=False)
    return True


def hand_over(draft: Draft, rules: Rules, i: int, ledger: Weights) -> None:
    """A seat has its reward; the whole group becomes ready with its last seat."""
    draft.slot(i, place="graded", owner="", late=False, turns=0)
    graded = [j for j in group_of(rules, i) if draft.slots[j].place == "graded"]
    if len(graded) < rules.group:
        return
    for j in group_of(rules, i):
        if j not in graded and draft.slots[j].place != "dropped":
            drop(draft, j)
    oldest = oldest_update(draft, rules, i, ledger)
    for j in graded:
        draft.slot(j, place="ready", oldest=oldest)


def oldest_update(draft: Draft, rules: Rules, i: int, ledger: Weights) -> int:
    """The number stored with a ready item, over its group; ``len(ledger)`` minus it is what the lag bound limits."""
    tokens = [draft.slots[j].tokens for j in group_of(rules, i) if draft.slots[j].place != "dropped"]
    members = [[counted_from(rules, t, ledger) for t in own] for own in tokens]
    if rules.staleness == "trajectory":
        return min(min(member) for member in members)
    newest = [max(member) for member in members]
    return min(newest) if rules.masked_group == "each" else max(newest)


def counted_from(rules: Rules, token: Weights, ledger: Weights) -> int:
    """What the lag of a token is counted from."""
    return len(token) if rules.lag == "raw" else 2 * common(ledger, token) - len(token)


def in_range(rules: Rules, ledger: Weights, oldest: int) -> bool:
    return len(ledger) - oldest <= rules.lag_bound


def lapsed(state: State, owner: str) -> bool:
    """Whether a lease of ``owner`` has run out: only that of a process that died or stalls does."""
    if owner in ("", NOBODY):
        return owner == NOBODY
    if owner == "R":
        return state.grader.stalled
    if owner[0] == "W":
        return state.workers[int(owner[1])].stalled
    trainer = state.trainers[int(owner[1])]
    return trainer.at == "off" or trainer.stalled


def unheard(state: State, i: int) -> bool:
    """Whether slot ``i`` was leased by a claim whose reply was lost: its trainer lives, and knows of nothing that it holds."""
    slot = state.slots[i]
    if slot.place != "lease" or slot.owner == NOBODY:
        return False
    trainer = state.trainers[int(slot.owner[1])]
    return trainer.at == "idle" and not trainer.stalled


def newest_version(state: State) -> Version:
    """The newest version that is not failed, staged ones included."""
    if state.staged and state.staged.name > state.published.name:
        return state.staged
    return state.published


def fresh_name(state: State) -> int:
    """A version name above all that something still carries."""
    return 1 + max(names_in_use(state))
