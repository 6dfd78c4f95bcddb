"""Episodes of code_agent: what the policy reads, what ends an episode, what it earns."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from agentrl.environment import Episode, Message, Task, tool_call
from agentrl.environment.demonstrate import Demonstration, collect, play
from agentrl.environment.grading import is_gradable
from agentrl.environment.turn import begin, take_turn
from agentrl.types import Termination
from environments.code_agent import CodeAgent
from environments.code_agent.tasks import OPERATIONS, solution, steps_of
from environments.code_agent.teacher import Teacher

ENV = CodeAgent()
TASK = next(task for task in ENV.tasks("heldout", 5, 200) if [step[0] for step in steps_of(task)] == ["add", "square"])
FUNCTION, FILE, STEPS = TASK.payload["function"], TASK.payload["file"], steps_of(TASK)
READ = tool_call("read", path=FILE)
GOLD = tool_call("python", code=solution(FUNCTION, STEPS))
WRONG = tool_call("python", code=f"def {FUNCTION}(x): return [0]")
NO_OP = tool_call("python", code=f"def {FUNCTION}(x): return x")


async def script(pool: Any, *texts: str) -> Demonstration:
    return await play(ENV, TASK, lambda episode: texts[episode.n_turns], pool)


def observations(demonstration: Demonstration) -> list[str]:
    return [entry.content for entry in demonstration.entries[1:] if isinstance(entry, Message)]


def earned(demonstration: Demonstration) -> tuple[float, bool | None]:
    assert demonstration.reward is not None
    return demonstration.reward.value, demonstration.reward.success


async def test_gold_solution__is_accepted(pool: Any) -> None:
    demonstration = await script(pool, READ, GOLD, "done")
    assert observations(demonstration) == [TASK.payload["text"], "passed"]
    assert demonstration.termination is Termination.TERMINATED
    assert earned(demonstration) == (1.0, True)


async def test_no_op__is_rejected(pool: Any) -> None:
    assert earned(await script(pool, "done")) == (0.0, False)
    assert earned(await script(pool, READ, NO_OP, "done")) == (0.0, False)


async def test_turns_over_three__cost_a_twentieth_each(pool: Any) -> None:
    demonstration = await script(pool, READ, WRONG, NO_OP, GOLD, "done")
    assert earned(demonstration) == (pytest.approx(0.9), True)


async def test_failed_tests__show_the_first_difference(pool: Any) -> None:
    want = TASK.payload["expected"][0]
    demonstration = await script(pool, WRONG, tool_call("python", code="def h(x): return x"), "done")
    assert observations(demonstration) == [f"FAIL item 0: got 0 want {want[0]}", f"error: KeyError: '{FUNCTION}'"]


async def test_last_code_counts__even_after_a_passing_one(pool: Any) -> None:
    assert earned(await script(pool, GOLD, WRONG, "done")) == (0.0, False)


async def test_only_visible_tests_run_while_the_agent_acts(pool: Any) -> None:
    # Right on the two visible inputs, wrong on the others: "passed", and no reward.
    visible = TASK.payload["inputs"][:2]
    right = solution("h", STEPS)
    cheat = f"{right}\ndef {FUNCTION}(x): return h(x) if x in {visible} else []"
    demonstration = await script(pool, tool_call("python", code=cheat), "done")
    assert observations(demonstration) == ["passed"]
    assert earned(demonstration) == (0.0, False)
    acting, grading = pool.given
    assert acting is not grading
    assert str(TASK.payload["inputs"][5]) not in acting.programs[0]
    assert str(TASK.payload["inputs"][5]) in grading.programs[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Done",
        "done.",
        "I am done",
        "done" + GOLD,
        "; x=[a*2 for a in x]; return x" + '"}}</tool_call>',
        GOLD + GOLD,
        "now: " + GOLD,
        GOLD.replace('"}}', '"}'),
        tool_call("write", path="x"),
        tool_call("python", path="x"),
        '<tool_call>{"name": "python", "arguments": {"code": 5}}</tool_call>',
        '<tool_call>{"name": "python", "arguments": []}</tool_call>',
    ],
)
async def test_anything_else__is_a_bad_tool_call_and_the_episode_goes_on(text: str, pool: Any) -> None:
    demonstration = await script(pool, text, READ, GOLD, "done")
    assert observations(demonstration) == ["error: bad tool call", TASK.payload["text"], "passed"]
    assert all(entry.role == "tool" for entry in demonstration.entries[1:] if isinstance(entry, Message))
    assert earned(demonstration) == (0.95, True)


async def test_other_path__no_such_file(pool: Any) -> None:
    demonstration = await script(pool, tool_call("read", path="/etc/passwd"), "done")
    assert observations(demonstration) == ["error: no such file"]


async def test_out_of_turns__is_graded_and_earns_nothing(pool: Any) -> None:
    demonstration = await script(pool, READ, GOLD, GOLD, GOLD, GOLD, GOLD)
    assert demonstration.termination is Termination.TRUNCATED_TURNS
    assert earned(demonstration) == (0.0, False)


async def test_done_in_the_sixth_turn__is_a_natural_end(pool: Any) -> None:
    demonstration = await script(pool, READ, GOLD, GOLD, GOLD, GOLD, "done")
    assert demonstration.termination is Termination.TERMINATED
    assert earned(demonstration) == (pytest.approx(0.85), True)


async def test_truncated_turn__earns_nothing_though_the_code_passed(box: Any) -> None:
    episode, _ = await begin(ENV, TASK, sandbox=box)
    await take_turn(ENV, episode, GOLD, truncated=False)
    outcome = await take_turn(ENV, episode, "done", truncated=True)
    assert outcome.ended is Termination.TRUNCATED_TURN_TOKENS
    assert is_gradable(ENV, outcome.ended)
    assert (await ENV.reward(episode, box)).value == 0.0


async def test_grading__is_the_same_over_repeats_and_new_sandboxes(pool: Any) -> None:
    results = [earned(await script(pool, GOLD, "done")) for _ in range(3)]
    assert results == [(1.0, True)] * 3


async def test_teacher__succeeds_about_half_of_the_time(pool: Any) -> None:
    demonstrations = await collect(ENV, 1, 60, pool, concurrency=2)
    success = sum(earned(demonstration)[1] is True for demonstration in demonstrations) / len(demonstrations)
    assert 0.35 < success < 0.75
    seen = Counter(text.split()[0] for demonstration in demonstrations for text in observations(demonstration))
    assert min(seen["FAIL"], seen["passed"]) > seen["error:"] > 0


def test_teacher__mistranslates_every_third_operation_in_the_same_way() -> None:
    said: dict[str, Counter[str]] = {operation.name: Counter() for operation in OPERATIONS}
    for index, task in enumerate(task for task in ENV.tasks("train", 3, 6000) if len(steps_of(task)) == 1):
        teacher = Teacher(random.Random(index), task)
        if teacher.knows:
            teacher(Episode(task))
            name, digit, _ = steps_of(task)[0]
            code = teacher(Episode(task))
            body = code.split("(x): ")[1].split(";")[0].split('"')[0]
            said[name].update(o.name for o in OPERATIONS if o.code.replace("K", str(digit)) == body)
    for index, operation in enumerate(OPERATIONS):
        top, n = said[operation.name].most_common(1)[0]
        share = n / said[operation.name].total()
        if index % 3 == 0:
            assert top == OPERATIONS[index + 1].name
            assert 0.48 < share < 0.68
        else:
            assert top == operation.name
            assert 0.8 < share < 0.97


def test_teacher__depends_on_its_random_source_alone() -> None:
    def said(seed: int, task: Task) -> list[str]:
        teacher = Teacher(random.Random(seed), task)
        return [teacher(Episode(task)) for _ in range(4)]

    assert said(4, TASK) == said(4, TASK)
    assert len({tuple(said(seed, TASK)) for seed in range(20)}) > 10
