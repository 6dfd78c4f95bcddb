"""How a worker's process ends: an exit code that the launcher reads, a line for people, and the log has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import EnvironmentFault, RunFailed
from agentrl.launch.processes import FINAL_CODES
from agentrl.monitor.log import ProcessLog
from agentrl.monitor.worker_process import EXIT_FAILED, run_worker


async def serving(error: Exception | None = None) -> None:
    if error is not None:
        raise error


def test_stop__is_0(tmp_path: Path) -> None:
    assert run_worker(serving(), ProcessLog(tmp_path, "w")) == 0


@pytest.mark.parametrize(("error", "code"), [(RunFailed("no engine"), EXIT_FAILED), (EnvironmentFault("no engine"), 2)])
def test_run_that_can_t_go_on__is_a_final_code_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    assert run_worker(serving(error), ProcessLog(tmp_path, "w")) == code
    assert code in FINAL_CODES
    assert capsys.readouterr().err == "agentrl: no engine\n"
    assert '"error": "no engine"' in (tmp_path / "w.jsonl").read_text()


def test_anything_else__is_raised_and_logged_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        run_worker(serving(LookupError("lost")), ProcessLog(tmp_path, "w"))
    assert "Traceback" in (tmp_path / "w.jsonl").read_text()
