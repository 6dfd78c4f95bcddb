"""Rows in the shape of HumanEval and of MBPP, written for these tests."""

from __future__ import annotations

from typing import Any

CLAMP: dict[str, Any] = {
    "task_id": "Own/0",
    "prompt": (
        "from typing import List\n\n\ndef clamp(values: List[int], low: int, high: int) -> List[int]:\n"
        '    """Move every value into [low, high].\n\n    >>> clamp([1, 9], 2, 5)\n    [2, 5]\n    """\n'
    ),
    "canonical_solution": "    return [min(max(value, low), high) for value in values]\n",
    "test": (
        "METADATA = {}\n\n\ndef check(candidate):\n    print('test')\n    assert candidate([1, 9, 3], 2, 5) == [2, 5, 3]\n"
        "    assert candidate([], 0, 1) == []\n    assert candidate([7], low=7, high=7) == [7]\n"
    ),
    "entry_point": "clamp",
}
ROOT: dict[str, Any] = {
    "task_id": "Own/1",
    "prompt": (
        "import math\n\n\ndef line(k: list, x: float) -> float:\n    return k[0] + k[1] * x\n\n\n"
        'def root(k: list) -> float:\n    """The x at which line(k, x) is zero; ValueError when there is none."""\n'
    ),
    "canonical_solution": "    if k[1] == 0:\n        raise ValueError(k)\n    return -k[0] / k[1]\n",
    "test": (
        "import copy\nimport random\n\n\ndef check(candidate):\n    for _ in range(60):\n"
        "        k = [random.randint(-9, 9), random.randint(1, 9)]\n        found = candidate(copy.deepcopy(k))\n"
        "        assert math.fabs(line(k, found)) < 1e-6\n    try:\n        candidate([1, 0])\n        assert False\n"
        "    except ValueError:\n        pass\n"
        "    twice = candidate([candidate([-2, 1]), 1])\n    assert abs(twice + 2) < 1e-6\n"
    ),
    "entry_point": "root",
}
PAIRS: dict[str, Any] = {
    "task_id": 77,
    "text": "Write a function that pairs each word with its length.",
    "code": "def helper(word):\n    return len(word)\ndef pairs(words):\n    return {(word, helper(word)) for word in words}",
    "test_list": ['assert pairs(["a", "bb"]) == {("a", 1), ("bb", 2)}', "assert pairs([]) == set()  # hidden"],
    "test_setup_code": "",
    "challenge_test_list": ['assert pairs(["ccc", "ccc"]) == {("ccc", 3)}'],
}
HALVES: dict[str, Any] = {
    "task_id": 78,
    "prompt": "Write a function that halves a number, and is None for no number.",
    "code": "def halves(n):\n    return None if n is None else n / 2",
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(halves(3), 1.5)", "assert halves(None) is None", "assert halves(2**200) == 2**199"],
}
ROWS = [CLAMP, ROOT, PAIRS, HALVES]
