"""What a run's row is told of its settings (no_silent_option)."""

from __future__ import annotations

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
                "trainer.long_share=0.25", "trainer.long_wait_s=7", "rollout.lease_s=12")  # fmt: skip
    spec = create_run(plan(tmp_path, *settings), MemoryStore()).spec
    assert (spec.max_age_s, spec.group_deadline_s, spec.lease_s) == (900, 300, 12)
    assert (spec.long_tokens, spec.long_share, spec.long_wait_s) == (100, 0.25, 7)


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
