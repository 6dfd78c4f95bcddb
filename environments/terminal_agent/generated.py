"""Small generated tasks: one or two text filters over a file, the result in another file.

Of all ordered pairs of filters a fifth is held out: neither demonstrations nor training contain them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentrl.environment import Task
from environments.splits import heldout_fifth
from environments.terminal_agent.places import TESTS, VERDICTS, WORKDIR
from environments.terminal_agent.task import TerminalTask

Step = tuple[str, str]
"""Name of the filter and its parameter, empty when it takes none."""


@dataclass(frozen=True, slots=True)
class Filter:
    """``K`` in words and command stands for a digit from 2 to 4, ``W`` for a word."""

    name: str
    phrasings: tuple[str, str]
    command: str
    apply: Callable[[list[str], str], list[str]]


FILTERS = (
    Filter("first", ("the first K lines", "the top K lines"), "head -n K", lambda lines, p: lines[: int(p)]),
    Filter("last", ("the last K lines", "the bottom K lines"), "tail -n K", lambda lines, p: lines[-int(p) :]),
    Filter("with", ("the lines with W", "what mentions W"), "grep W", lambda lines, p: [x for x in lines if p in x]),
    Filter("without", ("the lines without W", "all but W"), "grep -v W", lambda lines, p: [x for x in lines if p not in x]),
    Filter("sort", ("the lines sorted", "the lines in order"), "sort", lambda lines, p: sorted(lines)),
    Filter("sort-down", ("the lines sorted backwards", "the lines in falling order"), "sort -r", lambda x, p: sorted(x)[::-1]),
    Filter("distinct", ("each line once, sorted", "the different lines in order"), "sort -u", lambda x, p: sorted(set(x))),
    Filter("upper", ("the lines in capitals", "the lines in upper case"), "tr a-z A-Z", lambda x, p: [s.upper() for s in x]),
    Filter("count", ("the number of lines", "how many lines there are"), "wc -l", lambda lines, p: [str(len(lines))]),
)
BY_NAME = {one.name: one for one in FILTERS}
HELDOUT_PAIRS = heldout_fifth((a.name, b.name) for a in FILTERS for b in FILTERS if a.name != b.name)
NAMES = ("data.txt", "list.txt", "log.txt", "notes.txt")
WORDS = ("red", "blue", "oak", "elm", "tin")
RESULT = "out.txt"
_TEST = f"""\
#!/bin/sh
if cmp -s {WORKDIR}/{RESULT} {TESTS}/expected.txt; then echo 1; else echo 0; fi > {VERDICTS}/reward.txt
"""


def generate(split: str, seed: int) -> Iterator[Task]:
    """Tasks without end. ``train``: one or two filters, half and half, no held-out pair; ``heldout``: held-out pairs only."""
    rng = random.Random(f"terminal_agent/{split}/{seed}")
    index = 0
    while True:
        yield _task(rng, split, index)
        index += 1


def steps_of(task: Task) -> list[Step]:
    """The steps of a task, as stored in its payload."""
    return [(name, parameter) for name, parameter in task.payload["steps"]]


def command(file: str, steps: list[Step]) -> str:
    """The pipeline that does the steps."""
    filters = [BY_NAME[name].command.replace("K", parameter).replace("W", parameter) for name, parameter in steps]
    return " | ".join([f"cat {file}", *filters]) + f" > {RESULT}"


def terminal_task(task: Task) -> TerminalTask:
    """The task as the format describes tasks."""
    payload = task.payload
    return TerminalTask(
        instruction=payload["instruction"],
        tests={"test.sh": _TEST.encode(), "expected.txt": payload["expected"].encode()},
        test_script="test.sh",
        start={payload["file"]: payload["content"].encode()},
    )


def _task(rng: random.Random, split: str, index: int) -> Task:
    while True:
        steps, phrasings = _draw_steps(rng, split)
        lines = [f"{rng.choice(WORDS)} {rng.choice(WORDS)} {rng.randint(1, 9)}" for _ in range(rng.randint(6, 8))]
        lines.append(rng.choice(lines))
        result = lines
        for name, parameter in steps:
            result = BY_NAME[name].apply(result, parameter)
        if result and result != lines:  # neither nothing nor a copy: an agent must not be right by doing less
            break
    file = rng.choice(NAMES)
    words = ", then ".join(
        BY_NAME[name].phrasings[which].replace("K", parameter).replace("W", parameter)
        for (name, parameter), which in zip(steps, phrasings, strict=True)
    )
    payload = {
        "instruction": f"From {file} write to {RESULT}: {words}",
        "file": file,
        "content": "".join(f"{line}\n" for line in lines),
        "expected": "".join(f"{line}\n" for line in result),
        "steps": [list(step) for step in steps],
    }
    label = "+".join(f"{name}-{parameter}" if parameter else name for name, parameter in steps)
    return Task(f"{label}/{file}/{index:04}", payload, split)


def _draw_steps(rng: random.Random, split: str) -> tuple[list[Step], list[int]]:
    n_steps = 2 if split == "heldout" else rng.choice((1, 2))
    while True:
        chosen = [rng.choice(FILTERS) for _ in range(n_steps)]
        names = tuple(one.name for one in chosen)
        if n_steps == 2 and (names[0] == names[1] or (names in HELDOUT_PAIRS) != (split == "heldout")):
            continue
        return [(one.name, draw_parameter(rng, one)) for one in chosen], [rng.randrange(2) for _ in chosen]


def draw_parameter(rng: random.Random, one: Filter) -> str:
    """A word, a digit or nothing, as the filter needs it."""
    return rng.choice(WORDS) if one.command.endswith(" W") else str(rng.randint(2, 4)) if one.command.endswith(" K") else ""
