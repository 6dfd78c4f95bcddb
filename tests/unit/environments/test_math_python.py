"""Mathematics with a Python tool: cells, answers, problems from files, hostile input."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Message, tool_call
from agentrl.environment.base import checked_tasks
from agentrl.environment.demonstrate import Demonstration, play
from agentrl.errors import EnvironmentFault, UsageError
from agentrl.types import Termination
from environments.math_python import MathPython, MathPythonLarge, checking, symbolic
from environments.math_python.problems import HELDOUT_PAIRS, program, steps_of
from sandboxes.pool import Pool

ENV = MathPython()
TASK = ENV.tasks("heldout", 1, 1)[0]
ANSWER = TASK.payload["answer"]
COMPUTE = tool_call("python", code=program(TASK.payload["start"], steps_of(TASK)))


async def script(pool: Any, *texts: str) -> Demonstration:
    return await play(ENV, TASK, lambda episode: texts[episode.n_turns], pool)


def observations(played: Demonstration) -> list[str]:
    return [entry.content for entry in played.entries[1:] if isinstance(entry, Message)]


def earned(played: Demonstration) -> tuple[float, bool | None]:
    assert played.reward is not None
    return played.reward.value, played.reward.success


async def test_gold__reads_the_value_and_says_it(isolated: Pool) -> None:
    played = await script(isolated, COMPUTE, ANSWER)
    assert observations(played) == [ANSWER]
    assert earned(played) == (1.0, True)


async def test_turns_over_two__cost_a_twentieth_each(isolated: Pool) -> None:
    assert earned(await script(isolated, COMPUTE, COMPUTE, ANSWER)) == (0.95, True)


async def test_right_answer_with_more_text__is_wrong_in_the_small_size(isolated: Pool) -> None:
    assert earned(await script(isolated, f"{ANSWER} or {ANSWER}0")) == (0.0, False)


async def test_out_of_turns__earns_nothing(isolated: Pool) -> None:
    played = await script(isolated, *[COMPUTE] * 4)
    assert played.termination is Termination.TRUNCATED_TURNS
    assert earned(played) == (0.0, False)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("1+1", "2"),
        ("x=3; x", "3"),
        ("print('a'); 5", "a\n5"),
        ("x = 1", "(no output)"),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("def f(:", 'File "cell.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax'),
        ("raise SystemExit(3)", "(no output)"),
        ("import os; os._exit(3)", "error: ended with exit code 3"),
        ("'\\ud800'", "'\\ud800'"),
        ("open('/etc/shadow')", "PermissionError"),
        ("import socket; socket.create_connection(('192.0.2.1', 80), 1)", "OSError"),
    ],
)
async def test_cell__shows_what_a_notebook_would(code: str, shown: str, isolated: Pool) -> None:
    (text,) = observations(await script(isolated, tool_call("python", code=code), ANSWER))
    if shown.endswith("Error"):
        assert text.startswith(("FileNotFoundError", shown))
    else:
        assert text == shown


async def test_cell_without_end__is_stopped_and_the_next_one_works(isolated: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MathPython, "python_timeout_s", 0.5)
    played = await script(isolated, tool_call("python", code="while True: pass"), COMPUTE, ANSWER)
    assert observations(played) == ["error: no end within 0.5 s", ANSWER]


async def test_flood_of_output__is_cut(isolated: Pool) -> None:
    (text,) = observations(await script(isolated, tool_call("python", code="print('x' * 3_000_000)"), ANSWER))
    assert len(text) < ENV.max_result_chars + 100
    assert "characters cut" in text


def test_heldout_pairs__are_a_fifth() -> None:
    assert len(HELDOUT_PAIRS) == 16  # of 81
    names = {tuple(step[0] for step in steps_of(task)) for task in ENV.tasks("heldout", 0, 1000)}
    assert names == HELDOUT_PAIRS


def test_program__gives_the_answer() -> None:
    for task in ENV.tasks("train", 0, 300):
        *statements, last = program(task.payload["start"], steps_of(task)).split("; ")
        space: dict[str, Any] = {}
        exec("; ".join(statements), space)
        assert str(space[last]) == task.payload["answer"]


RIGHT = [
    ("42", "42"),
    ("42.0", "42"),
    ("0.5", "1/2"),
    ("\\frac{1}{2}", "0.5"),
    ("\\dfrac12", "1/2"),
    ("x = 3", "3"),
    ("$12\\sqrt{2}$", "12*sqrt(2)"),
    ("2\\pi", "2*pi"),
    ("(x+1)^2", "x^2 + 2x + 1"),
    ("sin(x)^2 + cos(x)^2 + x", "1 + x"),
    ("6x^2", "6*x^2"),
    ("(1, \\frac{2}{4})", "(1, 0.5)"),
    ("\\left( 3, 4 \\right)", "(3,4)"),
    ("e^{2}", "exp(2)"),
    ("Tuesday", "tuesday"),
    ("\\text{Friday}", "\\text{Friday}"),
    ("\\sqrt[3]{8}", "2"),
]
WRONG = [
    ("41", "42"),
    ("", "42"),
    ("2", "1/2"),
    ("x^2+2x", "x^2 + 2x + 1"),
    ("(1, 2, 3)", "(1, 2)"),
    ("(2, 1)", "(1, 2)"),
    ("12", "(1, 2)"),
    ("__import__('os').system('touch /tmp/agentrl-was-here')", "x^2"),
    ("x.__class__", "x^2"),
    ("(lambda: 1)()", "x^2"),
    ("[1 for _ in range(10)]", "x^2"),
    ("9**9**9**9", "x^2"),
    ("10^(10^(10^10)) + x", "x^2"),
    ("(" * 900 + "1" + ")" * 900, "x^2"),
    ("-" * 1500 + "1", "x^2"),
    ("x" * 1900, "x^2"),
    ("1" * 100_000, "x^2"),
    ("\\frac{" * 300, "x^2"),
    ("\0x", "x^2"),
    ("\ud800*2", "x^2"),
    ("Thursday", "Tuesday"),
]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symbolic comparison without its process, whose start takes longer than the comparison."""

    async def compare(answer: str, expected: str) -> str:
        return symbolic.judge(answer, symbolic.expression(expected))

    monkeypatch.setattr(checking, "_compare", compare)


@pytest.mark.parametrize(("answer", "expected"), RIGHT)
async def test_equal_answers__are_right(answer: str, expected: str, in_process: None) -> None:
    assert (await checking.is_right(answer, expected))[0]


@pytest.mark.parametrize(("answer", "expected"), WRONG, ids=range(len(WRONG)))
async def test_other_answers__are_wrong_whatever_they_try(answer: str, expected: str, in_process: None) -> None:
    assert (await checking.is_right(answer, expected))[0] is False
    assert not Path("/tmp/agentrl-was-here").exists()


async def test_comparison_in_a_process_of_its_own__tells_the_verdict() -> None:
    assert await checking.is_right("(x+1)^2", "x^2 + 2x + 1") == (True, symbolic.EQUAL)
    assert await checking.is_right("x +", "x^2 + 2x + 1") == (False, symbolic.UNREADABLE)


async def test_comparison_that_takes_too_long__is_stopped_and_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "CPU_S", 1)
    assert await checking.is_right("((2^1000)^1000)^1000 + x", "x^2") == (False, symbolic.UNDECIDED)


async def test_unreadable_expected_answer__gives_no_verdict() -> None:
    with pytest.raises(EnvironmentFault, match="no verdict"):
        await checking.is_right("x+1", "x +* 1")


async def test_tolerance__is_relative() -> None:
    assert (await checking.is_right("3.14159", "3.1415926535", 1e-5))[0]
    assert not (await checking.is_right("3.14", "3.1415926535", 1e-5))[0]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def test_problems_from_a_file__are_split_and_graded(tmp_path: Path, isolated: Pool) -> None:
    rows = [{"question": f"What is {i} + {i}?", "answer": f"{i} and {i} make\n#### {2 * i}"} for i in range(50)]
    environment = MathPythonLarge(data=write(tmp_path / "p.jsonl", rows))
    train, heldout = checked_tasks(environment, "train", 0, 100), checked_tasks(environment, "heldout", 0, 100)
    assert len(train) + len(heldout) == 50
    assert 3 <= len(heldout) <= 20
    for text, success in ((heldout[0].payload["answer"], True), ("no", False)):
        said = f"so\n\\boxed{{{text}}}"
        played = await play(environment, heldout[0], lambda episode, said=said: said, isolated)
        assert played.reward is not None
        assert played.reward.success is success


def test_hendrycks_shaped_solution__gives_its_boxed_answer(tmp_path: Path) -> None:
    rows = [{"problem": f"p{i}", "solution": "We get $\\boxed{\\frac{3}{4}}$ at last."} for i in range(20)]
    environment = MathPythonLarge(data=write(tmp_path / "p.jsonl", rows))
    assert {task.payload["answer"] for task in environment.tasks("train", 0, 20)} == {"\\frac{3}{4}"}


def test_rows_without_the_columns__are_named(tmp_path: Path) -> None:
    environment = MathPythonLarge(data=write(tmp_path / "p.jsonl", [{"q": "1+1", "a": "2"}]))
    with pytest.raises(UsageError, match=r"none of the columns problem.*it has q, a"):
        list(environment.tasks("train", 0, 1)) or environment.tasks("heldout", 0, 1)


def test_generated_answers__are_those_of_independent_counts() -> None:
    seen = set()
    for task in MathPythonLarge().tasks("train", 9, 300):
        family, problem, answer = task.id.split("/")[0], task.payload["problem"], task.payload["answer"]
        numbers = [int(n) for n in re.findall(r"\d+", problem)]
        if family == "power":
            assert pow(numbers[0], numbers[1], numbers[2]) == int(answer)
        elif family == "divisors":
            low, high, k = numbers
            divisors = [sum(1 for d in range(1, n + 1) if n % d == 0) for n in range(low, low + 50)]
            assert int(answer) >= divisors.count(k)
            assert int(answer) < high - low
        elif family == "coins":
            a, b, c, total = numbers
            ways = sum((total - a * i - b * j) % c == 0 for i in range(total // a + 1) for j in range((total - a * i) // b + 1))
            assert ways == int(answer)
        elif family == "probability":
            red, blue, drawn = numbers
            share = Fraction(1)
            for i in range(drawn):
                share *= Fraction(red - i, red + blue - i)
            assert share == Fraction(answer)
        seen.add(family)
    assert len(seen) == 7
