"""Room on the disk is said before a run, and a place that can't be written is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentrl.errors import NotReadyError
from agentrl.launch.disk import free_space


def test_free_space__of_a_folder_that_does_not_exist_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, noted in ((4_900_000_000, True), (5_100_000_000, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(0, 0, free))
        space = free_space(tmp_path / "runs" / "mine")
        assert space.little is noted
        assert str(space).startswith(f"{free / 1e9:.1f} GB free for {tmp_path}/runs/mine")
        assert ("less than 5 GB" in str(space)) is noted


def test_place_that_is_no_folder__refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReadyError, match="file is no folder"):
        free_space(tmp_path / "file" / "runs")
