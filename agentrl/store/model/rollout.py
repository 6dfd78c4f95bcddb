"""Moves of the rollout workers and of the reward worker: open, load weights, write, complete, grade.

SQL: `open_v1`, `write_segment_v2`, `complete_v2`, `park_v1`, `renew_v1` (a stall is the lack of it), `record_load_v2`.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.store.model.invariants import Invariant
from agentrl.store.model.moves import (
    Draft,
    Move,
    end_seat,
    group_of,
    hand_over,
    move,
    newest_version,
    outstanding,
    park,
)
from agentrl.store.model.reaping import reap_moves
from agentrl.store.model.rules import Rules
from agentrl.store.model.state import NOBODY, OUTSTANDING, Grader, State, Version, true_lag

IDLE = {"at": "idle", "slot": -1, "turns": 0, "seen": ()}


def worker_moves(state: State, rules: Rules, w: int) -> Iterator[Move]:
    """All that worker ``w`` can do, or that can happen to it."""
    worker, name = state.workers[w], f"W{w}"
    if worker.stalled:
        draft = Draft(state)
        draft.worker(w, stalled=False)
        yield move(f"{name} wakes", draft)
        return
    if rules.deadly and worker.at == "running" and worker.slot == 0 and worker.turns:
        yield _dies(state, rules, w)
        return
    if state.faults:
        yield from _accidents(state, rules, w)
    yield from _loads(state, rules, w)
    if worker.at == "counted":
        yield _insert(state, rules, w)
    elif worker.at == "idle":
        yield from _opens(state, rules, w)
        yield from reap_moves(state, rules, name)
    elif state.slots[worker.slot].owner != name or state.slots[worker.slot].place != "live":
        draft = Draft(state)
        draft.worker(w, **IDLE)
        yield move(f"{name} hears that slot {worker.slot} is no longer its own", draft)
    elif worker.turns < rules.turns:
        yield _writes(state, rules, w)
    else:
        yield from _completes(state, rules, w)


def _accidents(state: State, rules: Rules, w: int) -> Iterator[Move]:
    worker, name = state.workers[w], f"W{w}"
    if worker.at != "idle":
        draft = Draft(state)
        draft.worker(w, stalled=True)
        yield move(f"{name} stalls past its lease", draft, fault=True)
        draft = Draft(state)
        draft.worker(w, **IDLE)
        mine = state.slots[worker.slot].owner == name
        if mine:
            draft.slot(worker.slot, owner=NOBODY)
        yield move(f"{name} crashes and restarts", draft, fault=True)
        if mine and worker.at == "running":
            draft = Draft(state)
            draft.worker(w, **IDLE)
            if park(draft, rules, worker.slot, charge=False):
                yield move(f"{name} is asked to stop and parks slot {worker.slot}", draft, fault=True)
            draft = Draft(state)
            draft.worker(w, **IDLE)
            end_seat(draft, rules, worker.slot, retry=True)
            yield move(f"{name} completes slot {worker.slot} as an infrastructure failure", draft, fault=True)
    if rules.transport == "push" and worker.engine != Version(0, ()):
        draft = Draft(state)
        draft.worker(w, engine=Version(0, ()))
        yield move(f"the engine of {name} restarts on the base weights", draft, fault=True)


def _dies(state: State, rules: Rules, w: int) -> Move:
    """An episode that kills its worker: the process that restarts it is the same worker."""
    draft = Draft(state)
    draft.worker(w, **IDLE)
    if state.slots[0].owner == f"W{w}":
        draft.slot(0, owner=NOBODY)
    return move(f"W{w} dies of slot 0", draft)


def _loads(state: State, rules: Rules, w: int) -> Iterator[Move]:
    worker, newest = state.workers[w], newest_version(state)
    if rules.transport == "pull":
        may = rules.pull_idle or worker.at != "idle"
    else:
        may = rules.reconcile
    if may and worker.engine != newest:
        draft = Draft(state)
        draft.worker(w, engine=newest)
        yield move(f"W{w} loads v{newest.name}", draft)


def _opens(state: State, rules: Rules, w: int) -> Iterator[Move]:
    """One seat a call; asking for several is several calls with nothing in between."""
    found = _served(state, rules, w)
    if found is None:
        return
    i, kind = found
    if not rules.open_lock:
        counted = {worker.slot for worker in state.workers if worker.at == "counted"}
        free = [j for j, slot in enumerate(state.slots) if slot.place in ("new", "wanted") and j not in counted]
        if free:
            draft = Draft(state)
            draft.worker(w, at="counted", slot=free[0])
            yield move(f"W{w} counts a free place for slot {free[0]}", draft)
        return
    for lost in (False, True)[: 1 + (state.faults > 0)]:
        draft = Draft(state)
        if kind == "new task":
            for j in group_of(rules, i):
                draft.slot(j, place="wanted")
        draft.slot(i, place="live", owner=NOBODY if lost else f"W{w}", late=False)
        if not lost:
            draft.worker(w, at="running", slot=i, turns=state.slots[i].turns)
        draft.breaks(Invariant.ADMISSION, kind != "parked" and outstanding(rules, draft.slots) > rules.capacity)
        end = ", the reply is lost and never asked for again" if lost else ""
        yield move(f"W{w} opens slot {i} ({kind}){end}", draft, fault=lost)


def _served(state: State, rules: Rules, w: int) -> tuple[int, str] | None:
    """The slot that an open of worker ``w`` gets: a parked one, a retry or missing seat, or a new task, if there is room."""
    free = rules.capacity - outstanding(rules, state.slots)
    if rules.count_unpublished:
        free -= rules.admitted * true_lag(state.ledger, state.workers[w].engine.weights)

    def room(n: int) -> bool:
        return free >= (n if rules.admission == "after" else 0)

    at = {place: [j for j, slot in enumerate(state.slots) if slot.place == place] for place in ("live", "wanted", "new")}
    parked = [j for j in at["live"] if not state.slots[j].owner]
    if parked and (room(1) or not rules.parked_needs_room):
        return parked[0], "parked"
    free_of_charge = [j for j in at["wanted"] if _is_redundant(state, rules, j)]
    if at["wanted"] and room(1):
        return at["wanted"][0], "retry or missing seat"
    if free_of_charge:
        return free_of_charge[0], "redundant seat"
    if at["wanted"]:
        return None
    whole_fits = rules.group_open == "seats" or rules.group == 1
    if at["new"] and room(rules.group if rules.redundant_seats == "free" else rules.seats) and whole_fits:
        return at["new"][0], "new task"
    return None


def _is_redundant(state: State, rules: Rules, i: int) -> bool:
    """Whether as many members of its group are there as are ever trained."""
    if rules.redundant_seats == "counted":
        return False
    return sum(state.slots[j].place in OUTSTANDING for j in group_of(rules, i)) >= rules.group


def _insert(state: State, rules: Rules, w: int) -> Move:
    draft, i = Draft(state), state.workers[w].slot
    draft.worker(w, **IDLE)
    if state.slots[i].place in ("new", "wanted"):
        draft.slot(i, place="live", owner=f"W{w}")
        draft.worker(w, at="running", slot=i, turns=0)
        draft.breaks(Invariant.ADMISSION, outstanding(rules, draft.slots) > rules.capacity)
    return move(f"W{w} inserts slot {i} as it had counted", draft)


def _writes(state: State, rules: Rules, w: int) -> Move:
    draft, worker = Draft(state), state.workers[w]
    i, weights = worker.slot, worker.engine.weights
    draft.breaks(Invariant.TOKEN_REFUSED, rules.future == "updates" and len(weights) > len(state.ledger))
    stored = worker.turns + 1 if rules.expired == "park" else 0
    draft.slot(i, tokens=tuple(sorted({*state.slots[i].tokens, weights})), late=False, turns=stored)
    draft.worker(w, turns=worker.turns + 1)
    return move(f"W{w} writes turn {worker.turns} of slot {i} with v{worker.engine.name}", draft)


def _completes(state: State, rules: Rules, w: int) -> Iterator[Move]:
    worker = state.workers[w]
    i = worker.slot
    if not rules.ready_lock and worker.at == "running":
        draft = Draft(state)
        draft.worker(w, at="read", seen=(state.ledger,))
        yield move(f"W{w} reads the live history for slot {i}", draft)
        return
    ledger = worker.seen[0] if worker.seen else state.ledger
    for lost in (False, True)[: 1 + (state.faults > 0)]:
        draft = Draft(state)
        if rules.grading == "worker":
            draft.slot(i, place="grade_job", owner="", late=False, turns=0)
        else:
            hand_over(draft, rules, i, ledger)
        if not lost:
            draft.worker(w, **IDLE)
        yield move(f"W{w} completes slot {i}{', the reply is lost' if lost else ''}", draft, fault=lost)


def grader_moves(state: State, rules: Rules) -> Iterator[Move]:
    """The reward worker: takes the first free job, writes the reward under the job's fence."""
    slot, stalled = state.grader
    draft = Draft(state)
    if stalled:
        draft.set(grader=Grader(slot))
        yield move("R wakes", draft)
        return
    if slot < 0:
        free = [j for j, s in enumerate(state.slots) if s.place == "grade_job" and not s.owner]
        if free:
            draft.slot(free[0], owner="R")
            draft.set(grader=Grader(free[0]))
            yield move(f"R claims the grade job of slot {free[0]}", draft)
        return
    draft.set(grader=Grader())
    mine = state.slots[slot].place == "grade_job" and state.slots[slot].owner == "R"
    if mine:
        hand_over(draft, rules, slot, state.ledger)
    yield move(f"R grades slot {slot}" if mine else f"R is fenced out of slot {slot}", draft)
    if state.faults:
        draft = Draft(state)
        draft.set(grader=Grader(slot, stalled=True))
        yield move("R stalls past its lease", draft, fault=True)
        draft = Draft(state)
        draft.set(grader=Grader())
        if mine:
            draft.slot(slot, owner=NOBODY)
        yield move("R crashes and restarts", draft, fault=True)
