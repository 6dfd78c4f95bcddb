"""Moves of the trainers: claim, renew, update, commit, name and publish weights, checkpoint.

SQL: `claim_v3`, `renew_leases_v1`, `commit_step_v1`, `stage_version_v1`, `settle_version_v2`, `add_checkpoint_v1`,
`release_trainer_v1`; `renew_trainer_v1` (a stall is the lack of it). Each begins with `hold_trainer_v1`: the fence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentrl.store.model.invariants import Invariant
from agentrl.store.model.moves import Draft, Move, fresh_name, group_of, in_range, move, unheard
from agentrl.store.model.reaping import reap_moves, return_lease
from agentrl.store.model.rules import Rules
from agentrl.store.model.starting import start_moves
from agentrl.store.model.state import Checkpoint, State, Trainer, Version, Weights, true_lag

KEPT_CHECKPOINTS = 3


def trainer_moves(state: State, rules: Rules, t: int) -> Iterator[Move]:
    """All that trainer ``t`` can do, or that can happen to it."""
    trainer = state.trainers[t]
    if trainer.at == "off":
        yield from start_moves(state, rules, t)
        return
    if trainer.stalled:
        draft = Draft(state)
        draft.trainer(t, stalled=False)
        # Another process can take over from a stalled trainer; only when both stall does somebody have to wake.
        yield move(f"T{t} wakes", draft, hoped=not state.trainers[1 - t].stalled)
        return
    if state.faults:
        yield from _accidents(state, rules, t)
    if trainer.saving:
        yield _saves(state, rules, t)
    yield from _STEPS[trainer.at](state, rules, t)


def _accidents(state: State, rules: Rules, t: int) -> Iterator[Move]:
    draft = Draft(state)
    draft.trainers[t] = Trainer()
    yield move(f"T{t} crashes", draft, fault=True)
    draft = Draft(state)
    draft.trainer(t, stalled=True)
    yield move(f"T{t} stalls past its leases", draft, fault=True)
    if state.trainers[t].at in ("idle", "claimed") and state.holder == t:
        draft = Draft(state)
        _release(draft, rules, t)
        yield move(f"T{t} is asked to stop and releases", draft, fault=True)


def _release(draft: Draft, rules: Rules, t: int) -> None:
    for i, slot in enumerate(draft.slots):
        if slot.place == "lease" and slot.owner == f"T{t}":
            return_lease(draft, rules, i, charge=False)
    draft.trainers[t] = Trainer()
    draft.set(holder=-1)


def _refused(state: State, rules: Rules, t: int, what: str) -> Move:
    draft = Draft(state)
    draft.trainers[t] = Trainer(refused=rules.restart == "always")
    return move(f"T{t} is refused ({what}) and exits", draft)


def _holds_all(state: State, t: int) -> bool:
    items = state.trainers[t].items
    return state.holder == t and all(state.slots[i].place == "lease" and state.slots[i].owner == f"T{t}" for i in items)


def _claims(state: State, rules: Rules, t: int) -> Iterator[Move]:
    if rules.claim_fenced and state.holder != t:
        yield _refused(state, rules, t, "claim")
        return
    yield from reap_moves(state, rules, f"T{t}")
    back = [i for i in range(len(state.slots)) if rules.forgotten == "returned" and unheard(state, i)]
    ready = [(slot.oldest, i) for i, slot in enumerate(state.slots) if slot.place == "ready" or i in back]
    usable = sorted((oldest, i) for oldest, i in ready if in_range(rules, state.ledger, oldest))
    enough = len(usable) >= rules.enough
    taken = tuple(sorted(i for _, i in usable[: rules.batch])) if enough else ()
    for lost in (False, True)[: enough + (enough and state.faults > 0)]:
        draft = _with_back(state, rules, back)
        for i in taken:
            draft.slot(i, place="lease", owner=f"T{t}")
            draft.breaks(Invariant.WHOLE_GROUPS, sum(j in taken for j in group_of(rules, i)) != rules.group)
        if not lost:
            draft.trainer(t, at="claimed", items=taken)
        yield move(f"T{t} claims {_named(taken)}{', the reply is lost' if lost else ''}", draft, fault=lost)
    if back and not enough:
        yield move(f"T{t} claims nothing and puts {_named(tuple(back))} back", _with_back(state, rules, back))


def _with_back(state: State, rules: Rules, back: list[int]) -> Draft:
    draft = Draft(state)
    for i in back:
        return_lease(draft, rules, i, charge=False)
    return draft


def _renews(state: State, rules: Rules, t: int) -> Iterator[Move]:
    items = state.trainers[t].items
    if not (_holds_all(state, t) and all(in_range(rules, state.ledger, state.slots[i].oldest) for i in items)):
        yield _refused(state, rules, t, "renewal")
        return
    draft = Draft(state)
    draft.trainer(t, at="checked")
    for i in items:
        draft.slot(i, in_update=True, late=False)
    yield move(f"T{t} renews its leases for the update", draft)


def _updates(state: State, rules: Rules, t: int) -> Iterator[Move]:
    trainer, draft = state.trainers[t], Draft(state)
    if rules.poison and 0 in trainer.items:
        if rules.error_releases and state.holder == t:
            _release(draft, rules, t)
            yield move(f"T{t} fails in the update over slot 0, releases and exits", draft)
        else:
            draft.trainers[t] = Trainer()
            yield move(f"T{t} dies in the update over slot 0", draft)
        return
    draft.trainer(t, at="stepped", weights=(*trainer.weights, (state.branch, trainer.items)))
    yield move(f"T{t} makes the optimizer step", draft)


def _commits(state: State, rules: Rules, t: int) -> Iterator[Move]:
    trainer = state.trainers[t]
    before, items = trainer.weights[:-1], trainer.items
    if state.holder == t and state.ledger == trainer.weights:
        draft = Draft(state)
        draft.trainer(t, at="committed", items=())
        yield move(f"T{t} commits again and gets the first result", draft)
        return
    if not _holds_all(state, t):
        yield _refused(state, rules, t, "commit")
        return
    for lost in (False, True)[: 1 + (state.faults > 0)]:
        draft = Draft(state)
        draft.breaks(Invariant.LEDGER, before != state.ledger)
        draft.breaks(Invariant.EXACTLY_ONCE, any(i in done for _, done in before for i in items))
        draft.breaks(Invariant.LAG, any(not _trainable(rules, before, state.slots[i].tokens) for i in items))
        draft.set(ledger=(*state.ledger, trainer.weights[-1]))
        for i in items:
            draft.slot(i, place="consumed", owner="", oldest=0, in_update=False, late=False)
        if not lost:
            draft.trainer(t, at="committed", items=())
        yield move(f"T{t} commits step {len(trainer.weights)}{', the reply is lost' if lost else ''}", draft, fault=lost)


def _trainable(rules: Rules, weights: Weights, tokens: tuple[Weights, ...]) -> bool:
    """Whether all tokens are in range or, where older ones don't train, some are."""
    in_range = [true_lag(weights, token) <= rules.lag_bound for token in tokens]
    return all(in_range) if rules.staleness == "trajectory" else any(in_range)


def _fence(state: State, rules: Rules, t: int, what: str) -> Move | None:
    """What comes before a fenced write, if anything: the refusal or, without the lock, the separate check."""
    if state.trainers[t].sure:
        return None
    if state.holder != t:
        return _refused(state, rules, t, what)
    if rules.fence_lock:
        return None
    draft = Draft(state)
    draft.trainer(t, sure=True)
    return move(f"T{t} reads its fence as valid", draft)


def _stages(state: State, rules: Rules, t: int) -> Iterator[Move]:
    first = _fence(state, rules, t, "version row")
    if first:
        yield first
        return
    weights, draft = state.trainers[t].weights, Draft(state)
    draft.breaks(Invariant.VERSION_TRUTH, weights != state.ledger[: len(weights)])
    version = Version(fresh_name(state), weights)
    draft.set(staged=version)
    draft.trainer(t, at="staged", version=version, pushed=(False,) * rules.workers, sure=False)
    yield move(f"T{t} stages v{version.name}", draft)


def _publishes(state: State, rules: Rules, t: int) -> Iterator[Move]:
    trainer = state.trainers[t]
    version = trainer.version
    assert version is not None
    if rules.transport == "push":
        yield from _pushes(state, t, version)
    if state.holder != t:
        yield _refused(state, rules, t, "publish")
        return
    if state.faults:
        yield _fails(state, rules, t, version)
    if not _verified(state, rules, trainer, version) or (trainer.saving and "saving" in _next(rules, trainer)):
        return
    draft = Draft(state)
    draft.breaks(Invariant.VERSION_ORDER, version.name <= state.published.name)
    draft.breaks(Invariant.VERSION_TRUTH, version.weights != state.ledger[: len(version.weights)])
    draft.set(published=version, staged=None)
    draft.trainer(t, version=None, pushed=(), **_next(rules, trainer))
    yield move(f"T{t} publishes v{version.name}", draft)


def _next(rules: Rules, trainer: Trainer) -> dict[str, Any]:
    """What follows once a step's weights are out: a checkpoint when it is due, beside the next step or before it."""
    if len(trainer.weights) % rules.checkpoint_every:
        return {"at": "idle"}
    return {"at": "idle", "saving": trainer.weights} if rules.late_checkpoints else {"at": "due"}


def _verified(state: State, rules: Rules, trainer: Trainer, version: Version) -> bool:
    if rules.transport == "push":
        return all(trainer.pushed) and (rules.reconcile or all(w.engine == version for w in state.workers))
    return rules.verify == "file" or all(w.engine.name >= version.name for w in state.workers)


def _pushes(state: State, t: int, version: Version) -> Iterator[Move]:
    """The push is outside the database: no fence can stop it, and a stalled trainer may roll an engine back."""
    pushed = state.trainers[t].pushed
    for w, done in enumerate(pushed):
        if not done:
            draft = Draft(state)
            draft.worker(w, engine=version)
            draft.trainer(t, pushed=(*pushed[:w], True, *pushed[w + 1 :]))
            yield move(f"T{t} pushes v{version.name} to the engine of W{w}", draft)


def _fails(state: State, rules: Rules, t: int, version: Version) -> Move:
    draft = Draft(state)
    draft.set(staged=None)
    if rules.failed_push == "wait":
        draft.trainer(t, version=None, pushed=(), **_next(rules, state.trainers[t]))
        return move(f"v{version.name} does not verify: its name is burnt", draft, fault=True)
    again = Version(fresh_name(state), version.weights)
    draft.set(staged=again)
    draft.trainer(t, version=again, pushed=(False,) * rules.workers)
    return move(f"v{version.name} does not verify: T{t} stages the weights again as v{again.name}", draft, fault=True)


def _writes_file(state: State, rules: Rules, t: int) -> Iterator[Move]:
    """The file is written outside the database and before its row: no fence can stop it."""
    weights, draft = state.trainers[t].weights, Draft(state)
    if rules.checkpoint_path == "step":
        files = [Checkpoint(c.weights, weights) if len(c.weights) == len(weights) else c for c in state.checkpoints]
        draft.set(checkpoints=tuple(files))
        live = [c for c in files if c.weights == state.ledger[: len(c.weights)]]
        draft.breaks(Invariant.CHECKPOINT_FILE, any(c.file != c.weights for c in live))
    draft.trainer(t, at="written")
    yield move(f"T{t} writes the checkpoint file of step {len(weights)}", draft)


def _checkpoints(state: State, rules: Rules, t: int) -> Iterator[Move]:
    first = _fence(state, rules, t, "checkpoint row")
    if first:
        yield first
        return
    weights, draft = state.trainers[t].weights, Draft(state)
    draft.breaks(Invariant.CHECKPOINT_TRUTH, weights != state.ledger)
    others = tuple(c for c in state.checkpoints if c.weights != weights)
    draft.set(checkpoints=(*others, Checkpoint(weights, weights))[-KEPT_CHECKPOINTS:])
    draft.trainer(t, at="idle", sure=False)
    yield move(f"T{t} commits the checkpoint row of step {len(weights)}", draft)


def _saves(state: State, rules: Rules, t: int) -> Move:
    """The row of a checkpoint that was written beside the steps; the next one waits for it."""
    weights, draft = state.trainers[t].saving, Draft(state)
    head = state.ledger == weights
    if state.holder != t or (rules.checkpoint_of == "head" and not head):
        return _refused(state, rules, t, "checkpoint row")
    draft.breaks(Invariant.CHECKPOINT_TRUTH, weights != state.ledger[: len(weights)])
    others = tuple(c for c in state.checkpoints if c.weights != weights)
    draft.set(checkpoints=(*others, Checkpoint(weights, weights))[-KEPT_CHECKPOINTS:])
    draft.trainer(t, saving=())
    return move(f"T{t} commits the checkpoint row of step {len(weights)}", draft)


def _named(slots: tuple[int, ...]) -> str:
    return f"slot {slots[0]}" if len(slots) == 1 else f"slots {', '.join(map(str, slots))}"


_STEPS = {
    "idle": _claims,
    "claimed": _renews,
    "checked": _updates,
    "stepped": _commits,
    "committed": _stages,
    "staged": _publishes,
    "due": _writes_file,
    "written": _checkpoints,
}
