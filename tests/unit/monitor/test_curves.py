"""Curves hold the numbers of the steps, under the same tags in every run, and only once."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tensorboardX.proto import event_pb2

from agentrl.errors import NotReadyError
from agentrl.monitor.curves import Curves, tag

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def scalars(folder: Path) -> Iterator[tuple[str, int, float, float]]:
    """Tag, step, value and time of each scalar, as the files hold them."""
    for file in sorted(folder.iterdir()):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                yield value.tag, event.step, value.simple_value, event.wall_time


def test_numbers__come_back_with_step_and_time(tmp_path: Path) -> None:
    curves = Curves(tmp_path)
    curves.add(7, AT, {"reward_mean": 0.5, "lag_max": 2, "mine": -1.5, "text": "x", "flag": True, "nothing": None})
    curves.score(7, AT, "heldout", 0.75)
    curves.close()
    assert set(scalars(tmp_path)) == {
        ("1_quality/reward_mean", 7, 0.5, AT.timestamp()),
        ("4_data/lag_max", 7, 2.0, AT.timestamp()),
        ("other/mine", 7, -1.5, AT.timestamp()),
        ("1_quality/heldout_success", 7, 0.75, AT.timestamp()),
    }


def test_written_again__replaces_its_own_files_and_no_others(tmp_path: Path) -> None:
    other = tmp_path / "events.out.tfevents.1.host"
    other.write_bytes(b"")
    for value in (1.0, 2.0):
        curves = Curves(tmp_path)
        curves.add(1, AT, {"entropy": value})
        curves.close()
    assert other.exists()
    assert [value for _, _, value, _ in scalars(tmp_path)] == [2.0]


def test_infinity__is_written_as_such(tmp_path: Path) -> None:
    curves = Curves(tmp_path)
    curves.add(1, AT, {"entropy": math.inf})
    curves.close()
    assert [value for _, _, value, _ in scalars(tmp_path)] == [math.inf]


@pytest.mark.parametrize(("metric", "expected"), [("wait_s", "5_time/wait_s"), ("kept_lag_0", "other/kept_lag_0")])
def test_tag__has_a_part_by_what_is_looked_at_first(metric: str, expected: str) -> None:
    assert tag(metric) == expected


def test_package_that_is_missing__is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(NotReadyError, match="pip install tensorboardX"):
        Curves(tmp_path)


def test_folder_that_can_t_be_written__is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReadyError, match="file/run can't be written"):
        Curves(tmp_path / "file" / "run")
