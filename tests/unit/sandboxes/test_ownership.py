"""What may be removed: only what provably belonged to a dead process of this host."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from sandboxes.ownership import Owner


def test_owner__survives_its_name() -> None:
    me = Owner.current()
    assert me.pid == os.getpid()
    assert Owner.parse(me.prefix) == me
    assert Owner.parse(me.prefix + "17") == me
    assert Owner.parse("something-else-1-2-3") is None


def test_living_process__is_not_dead() -> None:
    assert not Owner.current().certainly_dead()


def test_reused_process_id__is_dead() -> None:
    me = Owner.current()
    assert replace(me, started=me.started - 1).certainly_dead()


def test_ended_process__is_dead() -> None:
    code = "from sandboxes.ownership import Owner; print(Owner.current().prefix)"
    owner = Owner.parse(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert owner is not None
    assert owner.certainly_dead()


def test_process_of_another_host__is_never_proved_dead() -> None:
    assert not replace(Owner.current(), host="elsewhere", pid=1 << 22).certainly_dead()
