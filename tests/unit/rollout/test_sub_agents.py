"""Sub-agents of a running episode: stored with their turn, trained with their parent, and failing with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from test_continued_episode import Continued
from test_episode_runner import Case, Counter, chat  # noqa: F401

from agentrl.engine.contract import GenerateRequest
from agentrl.environment import Done, Environment, Episode, Message, Task, tool, tool_call
from agentrl.environment.demonstrate import play
from agentrl.environment.sub_agents import check_sub_agents, offer
from agentrl.errors import EngineError, UsageError
from agentrl.replay.prefixes import check_prefixes
from agentrl.tokens.chat_format import ChatFormat
from agentrl.trainer.batch import build_batch
from agentrl.trainer.warm_start import demonstration_rows
from agentrl.types import Outcome, Place, Reward, Termination


class Helper(Environment):
    """Says what it was asked to say; has a tool of its own."""

    max_turns = 3
    max_turn_tokens = 60

    def messages(self, task: Task) -> list[Message]:
        return [Message("system", "you help"), Message("user", f"say {task.payload['word']}")]

    @tool(side_effects=False)
    async def look(self, episode: Episode) -> str:
        """Look."""
        return "seen"

    async def respond(self, episode: Episode, text: str) -> str | Done:
        return Done() if text != "again" else "go on"

    def gold(self, task: Task) -> Sequence[str]:
        return [tool_call("look"), task.payload["word"]]


class Judged(Helper):
    """Has a verdict of its own."""

    async def reward(self, episode: Episode, sandbox: Any) -> bool:
        return episode.turns[-1].text == episode.task.payload["word"]


class Lead(Counter):
    """Asks helpers, and reads what they said."""

    max_tokens = 2000
    max_turn_tokens = 400
    sub_agents: Mapping[str, Environment] = {"helper": Helper(), "judged": Judged()}
    swallow = False

    @tool(side_effects=False, parallel=True)
    async def ask(self, episode: Episode, who: str, word: str) -> str:
        """Ask a helper."""
        try:
            child = await episode.sub_agent(who, {"word": word})
        except Exception:
            if self.swallow:
                return "nobody answered"
            raise
        episode.state.answers = [*getattr(episode.state, "answers", []), child.turns[-1].text]
        return f"{child.ended}: {child.turns[-1].text}"


def ask(word: str, who: str = "helper") -> str:
    return tool_call("ask", who=who, word=word)


class Talk(Case):
    """Answers by what the last message says, so that agents may talk at the same time."""

    def __init__(self, chat: ChatFormat, said: Mapping[str, Sequence[str]], environment: Environment | None = None) -> None:  # noqa: F811
        super().__init__(chat, [], environment or Lead(), max_context=1000)
        answers = {key: iter(turns) for key, turns in said.items()}
        self.sessions: dict[str, list[GenerateRequest]] = {}

        def script(request: GenerateRequest) -> Sequence[int]:
            self.sessions.setdefault(request.session, []).append(request)
            prompt = chat.decode(list(request.token_ids))
            key = next(key for key in answers if key in prompt)
            text = next(answers[key])
            if text == "break":
                raise EngineError("the engine died")
            return chat.encode_action(text)

        self.engine._script = script


def said(**children: Sequence[str]) -> dict[str, Sequence[str]]:
    """By the word that a helper was asked to say; the lead's own turns under its prompt."""
    return {f"say {word}": turns for word, turns in children.items()}


async def test_stored_with_its_turn__a_child_trajectory_linked_to_it(chat: ChatFormat) -> None:  # noqa: F811
    case = Talk(chat, said(blue=[tool_call("look"), "blue"]) | {"count to": [ask("blue"), "stop"]})
    ending, stored, place = await case.play()
    assert (ending.outcome, place) == (Outcome.GRADED, Place.READY)
    (child,) = stored.sub_agents
    assert (child.parent, child.parent_segment, child.seat) == (stored.id, 0, 0)
    assert (child.task_id, child.environment, child.termination) == ("count/0/helper/0", "helper", Termination.TERMINATED)
    assert child.inherits
    assert child.reward == stored.reward
    assert [segment.action_text for segment in child.segments] == [tool_call("look"), "blue"]
    assert stored.segments[0].tool_results[0].text == "terminated: blue"
    for trajectory in stored.family:
        seen = [i for s in trajectory.segments for i in (*s.observation.tolist(), *s.action.tolist())]
        last = case.sessions[str(trajectory.id)][-1]
        assert list(last.token_ids) == seen[: -trajectory.segments[-1].n_act]
    assert case.runner is not None
    assert case.runner.metrics()["sub_agents"] == 1


async def test_replay__writes_the_prompts_of_sub_agents_again(chat: ChatFormat) -> None:  # noqa: F811
    case = Talk(chat, said(blue=[tool_call("look"), "blue"]) | {"count to": [ask("blue"), "stop"]})
    _, stored, _ = await case.play()
    (child,) = stored.sub_agents
    helper = case.environment.all_agents()[child.environment]
    task = Task(child.task_id, {"word": "blue"})
    assert check_prefixes(child, chat, helper, helper.messages(task)) == 2


async def test_parallel_sub_agents__each_has_its_own_trajectory_and_seed(chat: ChatFormat) -> None:  # noqa: F811
    both = ask("red") + ask("green", "judged")
    case = Talk(chat, said(red=["again", "red"], green=["blue"]) | {"count to": [both, "stop"]})
    _, stored, _ = await case.play()
    first, second = stored.sub_agents
    assert (first.environment, second.environment) == ("helper", "judged")
    assert first.seed != second.seed
    assert (first.inherits, second.inherits) == (True, False)
    assert second.reward is not None
    assert (second.reward.value, second.outcome) == (0.0, Outcome.GRADED)
    batch = build_batch(stored.family, max_context=1000)
    assert [t.reward for t in batch.trajectories] == [stored.reward.value if stored.reward else None] * 2 + [0.0]


class Fair(Lead):
    """Judges its helpers one by one; "odd" is a verdict that is none."""

    verdicts: Mapping[str, Any] = {"red": 0.25, "green": True, "odd": "good", "own": 1.0}

    async def reward(self, episode: Episode, sandbox: Any) -> Reward:
        for helper in episode.sub_agents:
            helper.verdict = self.verdicts.get(helper.task.payload["word"])
        return Reward(0.75)


async def test_one_verdict__the_episodes_reward_code_may_give_each_sub_agent_its_own(chat: ChatFormat) -> None:  # noqa: F811
    words = said(red=["red"], green=["green"], blue=["blue"])
    case = Talk(chat, words | {"count to": [ask("red") + ask("green") + ask("blue"), "stop"]}, Fair())
    _, stored, place = await case.play()
    assert place is Place.READY
    told = {child.segments[0].action_text: child for child in stored.sub_agents}
    assert {word: child.reward and child.reward.value for word, child in told.items()} == {
        "red": 0.25,
        "green": 1.0,
        "blue": 0.75,
    }
    assert {word: child.inherits for word, child in told.items()} == {"red": False, "green": False, "blue": True}
    assert told["green"].reward is not None
    assert (told["green"].reward.success, told["green"].reward.grader) == (True, "fair")
    assert told["red"].group == told["green"].group != told["blue"].group
    assert sorted(t.reward or 0.0 for t in build_batch(stored.family, max_context=1000).trajectories) == [0.25, 0.75, 0.75, 1.0]


@pytest.mark.parametrize(
    ("who", "word", "words"),
    [("helper", "odd", "reward() gave str 'good'"), ("judged", "own", "but 'judged' defines reward: keep one of the two")],
)
async def test_one_verdict__a_wrong_one_is_a_fault_and_no_reward(
    chat: ChatFormat,  # noqa: F811
    who: str,
    word: str,
    words: str,
) -> None:
    case = Talk(chat, said(**{word: [word]}) | {"count to": [ask(word, who), "stop"]}, Fair())
    ending, stored, _ = await case.play()
    assert (ending.outcome, stored.reward) == (Outcome.INFRASTRUCTURE, None)
    assert words in (ending.error or "")


class Nested(Helper):
    sub_agents: Mapping[str, Environment] = {"helper": Helper()}

    @tool(side_effects=False)
    async def delegate(self, episode: Episode) -> str:
        """Have it done."""
        return (await episode.sub_agent("helper", {"word": "deep"})).turns[-1].text


class Chief(Lead):
    sub_agents: Mapping[str, Environment] = {"helper": Nested()}


async def test_part_of_the_episode__a_sub_agent_of_a_sub_agent_too(chat: ChatFormat) -> None:  # noqa: F811
    turns = said(deep=["deep"], blue=[tool_call("delegate"), "blue"]) | {"count to": [ask("blue"), "stop"]}
    _, stored, _ = await Talk(chat, turns, Chief()).play()
    middle, deep = stored.sub_agents
    assert (middle.parent, deep.parent, deep.parent_segment) == (stored.id, middle.id, 0)
    assert deep.reward == stored.reward


@pytest.mark.parametrize("swallow", [False, True])
async def test_one_failure__what_breaks_a_sub_agent_breaks_its_episode(chat: ChatFormat, swallow: bool) -> None:  # noqa: F811
    environment = Lead()
    environment.swallow = swallow
    case = Talk(chat, said(blue=["break"]) | {"count to": [ask("blue"), "stop"]}, environment)
    ending, stored, place = await case.play()
    assert (ending.outcome, place) == (Outcome.INFRASTRUCTURE, Place.DROPPED)
    assert "the engine died" in (ending.error or "")
    assert (len(stored.segments), stored.sub_agents) == (0, ())


async def test_limit__is_told_to_the_policy(chat: ChatFormat) -> None:  # noqa: F811
    environment = Lead()
    environment.max_sub_agents = 1
    case = Talk(chat, said(blue=["blue"]) | {"count to": [ask("blue"), ask("red"), "stop"]}, environment)
    ending, stored, _ = await case.play()
    assert ending.outcome is Outcome.GRADED
    assert len(stored.sub_agents) == 1
    assert stored.segments[1].tool_results[0].text == "no more than 1 sub-agents may be started"


async def test_undeclared_sub_agent__is_a_fault(chat: ChatFormat) -> None:  # noqa: F811
    ending, _, _ = await Talk(chat, {"count to": [ask("blue", "nobody")]}).play()
    assert "no sub-agent 'nobody'; sub-agents: helper, judged" in (ending.error or "")


async def test_same_sandboxes__those_of_the_episode() -> None:
    class Player:
        seen: Episode | None = None

        def number(self) -> int:
            return 0

        async def play(self, number: int, environment: Environment, episode: Episode) -> None:
            self.seen = episode

    box, other, player = cast(Any, object()), cast(Any, object()), Player()
    episode = Episode(Task("t", {}), box, sandboxes={"other": other})
    offer(Lead(), episode, player)
    child = await episode.sub_agent("helper", {"word": "blue"})
    assert player.seen is child
    assert episode.sub_agents == [child]
    assert (child.sandbox, child.sandboxes) == (box, {"other": other})


class Slow(Helper):
    @tool(side_effects=False)
    async def look(self, episode: Episode) -> str:
        """Look slowly."""
        await asyncio.sleep(0.05)
        return "seen"


class Patient(Lead):
    sub_agents: Mapping[str, Environment] = {"helper": Slow()}
    tool_timeout_s = 0.01


async def test_uncounted__its_time_is_no_limit_of_the_tool(chat: ChatFormat) -> None:  # noqa: F811
    case = Talk(chat, said(blue=[tool_call("look"), "blue"]) | {"count to": [ask("blue"), "stop"]}, Patient())
    _, stored, _ = await case.play()
    assert stored.segments[0].tool_results[0].text == "terminated: blue"


async def test_budget_of_a_sub_agent__ends_it_alone(chat: ChatFormat) -> None:  # noqa: F811
    case = Talk(chat, said(blue=["again"] * 3) | {"count to": [ask("blue"), "stop"]})
    ending, stored, _ = await case.play()
    assert ending.termination is Termination.TERMINATED
    (child,) = stored.sub_agents
    assert (child.termination, child.outcome, child.n_turns) == (Termination.TRUNCATED_TURNS, Outcome.GRADED, 3)
    assert stored.segments[0].tool_results[0].text == "truncated_turns: again"


class Costly(Helper):
    @tool
    async def look(self, episode: Episode) -> str:
        """Look, for money."""
        return "seen"


class Spender(Lead):
    sub_agents: Mapping[str, Environment] = {"helper": Costly()}


async def test_no_unasked_repetition__a_call_of_a_sub_agent_counts(chat: ChatFormat) -> None:  # noqa: F811
    case = Talk(chat, said(blue=[tool_call("look"), "break"]) | {"count to": [ask("blue")]}, Spender())
    ending, _, _ = await case.play()
    assert (ending.outcome, ending.retryable) == (Outcome.INFRASTRUCTURE, False)
    assert not Spender().is_repeatable
    assert Lead().is_repeatable


async def test_played_once__a_continued_episode_samples_no_stored_sub_agent_again(chat: ChatFormat) -> None:  # noqa: F811
    turns = said(blue=[tool_call("look"), "blue"]) | {"count to": [ask("blue")]}
    case = Talk(chat, turns)
    continued = Continued.__new__(Continued)
    continued.__dict__.update(case.__dict__)
    spec = replace(case.run.spec, name="p", resume_partial=True)
    continued.run = case.store.create_run(spec, {"train": case.environment.tasks("train", 0, 4)})
    continued.fence = case.store.start_trainer(continued.run.id, owner="t", lease_s=60, checkpoint=None).fence
    continued.publish(0, None)
    first = await continued.begin()
    before = case.store.trajectory(first.trajectory)
    assert before is not None
    sampled = sum(map(len, case.sessions.values()))
    opened = await continued.open()
    ending = await continued.go_on(["stop"]).run(opened)
    assert ending.outcome is Outcome.GRADED
    stored = case.store.trajectory(first.trajectory)
    assert stored is not None
    assert (sum(map(len, case.sessions.values())), len(case.requests)) == (sampled, 1)
    assert [child.id for child in stored.sub_agents] == [child.id for child in before.sub_agents]
    assert len(stored.segments) == 2


async def test_worker_stop_inside_a_sub_agent__leaves_the_turn_unstored(chat: ChatFormat) -> None:  # noqa: F811
    case = Talk(chat, said(blue=["blue"]) | {"count to": [ask("blue")]})
    started = asyncio.Event()

    async def hang(episode: Episode, text: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    case.environment.sub_agents["helper"].respond = hang  # type: ignore[method-assign]
    try:
        playing = asyncio.create_task(case.play())
        await started.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    finally:
        del case.environment.sub_agents["helper"].respond  # type: ignore[attr-defined]
    (episode,) = case.store._runs[case.run.id].episodes.values()
    assert (len(episode.segments), episode.sub_agents) == (0, [])


def test_demonstration__has_rows_of_its_sub_agents(chat: ChatFormat) -> None:  # noqa: F811
    environment = Lead()
    turns = [ask("blue"), "stop"]
    shown = asyncio.run(play(environment, environment.tasks("train", 0, 1)[0], lambda episode: turns[episode.n_turns]))
    (child,) = shown.sub_agents
    assert [entry for entry in child.entries if isinstance(entry, str)] == [tool_call("look"), "blue"]
    assert len(demonstration_rows(chat, shown, 1000)) == 2


class Boxed(Helper):
    sandbox = object()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("sub_agents", "words"),
    [
        ({"a": Boxed()}, "declares a sandbox"),
        ({"a": Helper(), "b": Helper()}, "another agent is called 'helper'"),
        ({"a": Helper}, "must be an object of an Environment"),
    ],
)
def test_wrong_declaration__is_refused_before_any_work(sub_agents: Mapping[str, Environment], words: str) -> None:
    environment = Lead()
    environment.sub_agents = sub_agents
    with pytest.raises(UsageError, match=words):
        check_sub_agents(environment)


async def test_howto__its_code_runs(chat: ChatFormat) -> None:  # noqa: F811
    page = Path(__file__).parents[3] / "docs" / "howto" / "use-sub-agents.md"
    scope: dict[str, Any] = {"Environment": Environment, "Message": Message, "tool": tool}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(code, scope)
    team = type("Whole", (scope["Graders"], Lead), {"sub_agents": scope["Team"].sub_agents})
    turns = {"Report the": [tool_call("look"), "7"], "count to": [tool_call("send", room="red"), "stop"]}
    ending, stored, _ = await Talk(chat, turns, team()).play()
    assert ending.outcome is Outcome.GRADED
    (scout,) = stored.sub_agents
    assert scout.segments[0].tool_results[0].text == "The number is 7."
    assert stored.segments[0].tool_results[0].text == "7"
    assert scout.reward is not None
    assert (scout.reward.value, scout.inherits) == (1.0, False)
