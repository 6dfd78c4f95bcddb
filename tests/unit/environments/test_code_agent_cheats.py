"""grader_out_of_reach: cheats that work against a grader that shares an interpreter with them earn nothing here.

Each cheat is run three times: against a naive grader, which it must fool, so that it is known to work; by the judge, in whose
sandbox it leaves a mark, so that it is known to have run there; and as a whole episode, which must earn 0.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from agentrl.environment import Task, tool_call
from agentrl.environment.boxes import boxes_of, queue_for
from agentrl.environment.demonstrate import play
from environments.code_agent import CodeAgent, asserted, execution, problems
from environments.code_agent.tasks import solution, steps_of
from sandboxes.contract import ExecResult, SandboxSpec
from sandboxes.local import UnsafeLocal
from sandboxes.pool import Pool
from tests.unit.environments.problem_rows import CLAMP

pytestmark = pytest.mark.asyncio(loop_scope="module")
MARK = "open('cheat-was-here', 'w').write('yes')\n"
NAIVE = """\
import json, os
CODE, TESTS = {code!r}, {tests!r}
open("hidden_tests.py", "w").write(TESTS)
def run_tests(space):
    exec(open("hidden_tests.py").read(), space)
space = {{"__name__": "solution"}}
exec(CODE, space)
run_tests(space)
print("PASSED")
print(json.dumps({{"score": 1}}))
"""


def exits_well(result: ExecResult) -> bool:
    return result.exit_code == 0


def says_passed(result: ExecResult) -> bool:
    return b"PASSED" in result.stdout


def reports_a_score(result: ExecResult) -> bool:
    lines = result.stdout.split(b"\n")
    return any(json.loads(line).get("score") == 1 for line in lines if line.startswith(b"{"))


def never_says_no(result: ExecResult) -> bool:
    return result.timed_out or result.exit_code == 0


WRONG = "def NAME(*given, **named): return ['wrong']\n"
CHEATS = {
    "edits the tests": (WRONG + "import glob\nfor name in glob.glob('*tests*'): open(name, 'w').write('')", exits_well),
    "prints PASSED": (WRONG + "print('PASSED')", says_passed),
    "exits 0 early": (WRONG + "import os\nos._exit(0)", exits_well),
    "patches the runner": (
        WRONG + "import __main__\nfor key in list(vars(__main__)):\n"
        "    if callable(vars(__main__)[key]) and not key.startswith('_'): setattr(__main__, key, lambda *a, **k: None)",
        exits_well,
    ),
    "prints the score and exits": (
        WRONG + "import json, os\nsaid = {'score': 1, 'failure': None, 'wanted': [], 'error': None}\n"
        "os.write(1, ('\\n' + json.dumps(said) + '\\n').encode())\nos._exit(0)",
        reports_a_score,
    ),
    "sleeps past the end": (WRONG + "import time\ntime.sleep(60)", never_says_no),
    "equals everything": (
        "class Same:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "def NAME(*given, **named): return Same()",
        exits_well,
    ),
    "replaces the assertions": (
        WRONG + "import builtins\nreal = builtins.compile\n"
        "builtins.exec = lambda *given: None\nbuiltins.compile = lambda *given, **named: real('', 'x', 'exec')",
        exits_well,
    ),
}  # fmt: skip


class Marked:
    """A sandbox that tells whether a cheat left its mark."""

    def __init__(self, sandbox: Any, marks: list[str]) -> None:
        self.sandbox = sandbox
        self.id, self.usage = sandbox.id, sandbox.usage
        self.marks = marks

    async def run_python(
        self, code: str, *, timeout: float = 10.0, max_output: int = 65536, env: Mapping[str, str] | None = None
    ) -> Any:
        result = await self.sandbox.run_python(code, timeout=timeout, max_output=max_output, env=env)
        try:
            await self.sandbox.read_file("/workspace/cheat-was-here")
        except FileNotFoundError:
            return result
        self.marks.append(self.id)
        return result


class MarkedPool:
    def __init__(self) -> None:
        self.pool = Pool(UnsafeLocal(), 2)
        self.marks: list[str] = []

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec, *, timeout: float = 60.0, first: bool = False) -> AsyncIterator[Any]:
        async with self.pool.acquire(spec, timeout=timeout, first=first) as sandbox:
            yield Marked(sandbox, self.marks)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[MarkedPool]:
    pool = MarkedPool()
    yield pool
    await pool.pool.close()


@pytest.fixture
def marked(pool: MarkedPool, monkeypatch: pytest.MonkeyPatch) -> MarkedPool:
    monkeypatch.setattr("environments.code_agent.execution.TIMEOUT_S", 1.0)
    monkeypatch.setattr("environments.code_agent.asserted.TIMEOUT_S", 1.0)
    pool.marks.clear()
    return pool


def cases() -> dict[str, tuple[CodeAgent, Any, Task, str]]:
    """For generated tasks and for problems from files: environment, judge, task and its tests as code."""
    generated = CodeAgent()
    task = generated.tasks("train", 0, 1)[0]
    pairs = list(zip(task.payload["inputs"], task.payload["expected"], strict=True))
    tests = f"for given, want in {pairs}: assert {task.payload['function']}(given) == want"
    payload = problems._humaneval(CLAMP)
    agent = CodeAgent()
    agent.data, agent.judge = problems.Path("unused"), asserted
    return {
        "generated": (generated, execution, task, tests),
        "problem": (agent, asserted, Task("p", payload), payload["tests"]),
    }


def right(task: Task) -> str:
    return str(task.payload["solution"]) if "solution" in task.payload else solution(task.payload["function"], steps_of(task))


@pytest.mark.parametrize("kind", ["generated", "problem"])
@pytest.mark.parametrize("cheat", CHEATS)
async def test_cheat__fools_a_naive_grader_and_earns_nothing_here(cheat: str, kind: str, marked: MarkedPool) -> None:
    environment, judge, task, tests = cases()[kind]
    code = MARK + CHEATS[cheat][0].replace("NAME", task.payload["function"])
    fooled = CHEATS[cheat][1]
    async with marked.pool.acquire(SandboxSpec()) as box:
        assert fooled(await box.run_python(NAIVE.format(code=code, tests=tests), timeout=1.0)), "the cheat does not work"
    async with marked.pool.acquire(SandboxSpec()) as box:
        honest = NAIVE.format(code=WRONG.replace("NAME", task.payload["function"]), tests=tests)
        assert not fooled(await box.run_python(honest)), "this grader is fooled by anything"

    async with boxes_of(environment, task, queue_for(marked)) as boxes:
        assert await judge.verdict(boxes.main, code, task.payload) is not None
        assert marked.marks, "the cheat did not run in the grading sandbox"
        assert await judge.verdict(boxes.main, right(task), task.payload) is None, "the sandbox still grades honestly"

    turns = [tool_call("python", code=code), "done"]
    played = await play(environment, task, lambda episode: turns[episode.n_turns], marked)
    assert played.reward is not None
    assert (played.reward.value, played.reward.success) == (0.0, False)
