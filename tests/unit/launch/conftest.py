from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.launch.processes import RunProcesses


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[RunProcesses]:
    """Of a run without a child yet; none is left at the end."""
    (tmp_path / "logs").mkdir()
    made = RunProcesses("r", tmp_path, 1)
    yield made
    made.kill()
    made.wait(10)
