"""What played episodes show: gold is accepted, doing nothing is not, the grader repeats itself, no limit is near."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentrl.environment.base import Environment, Policy
from agentrl.environment.boundary import named_faults
from agentrl.environment.demonstrate import Played, act, verdict
from agentrl.environment.evidence import pack, unpack
from agentrl.environment.validation.check import Check
from agentrl.errors import AgentRLError, EnvironmentFault
from agentrl.types import Reward, Task
from sandboxes.lazy import SandboxQueue

NO_OPS = ("", "done")
"""What policies that do nothing say in every turn."""
ROOM = 0.5
"""Share of a time limit that may be used here: training shares the machine with many episodes."""


@dataclass(frozen=True, slots=True)
class Graded:
    """One episode of a validation, ``error`` in place of a verdict when the environment failed."""

    task: Task
    played: Played | None
    reward: Reward | None
    error: str | None = None

    @property
    def said(self) -> str:
        """The verdict in words, for the table."""
        if self.error is not None:
            return f"task {self.task.id}: {self.error}"
        end = self.played.termination.value if self.played else "not played"
        value = "no verdict" if self.reward is None else f"reward {self.reward.value:g}, success {self.reward.success}"
        detail = f", {dict(self.reward.detail)}" if self.reward is not None and self.reward.detail else ""
        return f"task {self.task.id}: {end}, {value}{detail}"


async def play_all(
    environment: Environment, tasks: Sequence[Task], policy_for: Callable[[Task], Policy], queue: SandboxQueue | None
) -> list[Graded]:
    """Each task played and graded, one after the other."""
    results: list[Graded] = []
    for task in tasks:
        try:
            played = await act(environment, task, policy_for(task), queue)
            results.append(Graded(task, played, await verdict(environment, played, queue)))
        except AgentRLError as error:
            results.append(Graded(task, None, None, f"{type(error).__name__}: {error}"))
    return results


def gold_turns(environment: Environment, task: Task) -> list[str]:
    """The turns of ``gold``; `EnvironmentFault` when it raises or gives anything but texts."""
    with named_faults(environment.name, task.id, "gold"):
        turns = environment.gold(task)
        if isinstance(turns, str) or not all(isinstance(turn, str) for turn in turns):
            raise TypeError(f"gold() must give a sequence of texts, one a turn, not {turns!r:.100}")
        return list(turns)


def script(turns: Sequence[str]) -> Policy:
    """A policy that says ``turns`` and then nothing more."""
    return lambda episode: turns[episode.n_turns] if episode.n_turns < len(turns) else ""


def gold_accepted(golds: Sequence[Graded], no_ops: Sequence[Graded]) -> Check:
    """Success, or where the environment knows none a reward above that of every no-op on the task."""
    bad = [gold for gold in golds if not _accepted(gold, [n for n in no_ops if n.task == gold.task])]
    return _counted("gold accepted", golds, bad)


def no_op_rejected(golds: Sequence[Graded], no_ops: Sequence[Graded]) -> Check:
    """No success, or where the environment knows none less than gold got.

    An end without a verdict will do, an error of the environment will not.
    """
    of_gold = {gold.task.id: gold.reward.value for gold in golds if gold.reward is not None}
    bad = [no_op for no_op in no_ops if no_op.error is not None or _earned(no_op, of_gold.get(no_op.task.id, math.inf))]
    return _counted("no-op rejected", no_ops, bad)


async def grader_stable(
    environment: Environment, episodes: Sequence[Graded], repeats: int, queues: Sequence[SandboxQueue | None]
) -> Check:
    """The same verdict on the same episode again and again, the last times in a sandbox that nothing ran in before."""
    differing: list[str] = []
    compared = 0
    for graded in episodes:
        if graded.played is None or graded.reward is None:
            continue
        compared += 1
        for queue in queues:
            for _ in range(repeats):
                again = await verdict(environment, graded.played, queue)
                if again is None or (again.value, again.success) != (graded.reward.value, graded.reward.success):
                    value = "none" if again is None else f"{again.value:g}"
                    differing.append(f"task {graded.task.id}: {graded.reward.value:g}, then {value}")
    if not compared:
        return Check("grader stable", None, "no episode had a verdict to repeat")
    places = "in a used and in a fresh sandbox" if any(queues) else "without a sandbox"
    detail = f"{compared} episodes, {repeats} times each {places}"
    return Check("grader stable", not differing, differing[0] if differing else detail)


async def graded_elsewhere(environment: Environment, episodes: Sequence[Graded], queue: SandboxQueue | None) -> Check:
    """The same verdict on an episode that went through bytes, as one does on its way to a reward worker."""
    name, compared = "graded elsewhere", 0
    for graded in episodes:
        if graded.played is None or graded.reward is None:
            continue
        episode = graded.played.episode
        try:
            evidence = pack(environment.name, episode)
        except EnvironmentFault as error:
            return Check(name, None, f"only where the episode ran: {error}")
        there = replace(graded.played, episode=unpack(evidence, graded.task, episode.seed, graded.played.termination))
        again = await verdict(environment, there, queue)
        compared += 1
        if again is None or (again.value, again.success) != (graded.reward.value, graded.reward.success):
            value = "none" if again is None else f"{again.value:g}"
            return Check(name, False, f"task {graded.task.id}: {graded.reward.value:g}, then {value}: keep it in episode.state")
    return Check(name, True if compared else None, f"{compared} episodes given to another process and back")


def time_per_turn(environment: Environment, episodes: Sequence[Graded]) -> Check:
    """Turns and verdicts use at most `ROOM` of their limits."""
    turns = sorted(s for graded in episodes if graded.played for s in graded.played.turn_seconds)
    grading = [graded.reward.duration_s for graded in episodes if graded.reward is not None]
    if not turns:
        return Check("time per turn", None, "no turn was played")
    slowest, graded_s = turns[-1], max(grading, default=0.0)
    detail = (
        f"median {turns[len(turns) // 2] * 1000:.0f} ms, slowest {slowest * 1000:.0f} ms of {environment.tool_timeout_s:g} s; "
        f"slowest verdict {graded_s * 1000:.0f} ms of {environment.grade_timeout_s:g} s"
    )
    ok = slowest <= ROOM * environment.tool_timeout_s and graded_s <= ROOM * environment.grade_timeout_s
    return Check("time per turn", ok, detail)


def _earned(no_op: Graded, of_gold: float) -> bool:
    if no_op.reward is None:
        return False
    return no_op.reward.value >= of_gold if no_op.reward.success is None else no_op.reward.success


def _accepted(gold: Graded, no_ops: Sequence[Graded]) -> bool:
    if gold.reward is None:
        return False
    if gold.reward.success is not None:
        return gold.reward.success
    return all(no_op.reward is None or gold.reward.value > no_op.reward.value for no_op in no_ops)


def _counted(name: str, all_: Sequence[Graded], bad: Sequence[Graded]) -> Check:
    detail = f"{len(all_) - len(bad)} of {len(all_)} episodes"
    return Check(name, not bad, f"{detail}; {bad[0].said}" if bad else detail)
