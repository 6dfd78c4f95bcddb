"""From what ``Environment.reward`` returns to a verdict.

A verdict is a finite number. A grader that raises, takes too long or returns anything else gives no verdict: that is an error
which names grader and task, never a reward of 0.
"""

from __future__ import annotations

import json
import math
import numbers
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from agentrl.environment.base import Environment
from agentrl.environment.boundary import invoke
from agentrl.environment.calls import plain_text
from agentrl.environment.code_places import defined_at
from agentrl.environment.episode import NO_SANDBOX, Episode
from agentrl.errors import EnvironmentFault
from agentrl.types import Json, Reward, Termination
from sandboxes.lazy import LazySandbox


def is_gradable(environment: Environment, termination: Termination) -> bool:
    """Whether an episode that ended so gets a verdict: finished ones, and truncated ones where the environment wants that.

    Never one that ran out of time: a slow machine would become a low reward.
    """
    if termination in (Termination.TRUNCATED_TIME, Termination.TRUNCATED_TURN_TIME):
        return False
    return termination is Termination.TERMINATED or (termination.is_truncated() and environment.grades_truncated)


async def grade(
    environment: Environment,
    episode: Episode,
    sandbox: LazySandbox | None = None,
    sandboxes: Mapping[str, LazySandbox] | None = None,
) -> Reward:
    """The verdict on an ended episode. Both arguments are clean, and the policy's own were given back: its processes are gone.

    Raises `EnvironmentFault` for a grader that failed and `SandboxError` for a broken sandbox.
    """
    if episode.ended is None:
        raise ValueError(f"task {episode.task.id!r}: the episode has not ended, there is nothing to grade")
    # The policy's sandboxes are out of reach for the grader too: used by mistake, they would be taken again and never returned.
    episode.sandbox = sandbox or NO_SANDBOX
    episode.sandboxes = sandboxes or {}
    started = time.perf_counter()
    value = await invoke(
        environment.name,
        episode.task.id,
        "reward",
        environment.reward,
        episode,
        episode.sandbox,
        timeout_s=environment.grade_timeout_s,
    )
    verdict = checked_reward(value, environment, episode.task.id)
    return replace(verdict, duration_s=time.perf_counter() - started)


def checked_reward(value: Any, environment: Environment, task: str) -> Reward:
    """``value`` as a `Reward`: a real number, or a yes or no that is 1 or 0; `EnvironmentFault` for anything else."""
    if isinstance(value, Reward):
        number = _number(value.value, environment, task)
        if value.success is not None and not isinstance(value.success, bool):
            raise _refused(environment, task, f"Reward.success is {value.success!r}; use True, False or None")
        return replace(value, value=number, detail=_checked_detail(value, environment, task))
    if isinstance(value, (bool, np.bool_)):
        return Reward(float(value), bool(value), environment.name, environment.version)
    return Reward(_number(value, environment, task), None, environment.name, environment.version)


def _number(value: Any, environment: Environment, task: str) -> float:
    if isinstance(value, dict):
        keys = ", ".join(map(repr, value))
        raise _refused(environment, task, f"a dict with keys {keys}; return the number, or Reward(value, detail=...)")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise _refused(environment, task, f"{type(value).__name__} {value!r:.100}; return a float, a bool or a Reward")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _refused(environment, task, f"{number}; a reward is finite")
    return number


def _checked_detail(reward: Reward, environment: Environment, task: str) -> dict[str, Json]:
    try:
        detail = dict(reward.detail)
        json.dumps(detail, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(environment, task, f"a Reward whose detail is not JSON: {error}") from error
    return {plain_text(str(key)): _storable(item) for key, item in detail.items()}


def _storable(value: Json) -> Json:
    # Details often quote the policy: were odd characters refused, it could escape a verdict by writing them.
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, dict):
        return {plain_text(str(key)): _storable(item) for key, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, (list, tuple)) else value


def _refused(environment: Environment, task: str, what: str) -> EnvironmentFault:
    place = defined_at(environment.reward)
    return EnvironmentFault(f"environment {environment.name!r}, task {task!r}: reward() gave {what}{place}")
