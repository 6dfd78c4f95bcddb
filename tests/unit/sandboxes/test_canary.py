"""The canary sees what an episode left, and nothing of the host around it."""

from __future__ import annotations

import os
from pathlib import Path

from sandboxes.agent import canary

LOCKS = """\
1: POSIX  ADVISORY  WRITE 17 00:2a:3 0 EOF
1: -> POSIX  ADVISORY  WRITE 18 00:2a:3 0 EOF
2: FLOCK  ADVISORY  READ 17 00:2a:4 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fe:00:2138572 0 EOF
4: LEASE  ACTIVE    READ -1 fe:00:2138573 0 EOF
"""


def test_locks_of_open_files_of_the_host__are_not_counted() -> None:
    assert canary._count_locks(LOCKS) == 3
    assert canary._count_locks("") == 0


def test_file_left_in_a_place__is_a_difference(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = canary.observe({"/workspace": place}, [os.getpid()], [])
    assert canary.differences(before, canary.observe({"/workspace": place}, [os.getpid()], [])) == []
    (tmp_path / "left").touch()
    after = canary.observe({"/workspace": place}, [os.getpid()], [4711])
    assert canary.differences(before, after) == ["place /workspace", "processes"]
    os.close(place)
