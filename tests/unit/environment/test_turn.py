"""Meaning of a turn: calls, observations, endings, budgets, faults."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.environment import Done, Environment, Episode, Message, Task, ToolError, tool
from agentrl.environment.turn import TurnOutcome, begin, end, take_turn
from agentrl.errors import EnvironmentFault
from agentrl.types import Termination
from sandboxes.contract import SandboxDied

TASK = Task("t/1", {"answer": 42})


class Lab(Environment):
    """Tools that behave in every way a tool may behave."""

    max_turns = 3
    tool_timeout_s = 5.0

    def __init__(self) -> None:
        self.log: list[str] = []
        self.values: dict[str, Any] = {}

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "go")]

    @tool
    def add(self, left: int, right: int) -> int:
        """Add, in a thread."""
        self.log.append("main" if threading.current_thread() is threading.main_thread() else "thread")
        return left + right

    @tool(side_effects=False)
    async def note(self, episode: Episode, text: str) -> str:
        """Remember something."""
        episode.state.note = text
        self.log.append(text)
        return f"noted {text}"

    @tool
    async def give(self, key: str) -> Any:
        """Return a prepared value."""
        return self.values[key]

    @tool
    async def submit(self, answer: int) -> Done:
        """Hand in."""
        return Done(f"got {answer}")

    @tool
    async def refuse(self) -> str:
        """Fail in a way that the policy should know about."""
        raise ToolError("the door is locked")

    @tool
    def refuse_sync(self) -> str:
        """Fail so in a thread."""
        raise ToolError("the window is locked")

    @tool
    async def crash(self) -> str:
        """Fail in a way that is a bug."""
        raise KeyError("oops")

    @tool
    async def leave(self) -> str:
        """Try to end the process."""
        raise SystemExit(3)

    @tool
    async def lose_sandbox(self) -> str:
        """Fail for infrastructure."""
        raise SandboxDied("box 7 is gone")

    @tool
    async def hang(self) -> str:
        """Never return."""
        await asyncio.Event().wait()
        return ""

    @tool
    def hang_sync(self) -> str:
        """Never return, in a thread."""
        threading.Event().wait()
        return ""

    @tool
    async def mail(self) -> str:
        """Send something to the world."""
        return "sent"

    @tool(side_effects=False)
    async def named(self, task: str, method: str, function: str, environment: str, timeout_s: int, passing: int = 0) -> str:
        """Has parameters with the names of the library's own."""
        return f"{task} {method} {function} {environment} {timeout_s} {passing}"

    @tool(parallel=True)
    async def meet(self, episode: Episode) -> str:
        """Return once two calls are inside."""
        barrier = episode.state.barrier = getattr(episode.state, "barrier", None) or asyncio.Barrier(2)
        await barrier.wait()
        return "met"

    @tool
    async def score(self, episode: Episode, value: float) -> str:
        """Credit the turn."""
        episode.add_reward(value)
        return "scored"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def play(lab: Lab, *texts: str) -> tuple[Episode, TurnOutcome]:
    episode, _ = await begin(lab, TASK)
    for text in texts:
        outcome = await take_turn(lab, episode, text, truncated=False)
    return episode, outcome


async def observed(lab: Lab, text: str) -> str:
    """The one observation that answers ``text``."""
    _, outcome = await play(lab, text)
    assert outcome.ended is None
    (message,) = outcome.messages
    assert message.role == "tool"
    return message.content


async def test_begin__gives_first_messages_and_runs_setup() -> None:
    class Prepared(Lab):
        async def setup(self, episode: Episode) -> None:
            episode.state.ready = episode.seed

    episode, messages = await begin(Prepared(), TASK, seed=9)
    assert messages == [Message("user", "go")]
    assert episode.state.ready == 9
    assert episode.n_turns == 0
    assert episode.last_observation == ""


async def test_begin_without_messages__fault_names_environment_and_task() -> None:
    class Mute(Lab):
        def messages(self, task: Task) -> list[Message]:
            return []

    with pytest.raises(EnvironmentFault, match=r"'mute', task 't/1': messages\(\)"):
        await begin(Mute(), TASK)


async def test_sync_tool__runs_outside_the_loops_thread() -> None:
    lab = Lab()
    assert await observed(lab, call("add", left="40", right=2)) == "42"
    assert lab.log == ["thread"]


async def test_parameters__may_have_any_names() -> None:
    arguments = {"task": "a", "method": "b", "function": "c", "environment": "d", "timeout_s": 1}
    assert await observed(Lab(), call("named", **arguments)) == "a b c d 1 0"


async def test_async_tool__sees_the_episode() -> None:
    lab = Lab()
    episode, outcome = await play(lab, "I note it. " + call("note", text="x"))
    assert episode.state.note == "x"
    assert [message.content for message in outcome.messages] == ["noted x"]
    assert (outcome.calls[0].name, outcome.results[0].text, outcome.results[0].is_error) == ("note", "noted x", False)
    assert episode.turns[0].text.startswith("I note it.")
    assert episode.last_observation == "noted x"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (call("fly"), "error: no tool 'fly'; tools: add, note"),
        (call("add", left=1), "error: right: Field required"),
        (call("add", left=1, right=[]), "error: right: Input should be a valid integer"),
        ('<tool_call>{"name": "add", "arguments": {"left": 1}</tool_call>', "error: "),
        ("<tool_call>{'name': 'add'}</tool_call>", "error: not valid JSON"),
        ("<tool_call></tool_call>", "error: not valid JSON"),
        ("<tool_call>", "error: not valid JSON"),
        (call("messages", task="x"), "error: no tool 'messages'"),
        (call("__init__"), "error: no tool '__init__'"),
    ],
)
async def test_wrong_call__is_an_observation(text: str, part: str) -> None:
    assert part in await observed(Lab(), text)


async def test_truncated_turn__executes_nothing() -> None:
    lab = Lab()
    episode, _ = await begin(lab, TASK)
    outcome = await take_turn(lab, episode, call("note", text="x"), truncated=True)
    assert lab.log == []
    assert outcome.ended is Termination.TRUNCATED_TURN_TOKENS
    assert (outcome.calls, outcome.results, outcome.messages) == ((), (), ())
    assert episode.turns[0].text == call("note", text="x")


async def test_several_calls__run_in_order_with_one_message_each() -> None:
    lab = Lab()
    _, outcome = await play(lab, call("note", text="a") + call("fly") + call("note", text="b"))
    assert lab.log == ["a", "b"]
    assert [message.content for message in outcome.messages] == [
        "noted a",
        outcome.results[1].text,
        "noted b",
    ]
    assert outcome.results[1].is_error


async def test_parallel_tools__run_at_the_same_time() -> None:
    _, outcome = await play(Lab(), call("meet") + call("meet"))
    assert [result.text for result in outcome.results] == ["met", "met"]


async def test_parallel_with_a_tool_that_is_not__runs_in_order() -> None:
    lab = Lab()
    lab.tool_timeout_s = 0.05
    _, outcome = await play(lab, call("meet") + call("note", text="x"))
    assert [result.text for result in outcome.results] == ["error: no answer within 0.05 s", "noted x"]


async def test_call_after_done__is_not_executed() -> None:
    lab = Lab()
    _, outcome = await play(lab, call("submit", answer=1) + call("note", text="late"))
    assert outcome.ended is Termination.TERMINATED
    assert [result.text for result in outcome.results] == ["got 1"]
    assert lab.log == []


async def test_turn_without_call__ends_the_episode_by_default() -> None:
    episode, outcome = await play(Lab(), "42")
    assert outcome.ended is Termination.TERMINATED
    assert episode.ended is Termination.TERMINATED
    assert outcome.messages == ()


async def test_done_in_last_turn__wins_over_the_turn_budget() -> None:
    _, outcome = await play(Lab(), call("mail"), call("mail"), call("submit", answer=1))
    assert outcome.ended is Termination.TERMINATED


async def test_last_turn_without_done__is_a_truncation_that_keeps_its_observation() -> None:
    lab = Lab()
    _, outcome = await play(lab, call("mail"), call("mail"), call("note", text="x"))
    assert outcome.ended is Termination.TRUNCATED_TURNS
    assert [message.content for message in outcome.messages] == ["noted x"]
    assert lab.log == ["x"]


async def test_turn_after_the_end__refused() -> None:
    lab = Lab()
    episode, _ = await play(lab, "42")
    with pytest.raises(ValueError, match="has ended"):
        await take_turn(lab, episode, "more", truncated=False)


@pytest.mark.parametrize(
    ("answer", "message"),
    [("go on", Message("user", "go on")), ("", Message("user", "(no output)")), (Message("tool", "no"), Message("tool", "no"))],
)
async def test_respond__continues_with_its_message(answer: str | Message, message: Message) -> None:
    class Talkative(Lab):
        async def respond(self, episode: Episode, text: str) -> str | Message | Done:
            return answer

    _, outcome = await play(Talkative(), "hello")
    assert outcome.ended is None
    assert outcome.messages == (message,)


async def test_respond_with_other_type__fault() -> None:
    class Broken(Lab):
        async def respond(self, episode: Episode, text: str) -> Any:
            return 5

    with pytest.raises(EnvironmentFault, match=r"'broken', task 't/1': respond\(\) must return str, Message or Done, not int"):
        await play(Broken(), "hello")


async def test_strict_calls__text_around_a_call_or_a_second_call_is_wrong() -> None:
    class Strict(Lab):
        strict_calls = True

    lab = Strict()
    assert await observed(lab, "so: " + call("note", text="x")) == "error: a turn is one tool call and nothing else"
    assert await observed(lab, call("note", text="x") * 2) == "error: a turn is one tool call and nothing else"
    assert lab.log == []
    assert await observed(lab, f"\n{call('note', text='x')}\n") == "noted x"


@pytest.mark.parametrize(
    ("value", "text", "raw"),
    [
        ("", "(no output)", b""),
        (b"", "(no output)", b""),
        (None, "(no output)", b""),
        (" \n\t", "(no output)", b" \n\t"),
        ("plain", "plain", None),
        (b"bytes", "bytes", None),
        (b"\xff\x00a", "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}a", b"\xff\x00a"),
        ("half \ud800 pair", "half " + "\N{REPLACEMENT CHARACTER}" * 3 + " pair", b"half \xed\xa0\x80 pair"),
        ({"a": [1, None, "日本"]}, '{"a": [1, null, "日本"]}', None),
        (True, "true", None),
    ],
)
async def test_tool_result__becomes_visible_text_and_keeps_raw_bytes(value: Any, text: str, raw: bytes | None) -> None:
    lab = Lab()
    lab.values["v"] = value
    _, outcome = await play(lab, call("give", key="v"))
    (result,) = outcome.results
    assert (result.text, result.raw, result.is_error) == (text, raw, False)


async def test_huge_tool_result__loses_its_middle_and_keeps_raw_bytes() -> None:
    lab = Lab()
    lab.max_result_chars = 11
    lab.values["v"] = "a" * 1_000_000 + "b" * 4_000_000
    _, outcome = await play(lab, call("give", key="v"))
    (result,) = outcome.results
    assert result.text == "aaaaaa\n... 4999989 characters cut ...\nbbbbb"
    assert result.raw is not None
    assert len(result.raw) == 5_000_000


async def test_tool_result_that_is_no_data__fault_names_tool() -> None:
    lab = Lab()
    lab.values["v"] = object()
    with pytest.raises(EnvironmentFault, match="tool 'give' returned object"):
        await play(lab, call("give", key="v"))


async def test_tool_error__is_an_observation() -> None:
    assert await observed(Lab(), call("refuse")) == "the door is locked"
    assert await observed(Lab(), call("refuse_sync")) == "the window is locked"


@pytest.mark.parametrize(("name", "cause"), [("crash", "KeyError"), ("leave", "SystemExit")])
async def test_tool_that_raises__fault_names_environment_task_and_method(name: str, cause: str) -> None:
    with pytest.raises(EnvironmentFault, match=f"environment 'lab', task 't/1', method '{name}' raised {cause}"):
        await play(Lab(), call(name))


async def test_broken_sandbox__propagates_as_infrastructure() -> None:
    with pytest.raises(SandboxDied, match="box 7"):
        await play(Lab(), call("lose_sandbox"))


@pytest.mark.parametrize("name", ["hang", "hang_sync"])
async def test_tool_that_never_returns__is_an_observation_after_its_limit(name: str) -> None:
    lab = Lab()
    lab.tool_timeout_s = 0.05
    assert await observed(lab, call(name)) == "error: no answer within 0.05 s"


async def test_sandbox_not_declared__fault_says_how_to_declare_it() -> None:
    episode, _ = await begin(Lab(), TASK)
    with pytest.raises(EnvironmentFault, match=r"sandbox = SandboxSpec\(\)"):
        await episode.sandbox.exec("true")


async def test_tool_not_declared_free_of_side_effects__makes_the_episode_unrepeatable() -> None:
    episode, _ = await play(Lab(), call("note", text="x"))
    assert episode.retryable
    episode, _ = await play(Lab(), call("mail", to="nobody"))
    assert episode.retryable, "a wrong call is not executed"
    episode, _ = await play(Lab(), call("mail"))
    assert not episode.retryable


async def test_turn_reward__belongs_to_the_turn_that_earned_it() -> None:
    lab = Lab()
    episode, outcome = await play(lab, call("score", value=0.25) + call("score", value=0.5))
    assert outcome.reward == 0.75
    outcome = await take_turn(lab, episode, call("note", text="x"), truncated=False)
    assert outcome.reward is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1"])
def test_turn_reward_that_is_no_finite_number__fault(value: Any) -> None:
    with pytest.raises(EnvironmentFault, match="a finite number is needed"):
        Episode(TASK).add_reward(value)


async def test_finish__runs_once_when_the_episode_ends() -> None:
    class Collecting(Lab):
        async def finish(self, episode: Episode) -> None:
            self.log.append(f"finished {episode.ended}")

    for texts in (["42"], [call("mail")] * 3):
        lab = Collecting()
        episode, _ = await play(lab, *texts)
        assert lab.log == [f"finished {episode.ended}"]
    lab = Collecting()
    episode, _ = await begin(lab, TASK)
    await end(lab, episode, Termination.TRUNCATED_TIME)
    assert lab.log == ["finished truncated_time"]


_FRAGMENTS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        '{"name": "note", "arguments": {"text": "',
        '"}}',
        '{"name":',
        "[" * 50,
        "note",
        "\0",
        "done",
    ]
)


@settings(deadline=None, max_examples=50)
@given(text=st.lists(st.one_of(_FRAGMENTS, st.text(max_size=8)), max_size=12).map("".join))
def test_model_output_is_data__any_text_is_a_legal_turn(text: str) -> None:
    episode, outcome = asyncio.run(play(Lab(), text))
    assert episode.turns[0].text == text
    assert outcome.ended is not None or all(message.content for message in outcome.messages)
