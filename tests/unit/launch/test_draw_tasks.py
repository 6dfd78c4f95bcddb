"""What a run needs of its environment's data is refused before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.load import resolve
from agentrl.config.run import RunConfig
from agentrl.errors import UsageError
from agentrl.launch.run import draw_tasks

SOURCE = """
from agentrl.environment import Environment, Task


class Few(Environment):
    def tasks(self, split, seed, n):
        return [Task(f"{split}-{i}", {}, split) for i in range(5)]
"""


def config(folder: Path, *overrides: str) -> RunConfig:
    (folder / "few.py").write_text(SOURCE)
    environment = f"{folder}/few.py:Few"
    return resolve(environment=environment, preset=None, file=None, flags={}, overrides=list(overrides)).config


def test_fewer_held_out_tasks_than_are_scored__names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"5 tasks in split 'heldout'.*evaluation\.episodes=5 evaluation\.episodes_during=5"):
        draw_tasks(config(tmp_path))
    drawn = draw_tasks(config(tmp_path, "evaluation.episodes=5", "evaluation.episodes_during=3"))
    assert {split: len(tasks) for split, tasks in drawn.items()} == {"train": 5, "heldout": 5}


def test_number_of_evaluations_that_never_happen__is_not_asked_for(tmp_path: Path) -> None:
    drawn = draw_tasks(config(tmp_path, "evaluation.episodes=4", "evaluation.every=0"))
    assert len(drawn["heldout"]) == 4
