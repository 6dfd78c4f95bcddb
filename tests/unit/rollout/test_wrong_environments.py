"""What environments of users may do wrong, and what a run makes of it: never a reward of 0 that nobody gave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Done, Environment, Episode, Message, Task, ToolError, tool
from agentrl.environment.base import checked_tasks
from agentrl.errors import EnvironmentFault
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.tokens.chat_format import ChatFormat
from agentrl.types import Outcome, Place, Termination
from sandboxes.contract import Sandbox
from tests.unit.rollout.test_episode_runner import Case, call


class Wrong(Environment):
    """Its tool and its grader do what a test asks for."""

    max_turns = 3
    max_turn_tokens = 60
    max_tokens = 400
    tool_timeout_s = 0.2
    max_result_chars = 60

    def __init__(self, tool: Callable[[], Any] = lambda: "fine", reward: Callable[[], Any] = lambda: 0.75) -> None:
        self.tool, self.grader = tool, reward

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        return [Task("t/0", {}, split)]

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "count to 3")]

    @tool(side_effects=False)
    def count(self, number: int) -> Any:
        """Do what the test asks for."""
        return self.tool()

    async def respond(self, episode: Episode, text: str) -> str | Done:
        return Done()

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Any:
        return self.grader()


def raises(error: BaseException) -> Callable[[], Any]:
    def tool() -> Any:
        raise error

    return tool


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(["count to 3", '{"name": "count", "arguments": {"number": 3}}', "stop"] * 20, TokenizerPlan(), folder)
    return ChatFormat(folder)


OBSERVATIONS = {
    "raises ToolError": (raises(ToolError("the door is locked")), "the door is locked"),
    "returns bytes": (lambda: b"\xff\x00ok", "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}ok"),
    "returns 5 MB": (lambda: "x" * 5_000_000, "characters cut"),
    "returns None": (lambda: None, "(no output)"),
    "never returns": (lambda: threading.Event().wait(), "error: no answer within 0.2 s"),
}


@pytest.mark.parametrize("case", OBSERVATIONS)
async def test_tool__is_an_observation_and_the_episode_is_graded(case: str, chat: ChatFormat) -> None:
    tool, observed = OBSERVATIONS[case]
    ending, stored, _ = await Case(chat, [call(1), "stop"], Wrong(tool)).play()
    assert (ending.termination, ending.outcome) == (Termination.TERMINATED, Outcome.GRADED)
    assert observed in stored.segments[0].tool_results[0].text
    assert stored.reward is not None
    assert stored.reward.value == 0.75


FAULTS = {
    "tool raises": (Wrong(raises(KeyError("oops"))), "environment 'wrong', task 't/0', method 'count' raised KeyError"),
    "tool ends the process": (Wrong(raises(SystemExit(3))), "method 'count' raised SystemExit"),
    "tool returns an object": (Wrong(lambda: object()), "environment 'wrong', task 't/0': tool 'count' returned object"),
    "reward is NaN": (Wrong(reward=lambda: float("nan")), "environment 'wrong', task 't/0': reward() gave nan"),
    "reward is infinite": (Wrong(reward=lambda: 10**400), "reward() gave inf"),
    "reward is text": (Wrong(reward=lambda: "1.0"), "reward() gave str '1.0'"),
    "reward is None": (Wrong(reward=lambda: None), "reward() gave NoneType None"),
    "reward is a dict": (Wrong(reward=lambda: {"score": 1}), "reward() gave a dict with keys 'score'"),
    "reward raises": (Wrong(reward=raises(ZeroDivisionError())), "task 't/0', method 'reward' raised ZeroDivisionError"),
}


@pytest.mark.parametrize("case", FAULTS)
async def test_fault__names_environment_and_task_and_is_never_a_reward(case: str, chat: ChatFormat) -> None:
    environment, said = FAULTS[case]
    ending, stored, place = await Case(chat, [call(1), "stop"], environment).play()
    assert (ending.termination, ending.outcome) == (Termination.FAILED, Outcome.INFRASTRUCTURE)
    assert said in (ending.error or "")
    assert f"{Path(__file__).name}:" in (ending.error or ""), "the place in the author's code"
    assert stored.error == ending.error
    assert stored.reward is None
    assert place is Place.DROPPED


@pytest.mark.parametrize(("given", "value"), [(True, 1.0), (False, 0.0)])
async def test_reward_that_is_a_bool__is_one_or_zero_and_says_success(given: bool, value: float, chat: ChatFormat) -> None:
    ending, _, _ = await Case(chat, ["stop"], Wrong(reward=lambda: given)).play()
    assert ending.reward is not None
    assert (ending.reward.value, ending.reward.success) == (value, given)


async def test_reward_that_never_returns__is_a_fault_after_its_limit(chat: ChatFormat) -> None:
    class Endless(Wrong):
        grade_timeout_s = 0.2

        async def reward(self, episode: Episode, sandbox: Sandbox) -> Any:
            await asyncio.Event().wait()

    ending, stored, _ = await Case(chat, ["stop"], Endless()).play()
    assert ending.outcome is Outcome.INFRASTRUCTURE
    assert "method 'reward' did not return within 0.2 s" in (ending.error or "")
    assert stored.reward is None


@pytest.mark.parametrize(("tasks", "why"), [([Task("", {})], "non-empty id"), ([Task("a", {})] * 2, "id 'a' appears twice")])
def test_task_without_or_with_a_repeated_id__is_refused_before_the_run(tasks: list[Task], why: str) -> None:
    class Careless(Wrong):
        def tasks(self, split: str, seed: int, n: int) -> list[Task]:
            return tasks

    with pytest.raises(EnvironmentFault, match=f"environment 'careless'.*{why}") as refused:
        checked_tasks(Careless(), "train", 0, 5)
    assert refused.value.exit_code == 2
