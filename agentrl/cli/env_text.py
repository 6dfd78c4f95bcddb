"""An environment as text: what the policy is told, and within which limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from agentrl.environment.base import Environment, checked_tasks
from agentrl.environment.boxes import specs_of
from agentrl.environment.options import option_lines
from agentrl.environment.turn import first_messages

BUDGETS = (
    "max_turns", "max_turn_tokens", "max_tokens", "max_seconds", "max_turn_seconds", "tool_timeout_s", "grade_timeout_s",
    "max_result_chars",
)  # fmt: skip


def described(environment: Environment, split: str, seed: int) -> dict[str, Any]:
    """Subject -> text or JSON, in the order in which people read it."""
    task = checked_tasks(environment, split, seed, 1)[0]
    cls = type(environment)
    agents = environment.sub_agents.items()
    sandboxes = specs_of(environment, task)
    return {
        "environment": f"{environment.name} version {environment.version}, {cls.__module__}:{cls.__qualname__}",
        "task": task.id,
        "prompt": "\n".join(f"[{message.role}] {message.content}" for message in first_messages(environment, task)),
        "tools": environment.tool_schemas(),
        "calls may be repeated": {name: not tool.side_effects for name, tool in environment.tools.items()},
        "sub-agents": {name: f"{type(child).__qualname__}: {', '.join(child.tools) or 'no tools'}" for name, child in agents}
        or "none",
        "budgets": {name: getattr(environment, name) for name in BUDGETS},
        "ends": f"an episode out of turns or tokens is {'graded' if environment.grades_truncated else 'not graded'}",
        "sandboxes": {name or "sandbox": asdict(spec) for name, spec in sandboxes.items()} or "none",
        "options": option_lines(cls) or "none",
        "gold": "gold(task) is defined" if environment.has_gold else "none: `agentrl env validate` needs gold(task)",
        "warm start": "demonstrator" if environment.can_demonstrate else "none: training needs --model",
    }
