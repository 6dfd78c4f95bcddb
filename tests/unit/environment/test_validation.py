"""`agentrl env validate`: a sound environment passes, and each fault fails the check that is for it."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, Field

from agentrl.environment import Environment, Episode, Message, Task, tool, tool_call
from agentrl.environment.validation import Check, validate
from agentrl.environment.validation.leaks import gold_texts
from agentrl.environment.validation.overlap import overlap
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.tokens.chat_format import ChatFormat
from sandboxes.contract import SandboxSpec, SandboxUnsupported
from sandboxes.local import UnsafeLocal


class Riddle(Environment):
    """Sound in every respect."""

    max_turns = 3

    def tasks(self, split: str, seed: int, n: int) -> Sequence[Task]:
        rng = random.Random(f"{split}/{seed}")
        return [Task(f"{split}/{i}", {"key": rng.randint(0, 10**9), "split": split}, split) for i in range(min(n, 40))]

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", f"Guess number {task.id}.")]

    @tool(side_effects=False)
    def peek(
        self,
        where: Literal["left", "right"],
        depth: Annotated[int, Field(ge=5, le=9)],
        words: list[str],
        note: str | None = None,
    ) -> str:
        """Look at a place."""
        return where

    async def reward(self, episode: Episode, sandbox: Any) -> Any:
        return episode.turns[-1].text == self.secret(episode.task)

    def gold(self, task: Task) -> Sequence[str]:
        return [tool_call("peek", where="left", depth=5, words=["a"]), self.secret(task)]

    def secret(self, task: Task) -> str:
        return f"the number is {task.payload['key']}"


def checks(environment: Environment, **options: Any) -> dict[str, Check]:
    provider = UnsafeLocal() if environment.sandbox is not None else None
    made = asyncio.run(validate(environment, provider, n=2, repeats=options.pop("repeats", 2), **options))
    assert len({check.name for check in made}) == len(made)
    return {check.name: check for check in made}


def failed(environment: Environment, **options: Any) -> dict[str, str]:
    return {name: check.detail for name, check in checks(environment, **options).items() if check.ok is False}


def test_sound_environment__passes_every_check() -> None:
    made = checks(Riddle())
    assert {name: check.ok for name, check in made.items()} == {
        "tasks": True,
        "schema round trip": True,
        "training and held-out apart": True,
        "gold within budgets": True,
        "gold accepted": True,
        "no-op rejected": True,
        "grader stable": True,
        "graded elsewhere": True,
        "time per turn": True,
        "gold not in prompts": True,
    }
    assert made["gold accepted"].detail == "4 of 4 episodes"


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"max_turns": 1}, r"max_turns=1 is too small: gold of task 'train/0' needs 2 turns"),
        ({"max_turn_tokens": 9}, r"max_turn_tokens=9 is too small: gold of task 'train/0' needs at least 1\d in a turn"),
        ({"max_tokens": 20}, r"max_tokens=20 is too small: gold of task '.*' needs at least 2\d in all"),
    ],
)
def test_budget_that_gold_does_not_fit__is_named(budget: dict[str, int], said: str) -> None:
    tight = type("Tight", (Riddle,), budget)()
    assert re.search(said, failed(tight)["gold within budgets"])


def test_budget__is_counted_in_tokens_of_a_model(tmp_path: Path) -> None:
    build_tokenizer(["Guess number train/1.", "the number is 3"] * 20, TokenizerPlan(), tmp_path)
    chat = ChatFormat(tmp_path)
    made = checks(Riddle(), chat=chat)["gold within budgets"]
    called = chat.encode_action(Riddle().gold(Task("t", {"key": 1}))[0])
    assert made.ok
    assert f"2 of 3 turns; {len(called)} of 512 tokens in a turn" in made.detail
    tight = type("Tight", (Riddle,), {"max_turn_tokens": 30})()
    assert f"needs {len(called)} in a turn" in failed(tight, chat=chat)["gold within budgets"]


class Deaf(Riddle):
    async def reward(self, episode: Episode, sandbox: Any) -> Any:
        return False


class Generous(Riddle):
    async def reward(self, episode: Episode, sandbox: Any) -> Any:
        return True


class Flat(Riddle):
    """Knows no success, and pays a no-op as much as a solution."""

    async def reward(self, episode: Episode, sandbox: Any) -> Any:
        return 0.5


class Moody(Riddle):
    def __init__(self) -> None:
        self.count = itertools.count()

    async def reward(self, episode: Episode, sandbox: Any) -> Any:
        good = bool(await super().reward(episode, sandbox))
        return 1.0 + 0.01 * next(self.count) if good else 0.0


class Remembering(Riddle):
    """Keeps what the verdict needs on the object that all episodes share, by the identity of the episode."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    async def finish(self, episode: Episode) -> None:
        self.seen.add(id(episode))

    async def reward(self, episode: Episode, sandbox: Any) -> Any:
        return bool(await super().reward(episode, sandbox)) and id(episode) in self.seen


class Handle(Riddle):
    async def setup(self, episode: Episode) -> None:
        await super().setup(episode)
        episode.state.handle = object()


class Nan(Riddle):
    async def reward(self, episode: Episode, sandbox: Any) -> Any:
        return float("nan")


class Unseeded(Riddle):
    def tasks(self, split: str, seed: int, n: int) -> Sequence[Task]:
        return [Task(str(random.random()), {}, split)]


class Scribbling(Riddle):
    async def setup(self, episode: Episode) -> None:
        episode.task.payload["guesses"] = 1


class NoGold(Riddle):
    gold = Environment.gold


class Spelled(Riddle):
    """One text where a list of texts belongs."""

    def gold(self, task: Task) -> Any:
        return self.secret(task)


class Forgetful(Riddle):
    def gold(self, task: Task) -> Any:
        raise LookupError("lost it")


class Slow(Riddle):
    tool_timeout_s = 0.05

    @tool(side_effects=False)
    def peek(self, where: str, depth: int, words: list[str]) -> str:
        """Look for a long time."""
        time.sleep(0.035)
        return "there"


class Chatty(Riddle):
    def messages(self, task: Task) -> list[Message]:
        return [Message("user", f"Guess. Hint: {self.secret(task)}!")]


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class Unspoken(Riddle):
    @tool(side_effects=False)
    def peek(self, where: str, depth: Annotated[int, AfterValidator(_even)], words: list[str]) -> str:
        """Look at an even depth, which the schema does not say."""
        return where


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (Deaf(), {"gold accepted": "0 of 4 episodes; task train/0: terminated, reward 0, success False"}),
        (Generous(), {"no-op rejected": "0 of 8 episodes; task train/0: terminated, reward 1, success True"}),
        (Flat(), {"gold accepted": "0 of 4", "no-op rejected": "0 of 8"}),
        (Moody(), {"grader stable": "task train/0: 1, then 1.0", "graded elsewhere": "task train/0: 1, then 1.0"}),
        (Remembering(), {"graded elsewhere": "task train/0: 1, then 0: keep it in episode.state"}),
        (Nan(), {"gold accepted": "a reward is finite", "no-op rejected": "a reward is finite"}),
        (Unseeded(), {"tasks": "gave others the second time"}),
        (Scribbling(), {"tasks": "an episode changed the payload of task train/0"}),
        (NoGold(), {"gold accepted": "no gold(task) method"}),
        (Spelled(), {"gold accepted": "gold() must give a sequence of texts"}),
        (Forgetful(), {"gold accepted": "task 'train/0', method 'gold' raised LookupError: lost it"}),
        (Slow(), {"time per turn": "of 0.05 s"}),
        (Chatty(), {"gold not in prompts": "task train/0: 'the number is"}),
        (Unspoken(), {"schema round trip": "'depth': 1, 'words': ['text']} fits its schema and is refused"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Environment) else "",
)  # fmt: skip
def test_fault__fails_the_check_that_is_for_it(environment: Environment, expected: dict[str, str]) -> None:
    found = failed(environment)
    assert found.keys() == expected.keys()
    for name, detail in expected.items():
        assert detail in found[name]


def test_state_that_can_t_be_carried__is_said_and_no_failure() -> None:
    check = checks(Handle())["graded elsewhere"]
    assert check.ok is None
    assert "only where the episode ran: environment 'handle'" in check.detail
    assert "episode.state.handle holds a builtins.object" in check.detail


def test_grader_that_fails_one_time_in_three__is_found_by_repeating() -> None:
    class Flaky(Riddle):
        rng = random.Random(1)

        async def reward(self, episode: Episode, sandbox: Any) -> Any:
            return bool(await super().reward(episode, sandbox)) and self.rng.random() < 0.67

    assert failed(Flaky(), repeats=20).keys() >= {"grader stable"}


def _tasks(split: str, *texts: str) -> list[Task]:
    return [Task(f"{split}/{i}", {"question": text, "answer": "7"}, split) for i, text in enumerate(texts)]


def test_overlap__finds_the_same_and_the_nearly_same() -> None:
    text = (
        "A train leaves the station at nine and reaches the town at noon after sixty miles; how fast was it on average, "
        "and when did it pass the half-way mark, if it never stopped and kept its speed all the way?"
    )
    other = "Three cats catch three mice in three minutes; how many cats does one need for a hundred mice in a hundred minutes?"
    train = _tasks("train", text, other)
    found = overlap(train, _tasks("heldout", text.upper(), text.replace("nine", "ten"), other.replace("cat", "dog"), "a b c d"))
    assert found.exact == (("train/0", "heldout/0"),)
    assert found.near == (("train/0", "heldout/1"),)


def test_overlap_of_common_short_tasks__is_still_found() -> None:
    train = [Task(f"t{i}", {"n": i % 3}) for i in range(900)]
    assert overlap(train, [Task("h", {"n": 2}, "heldout")]).exact == (("t2", "h"),)


def test_gold_texts__are_long_arguments_and_long_answers() -> None:
    turns = [
        tool_call("write", path="a.txt", text="x = 1\nprint(x)", more={"deep": ["the whole solution"]}),
        "short",
        "a long final answer",
    ]
    assert gold_texts(turns) == ["x = 1\nprint(x)", "the whole solution", "a long final answer"]


class Boxed(Riddle):
    sandbox = SandboxSpec()
    leaves: str | None = None

    async def setup(self, episode: Episode) -> None:
        if self.leaves is not None:
            await episode.sandbox.write_file(
                "/workspace/notes/hint.txt", self.leaves.format(self.secret(episode.task)).encode()
            )


class GitHistory(Riddle):
    """The solution was committed and removed again: `git log` shows it, the working tree does not."""

    sandbox = SandboxSpec()

    async def setup(self, episode: Episode) -> None:
        await episode.sandbox.write_file("/workspace/solution.txt", self.secret(episode.task).encode())
        git = "git -c user.email=a@b -c user.name=a"
        command = f"git init -q . && git add . && {git} commit -qm all && git rm -q solution.txt && {git} commit -qm less"
        assert (await episode.sandbox.exec(command, env={"HOME": "/tmp"})).exit_code == 0


@pytest.mark.parametrize(("leaves", "leaks"), [(None, False), ("nothing", False), ("see: {}", True)])
def test_gold_in_the_sandbox__is_found_before_the_first_turn(leaves: str | None, leaks: bool) -> None:
    environment = Boxed()
    environment.leaves = leaves
    found = failed(environment)
    assert (found.keys() == {"gold not in sandboxes"}) if leaks else not found
    if leaks:
        assert found["gold not in sandboxes"].endswith("hint.txt")


def test_sandbox_that_can_not_be_had__is_a_failed_check() -> None:
    class NoImage(UnsafeLocal):
        async def create(self, spec: SandboxSpec) -> Any:
            raise SandboxUnsupported(f"no image {spec.image}")

    (check,) = (c for c in asyncio.run(validate(Boxed(), NoImage(), n=1)) if c.ok is False)
    assert check.name == "episodes"
    assert "no image agentrl-base" in check.detail


def test_gold_in_the_history_of_git__is_found() -> None:
    assert "(git)" in failed(GitHistory())["gold not in sandboxes"]
