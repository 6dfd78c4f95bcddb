"""The protocol model: what must hold holds, and each other reading is found broken by the invariant that it is known for."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from agentrl.store.model.__main__ import main
from agentrl.store.model.configurations import CONFIGURATIONS, HOLDING, READINGS, Configuration
from agentrl.store.model.invariants import Invariant
from agentrl.store.model.rules import Rules
from agentrl.store.model.search import Search, initial, moves
from agentrl.store.model.segments import SegmentInvariant, SegmentRules
from agentrl.store.model.state import State, canonical, true_lag
from agentrl.store.schema_setup import schema_files

REPLAYS = sorted(Path(__file__).parents[2].rglob("test_*.py"))
DESIGN = Path(__file__).parents[3] / "docs" / "design" / "protocol-model.md"


def named(configurations: tuple[Configuration, ...]) -> list[object]:
    return [pytest.param(c, id=c.name) for c in configurations if c.quick]


@pytest.mark.parametrize("configuration", named(HOLDING))
def test_protocol__holds(configuration: Configuration) -> None:
    result = configuration.run()
    assert result.broken == {}
    assert result.states > 100


@pytest.mark.parametrize("configuration", named(READINGS))
def test_reading__breaks_its_invariant(configuration: Configuration) -> None:
    result = configuration.run()
    assert configuration.breaks is not None
    assert configuration.breaks.value in result.broken
    assert all(result.broken[configuration.breaks.value])


def test_every_switch__has_a_reading() -> None:
    """Each field of the rules after the sizes and the world is turned by some configuration."""
    world = {
        "lag_bound", "batch", "batch_min", "ahead", "group", "slots", "workers", "turns", "checkpoint_every",
        "max_attempts", "max_lease_attempts", "faults", "transport", "grading", "poison", "outage", "staleness", "deadly",
        "deadline", "retention", "late_checkpoints", "extra", "oversample",
    }  # fmt: skip
    for kind in (Rules, SegmentRules):
        default = kind()
        for name in kind.__dataclass_fields__:
            tried = {getattr(c.rules, name) for c in CONFIGURATIONS if isinstance(c.rules, kind)}
            if name not in world:
                assert tried - {getattr(default, name)}, name


def test_every_invariant__is_broken_by_some_reading() -> None:
    """An invariant that no reading breaks may be one that can't fail."""
    broken = {c.breaks for c in READINGS}
    derived = {Invariant.WHOLE_GROUPS, Invariant.LEDGER, Invariant.VERSION_ORDER, Invariant.RESUME, SegmentInvariant.ONE_WRITER}
    assert {*Invariant, *SegmentInvariant} - broken == derived


def test_trace__can_be_walked_from_the_start() -> None:
    rules = Rules(faults=1, workers=1, checkpoint_path="step")
    (trace,) = Search(rules, Invariant.CHECKPOINT_FILE).run().broken.values()
    state: State = initial(rules)
    for label in trace[:-1]:
        state = next(m.state for m in moves(state, rules) if m.label == label)
    assert any(m.label == trace[-1] and Invariant.CHECKPOINT_FILE in m.broken for m in moves(state, rules))


def test_canonical__is_stable_and_forgets_names() -> None:
    search = Search(Rules(faults=1))
    for number in range(300):
        search._expand(number)
    for state in search.states:
        assert canonical(state) == state
    for a, b in pairwise(search.states):
        assert a != b


def test_true_lag__counts_both_arms() -> None:
    root, left, right = (), ((1, (0,)),), ((2, (0,)), (2, (1,)))
    assert (true_lag(left, root), true_lag(left, right), true_lag(right, right)) == (1, 3, 0)


def test_readings__each_has_a_row_in_the_design_page_and_a_replay() -> None:
    tests = "".join(path.read_text() for path in REPLAYS)
    rows = {row.split("`")[1]: row for row in DESIGN.read_text().splitlines() if row.startswith("| `")}
    assert set(rows) == {reading.name for reading in READINGS}
    for reading in READINGS:
        assert reading.breaks is not None
        assert f"| {reading.breaks.name} |" in rows[reading.name], reading.name
        replays = re.findall(r"`(test_\w+)`", rows[reading.name])
        assert replays, reading.name
        for name in replays:
            assert f"def {name}(" in tests, name


def test_design_page__names_functions_that_exist() -> None:
    named_there = set(re.findall(r"`(\w+_v\d+)`", DESIGN.read_text()))
    assert len(named_there) > 20
    texts = "".join(schema_files("functions").values())
    assert named_there <= set(re.findall(r"^create or replace function agentrl\.(\w+)", texts, re.M))


def test_command__prints_verdict_and_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admission-before"]) == 0
    said = capsys.readouterr().out
    assert "admission bound when something opened" in said
    assert "2. W1 opens slot 1 (new task)" in said
    assert main(["no-such"]) == 2
    assert "admission-before" in capsys.readouterr().err


def test_model__needs_the_standard_library_only() -> None:
    heavy = ("torch", "numpy", "psycopg", "sqlalchemy", "pydantic")
    code = f"import sys, agentrl.store.model.__main__; print([x for x in {heavy} if x in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
