"""What a run's row is told of its settings (no_silent_option)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config.load import resolve
from agentrl.errors import UsageError
from agentrl.launch.plan import Plan
from agentrl.launch.run import create_run, execute
from agentrl.store.memory import MemoryStore


def plan(folder: Path, *overrides: str) -> Plan:
    resolved = resolve(environment="code_agent", preset="grpo", file=None, flags={}, overrides=overrides)
    return Plan("made", folder / "made", resolved, {})


def test_settings_of_claims_and_ages__reach_the_row(tmp_path: Path) -> None:
    settings = ("staleness.max_age_s=900", "staleness.group_deadline_s=300", "trainer.long_tokens=100",
                "trainer.long_share=0.25", "trainer.long_wait_s=7", "rollout.lease_s=12",
                "staleness.mode=segment_mask", "rollout.oversampling=0.3", "rollout.group_redundancy=2")  # fmt: skip
    spec = create_run(plan(tmp_path, *settings), MemoryStore()).spec
    assert (spec.max_age_s, spec.group_deadline_s, spec.lease_s) == (900, 300, 12)
    assert (spec.staleness_mode, spec.group_extra) == ("segment_mask", 2)
    assert spec.oversample == 24, "a third of a batch of 64, in whole groups of 8"
    assert (spec.long_tokens, spec.long_share, spec.long_wait_s) == (100, 0.25, 7)
    assert (spec.batch_min, spec.batch_max) == (64, 64)


def test_fewest_and_most_of_a_batch__reach_the_row(tmp_path: Path) -> None:
    spec = create_run(plan(tmp_path, "trainer.batch_min=32"), MemoryStore()).spec
    assert (spec.batch_min, spec.batch_max) == (32, 64)


CAREFUL = """
from agentrl.environment import Environment, Message, Task, tool

class Careful(Environment):
    def tasks(self, split, seed, n):
        return [Task(f"{split}-{i}", {}, split) for i in range(min(n, 3))]

    @tool(side_effects=False)
    def look(self) -> str:
        "Look."

class Careless(Careful):
    @tool
    def pay(self) -> str:
        "Pay."
"""


@pytest.mark.parametrize(("name", "attempts"), [("Careful", 3), ("Careless", 1)])
def test_tools_that_may_have_side_effects__leave_one_attempt(name: str, attempts: int, tmp_path: Path) -> None:
    # A worker that was killed can't say what it had called, so its episode must not be opened again.
    (tmp_path / "careful.py").write_text(CAREFUL)
    made = plan(tmp_path)
    scored = made.config.evaluation.model_copy(update={"episodes": 3, "episodes_during": 3})
    config = made.config.model_copy(update={"environment": f"{tmp_path / 'careful.py'}:{name}", "evaluation": scored})
    made = replace(made, resolved=replace(made.resolved, config=config))
    assert create_run(made, MemoryStore()).spec.max_attempts == attempts


def test_failed_creation__leaves_the_name_free(tmp_path: Path) -> None:
    store = MemoryStore()
    create_run(plan(tmp_path), store)
    with pytest.raises(UsageError, match="exists"):
        create_run(Plan("made", tmp_path / "again", plan(tmp_path).resolved, {}), store)
    assert not (tmp_path / "again").exists()


def test_folder_gone__is_said(tmp_path: Path) -> None:
    store = MemoryStore()
    run = create_run(plan(tmp_path), store)
    (tmp_path / "made").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="folder of run made"):
        execute(run, store)
