"""grader_out_of_reach: a solution passes by right values only, whatever else it does in the sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from environments.code_agent.execution import Run, first_failure, run

INPUTS = [[1, 2, 3], [7]]
EXPECTED = [[2, 3, 4], [8]]
GOLD = "def g(x): return [a+1 for a in x]"


async def verdict(box: Any, code: str) -> str | None:
    return first_failure(await run(box, code, "g", INPUTS), EXPECTED)


async def test_right_solution__passes(box: Any) -> None:
    assert await verdict(box, GOLD) is None


async def test_right_solution_that_prints_and_imports__passes(box: Any) -> None:
    assert await verdict(box, "import json, sys\nprint('x' * 200000)\n" + GOLD + "\nsys.stderr.write('y')") is None


async def test_expected_outputs__never_enter_the_sandbox(box: Any) -> None:
    await run(box, GOLD, "g", [[101, 103], [107]])
    (program,) = box.programs
    assert "[101, 103]" in program
    assert "102" not in program
    assert "108" not in program


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("def g(x): return x", "item 0: got 1 want 2"),
        ("def g(x): return [a+1 for a in x][:2]", "length: got 2 want 3"),
        ("def g(x): pass", "got None"),
        ("def g(x): return 5", "got 5"),
        ("def g(x): return tuple(a+1 for a in x)", "got (2, 3, 4)"),
        ("def g(x): return [float(a+1) for a in x]", "got [2.0, 3.0, 4"),
        ("def g(x): return x[9]", "got IndexError"),
        ("def g(x): return g(x)", "got RecursionErr"),
        ("def f(x): return x", "KeyError: 'g'"),
        ("def g(x) return x", "SyntaxError: expected ':' (solution.py, "),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("g = 5", "got TypeError"),
        ("def g(x): return '\\ud800'", "got '\\ud800'"),
        ("a = '\ud800'", "UnicodeEncodeError: 'utf-8' codec can't "),
        ("def g(x): return [10**6000]", "got ValueError"),
        ("class C:\n def __repr__(s): return '\\0\\ud800\\n'\ndef g(x): return C()", "got " + "\N{REPLACEMENT CHARACTER}" * 3),
        ("raise ValueError('\\0')", "ValueError: \N{REPLACEMENT CHARACTER}"),
        ("def g(x): return [0]*100000", "got [0, 0, 0, 0,"),
    ],
)
async def test_wrong_solution__says_how_it_differs(box: Any, code: str, failure: str) -> None:
    assert await verdict(box, code) == failure


_LINE = '{"outputs": [[[9]], [[9]]]}'
FORGERIES = {
    "exits before the tests": "import os; os._exit(0)",
    "exits in the function": "def g(x):\n import os; os._exit(0)",
    "raises SystemExit": "raise SystemExit(0)",
    "prints passed": "def g(x): print('passed'); return x",
    "prints an answer and exits": f"import os; os.write(1, b'\\n{_LINE}'); os._exit(0)",
    "prints an answer at exit": f"import atexit, os; atexit.register(os.write, 1, b'\\n{_LINE}')\ndef g(x): return x",
    "prints booleans": "import os; os.write(1, b'\\n{\"outputs\": [true, true]}'); os._exit(0)",
    "prints garbage": "import os; os.write(1, b'\\n[[[\\xff'); os._exit(0)",
    "prints deep nesting": "import os; os.write(1, b'\\n' + b'[' * 60000); os._exit(0)",
    "prints without end": "import os\nwhile True: os.write(1, b'x' * 4096)",
    "closes stdout": "import os; os.close(1)\n" + GOLD,
    "equals everything": "class L(list):\n def __eq__(s, o): return True\n def __len__(s): return 3\ndef g(x): return L(x)",
    "int that equals everything": "class I(int):\n def __eq__(s, o): return True\ndef g(x): return [I(a) for a in x]",
    "claims other class": "class L:\n __class__ = list\n def __eq__(s, o): return True\ndef g(x): return L()",
    "booleans for ones": "def g(x): return [True for a in x]",
    "overrides all": "import builtins\nbuiltins.all = lambda *a: True\nbuiltins.type = lambda *a: list\ndef g(x): return x",
    "overrides the encoder": "import json\njson.dumps = json.JSONEncoder.encode = lambda *a: 'passed'\ndef g(x): return x",
    "edits the harness's frame": (
        "import sys\nf = sys._getframe(1).f_globals\nf['outputs'].append([[9]])\nf['outputs'].append([[9]])\n"
        "f['inputs'].clear()\ndef g(x): return x"
    ),
    "sleeps past the end": "import time\ndef g(x): time.sleep(60); return x",
    "dies by signal": "import os; os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
async def test_forged_verdict__fails(box: Any, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("environments.code_agent.execution.TIMEOUT_S", 1.0)
        assert await verdict(box, code) is not None
    assert await verdict(box, GOLD) is None, "the sandbox still grades honestly afterwards"


def test_bool_for_int__is_not_equal() -> None:
    # On the host: what a forged answer line with `true` becomes must not equal the ints it resembles.
    from environments.code_agent.execution import _output

    assert first_failure(Run((_output([[True]]),)), [[1]]) == "got garbage"
    assert first_failure(Run((_output([[1.0]]),)), [[1]]) == "got garbage"
    assert first_failure(Run((_output([[1]]),)), [[1]]) is None


async def test_program_that_ends_early__reads_killed(box: Any) -> None:
    assert (await run(box, "import os; os._exit(0)", "g", INPUTS)).error == "Killed"
