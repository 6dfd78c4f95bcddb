"""Breadth-first search over all states, with shortest traces, and the two liveness checks over the graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agentrl.store.model.invariants import Invariant, broken_in, finished
from agentrl.store.model.moves import Move
from agentrl.store.model.reaping import ageing_moves
from agentrl.store.model.retention import retention_moves
from agentrl.store.model.rollout import grader_moves, worker_moves
from agentrl.store.model.rules import Rules
from agentrl.store.model.state import Grader, Slot, State, Trainer, Version, Worker, canonical
from agentrl.store.model.training import trainer_moves


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found: for each broken invariant the shortest list of moves that leads there."""

    states: int
    broken: dict[str, list[str]] = field(default_factory=dict)


def initial(rules: Rules) -> State:
    """Nothing opened, no trainer started, every engine on the published base weights."""
    return State(
        faults=rules.faults,
        slots=(Slot(),) * rules.slots,
        workers=(Worker(),) * rules.workers,
        grader=Grader(),
        trainers=(Trainer(), Trainer()),
        holder=-1,
        ledger=(),
        checkpoints=(),
        published=Version(0, ()),
        staged=None,
        branch=0,
    )


def moves(state: State, rules: Rules) -> Iterator[Move]:
    """All that can happen next. Names in the states that it gives are not canonical."""
    for w in range(rules.workers):
        yield from worker_moves(state, rules, w)
    if rules.grading == "worker":
        yield from grader_moves(state, rules)
    yield from ageing_moves(state, rules)
    if rules.retention:
        yield from retention_moves(state, rules)
    for t in (0, 1):
        yield from trainer_moves(state, rules, t)


class Search:
    """One exploration. ``until``: stop once this invariant is found broken."""

    def __init__(self, rules: Rules, until: Invariant | None = None) -> None:
        self.rules = rules
        self.until = until
        first = canonical(initial(rules))
        self.states = [first]
        self.parents = [-1]
        self.next: list[list[int]] = [[]]
        """For each state those reached by moves that liveness may rely on."""
        self._ids = {first: 0}
        self._raw: dict[State, int] = {}
        self._found: dict[Invariant, tuple[int, str]] = {}

    def run(self) -> Result:
        """Explore everything, or up to the first state that breaks ``until``."""
        done = 0
        while done < len(self.states) and self.until not in self._found:
            self._expand(done)
            done += 1
        if self.until is None or self.until in (Invariant.DEAD_LOCK, Invariant.LIVE_LOCK):
            self._liveness()
        wanted = self._found if self.until is None else {i: at for i, at in self._found.items() if i is self.until}
        return Result(len(self.states), {i.value: self._trace(i, *at) for i, at in wanted.items()})

    def _expand(self, number: int) -> None:
        state = self.states[number]
        bad = broken_in(state, self.rules)
        if bad:
            self._found.setdefault(bad, (number, ""))
        if finished(state, self.rules):
            return
        for m in moves(state, self.rules):
            for invariant in m.broken:
                self._found.setdefault(invariant, (number, m.label))
            target = self._number(m.state, number)
            if not m.hoped and target != number:
                self.next[number].append(target)

    def _number(self, state: State, parent: int) -> int:
        known = self._raw.get(state)
        if known is not None:
            return known
        form = canonical(state)
        number = self._ids.get(form)
        if number is None:
            number = self._ids[form] = len(self.states)
            self.states.append(form)
            self.parents.append(parent)
            self.next.append([])
        self._raw[state] = number
        return number

    def _liveness(self) -> None:
        stuck = self._stuck()
        if stuck is not None:
            self._found[Invariant.DEAD_LOCK] = (stuck, "")
        cycle = first_on_cycle(self.next)
        if cycle is not None:
            self._found[Invariant.LIVE_LOCK] = (cycle, "")

    def _stuck(self) -> int | None:
        """The first state from which no finished one can be reached."""
        before: list[list[int]] = [[] for _ in self.states]
        for number, targets in enumerate(self.next):
            for target in targets:
                before[target].append(number)
        good = {n for n, state in enumerate(self.states) if finished(state, self.rules)}
        todo = list(good)
        while todo:
            fresh = [n for n in before[todo.pop()] if n not in good]
            good.update(fresh)
            todo.extend(fresh)
        return next((n for n in range(len(self.states)) if n not in good), None)

    def _trace(self, invariant: Invariant, number: int, last: str) -> list[str]:
        """Labels from the start; walked again without renaming, so that each name means one thing."""
        path = [number]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        path.reverse()
        if invariant is Invariant.DEAD_LOCK:
            path += self._onward(number, lambda n: not self.next[n])
        elif invariant is Invariant.LIVE_LOCK:
            path += self._onward(number, lambda n: n == number)
        state, labels = initial(self.rules), []
        for target in path[1:]:
            step = next(m for m in moves(state, self.rules) if canonical(m.state) == self.states[target])
            labels.append(step.label)
            state = step.state
        if last:
            labels.append(next(m.label for m in moves(state, self.rules) if invariant in m.broken))
        return labels

    def _onward(self, start: int, goal: Callable[[int], bool]) -> list[int]:
        """The shortest way on from a state by moves that liveness may rely on, without the state itself; [] when none."""
        came = dict.fromkeys(self.next[start], start)
        todo = deque(came)
        while todo:
            node = todo.popleft()
            if goal(node):
                way = [node]
                while came[way[-1]] != start:
                    way.append(came[way[-1]])
                return way[::-1]
            for target in self.next[node]:
                if target not in came:
                    came[target] = node
                    todo.append(target)
        return []


def first_on_cycle(graph: list[list[int]]) -> int | None:
    """The lowest number on the cycles that a depth-first walk closes; None when there are none."""
    new, open_, closed = 0, 1, 2
    colour, best = bytearray(len(graph)), None
    for root in range(len(graph)):
        if colour[root] != new:
            continue
        colour[root] = open_
        walk = [(root, iter(graph[root]))]
        while walk:
            node, targets = walk[-1]
            for target in targets:
                if colour[target] == new:
                    colour[target] = open_
                    walk.append((target, iter(graph[target])))
                    break
                if colour[target] == open_:
                    best = target if best is None else min(best, target)
            else:
                colour[node] = closed
                walk.pop()
    return best
