"""One state of the protocol: what the database, the processes and the files hold between two transactions.

Weights are written as the ledger steps that they truly contain, so that lag and double training are tested against truth and
not against what the protocol believes. Version names and branches are only compared, so `canonical` replaces them by their
ranks; workers are interchangeable, so it sorts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Step = tuple[int, tuple[int, ...]]
"""Branch, and the slots it trained on."""
Weights = tuple[Step, ...]

OUTSTANDING = frozenset({"live", "grade_job", "graded", "ready", "lease"})
NOBODY = "nobody"
"""The owner of a row whose process died."""


class Version(NamedTuple):
    """A name of weights; names only grow."""

    name: int
    weights: Weights


class Slot(NamedTuple):
    """A group seat of the data set, and the trajectory that fills it now.

    ``place`` is ``new`` (task not opened), ``wanted`` (a seat without trajectory: missing, or a pending retry), a place of the
    store, or ``marked`` (a consumed row of an abandoned step that is only marked).
    """

    place: str = "new"
    attempt: int = 1
    claims: int = 0
    """Claims that were charged."""
    owner: str = ""
    """``W0``, ``R``, ``T0`` ...: who holds the row under a lease."""
    tokens: tuple[Weights, ...] = ()
    """The weights that sampled its tokens, ascending."""
    oldest: int = 0
    """``oldest_update`` of the ready row."""
    in_update: bool = False
    """Its lease was renewed for the optimizer step."""
    late: bool = False
    """Its lease lapsed while the database was down; its owner lives."""
    turns: int = 0
    """Turns stored of a running episode (only where episodes are parked)."""
    gone: bool = False
    """Retention removed the trajectory."""


class Worker(NamedTuple):
    """A rollout worker with one engine and at most one episode. ``at``: idle, counted, running or read."""

    at: str = "idle"
    stalled: bool = False
    slot: int = -1
    turns: int = 0
    engine: Version = Version(0, ())
    seen: tuple[Weights, ...] = ()
    """The live history as it was read before an insert into ready (only without the lock)."""


class Grader(NamedTuple):
    """The reward worker; ``slot`` is -1 while it has no job."""

    slot: int = -1
    stalled: bool = False


class Trainer(NamedTuple):
    """A trainer process. ``at``: off, idle, claimed, checked, stepped, committed, staged, due or written."""

    at: str = "off"
    stalled: bool = False
    weights: Weights = ()
    """What its memory holds."""
    items: tuple[int, ...] = ()
    version: Version | None = None
    pushed: tuple[bool, ...] = ()
    """To which engines the staged version was pushed."""
    sure: bool = False
    """It read its fence as valid and writes next (only without the lock)."""
    refused: bool = False
    """It was refused and starts again at once (only when a start does not wait)."""
    saving: Weights = ()
    """What it is writing a checkpoint of while it goes on."""


class Checkpoint(NamedTuple):
    """A checkpoint row, and what is in the file that it names."""

    weights: Weights
    file: Weights


class State(NamedTuple):
    """Everything. ``holder`` is the trainer with the fence, -1: nobody; ``ledger`` the live history."""

    faults: int
    slots: tuple[Slot, ...]
    workers: tuple[Worker, ...]
    grader: Grader
    trainers: tuple[Trainer, ...]
    holder: int
    ledger: Weights
    checkpoints: tuple[Checkpoint, ...]
    published: Version
    staged: Version | None
    branch: int
    removing: int = -1
    """The slot that retention found nobody to need and removes next (only without the lock)."""


def common(a: Weights, b: Weights) -> int:
    """Steps that two weights share from the root."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def true_lag(head: Weights, token: Weights) -> int:
    """Policy updates between two weights, over their last common ancestor."""
    return len(head) + len(token) - 2 * common(head, token)


def names_in_use(state: State) -> set[int]:
    """All version names that something still carries."""
    versions = [state.published, state.staged, *(w.engine for w in state.workers), *(t.version for t in state.trainers)]
    return {0} | {v.name for v in versions if v is not None}


def _weights_in_use(state: State) -> Iterable[Weights]:
    yield state.ledger
    yield state.published.weights
    if state.staged:
        yield state.staged.weights
    for checkpoint in state.checkpoints:
        yield from checkpoint
    for worker in state.workers:
        yield worker.engine.weights
        yield from worker.seen
    for trainer in state.trainers:
        yield trainer.weights
        yield trainer.saving
        if trainer.version:
            yield trainer.version.weights
    for slot in state.slots:
        yield from slot.tokens


def canonical(state: State) -> State:
    """The representative of all states that differ only in names of versions, branches and workers."""
    names = names_in_use(state)
    branches = {state.branch, *(branch for weights in set(_weights_in_use(state)) for branch, _ in weights)}
    if max(names) >= len(names) or max(branches) >= len(branches):
        state = _renamed(state, _ranks(branches), _ranks(names))
    if len(state.workers) == 2 and state.workers[1] < state.workers[0]:
        state = _swapped(state)
    return state


def _ranks(used: set[int]) -> dict[int, int]:
    return {old: new for new, old in enumerate(sorted(used))}


def _renamed(state: State, branches: dict[int, int], names: dict[int, int]) -> State:
    # Ranks keep the order, so what is sorted stays sorted.
    def weights(old: Weights) -> Weights:
        return tuple([(branches[branch], items) for branch, items in old])

    def version(old: Version) -> Version:
        return Version(names[old.name], weights(old.weights))

    return state._replace(
        slots=tuple([s._replace(tokens=tuple(map(weights, s.tokens))) if s.tokens else s for s in state.slots]),
        workers=tuple([w._replace(engine=version(w.engine), seen=tuple(map(weights, w.seen))) for w in state.workers]),
        trainers=tuple(
            [
                t._replace(weights=weights(t.weights), version=t.version and version(t.version), saving=weights(t.saving))
                for t in state.trainers
            ]
        ),
        ledger=weights(state.ledger),
        checkpoints=tuple([Checkpoint(weights(c.weights), weights(c.file)) for c in state.checkpoints]),
        published=version(state.published),
        staged=state.staged and version(state.staged),
        branch=branches[state.branch],
    )


def _swapped(state: State) -> State:
    other = {"W0": "W1", "W1": "W0"}
    return state._replace(
        workers=state.workers[::-1],
        slots=tuple([s._replace(owner=other[s.owner]) if s.owner in other else s for s in state.slots]),
        trainers=tuple([t._replace(pushed=t.pushed[::-1]) for t in state.trainers]),
    )
