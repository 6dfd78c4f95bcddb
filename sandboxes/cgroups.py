"""Control groups, versions 1 and 2: memory, process and CPU limits for providers that start processes themselves.

Groups are named after their owner, so that those of a dead owner can be told and removed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from sandboxes.contract import SandboxSpec
from sandboxes.ownership import Owner

CONTROLLERS = ("memory", "pids", "cpu")
_OWN_PROCESSES = 8
"""Processes of a sandbox that are not the workload's."""
_PERIOD_US = 100_000
_REMOVAL_S = 2.0
_numbers = itertools.count()
"""Of the groups of this process, whichever provider makes them."""


@dataclass(frozen=True)
class _Parent:
    directory: Path
    version: int
    controllers: tuple[str, ...]


class ControlGroups:
    """Where groups can be made, and with which controllers; nothing at all is a possible answer."""

    def __init__(self) -> None:
        self._owner = Owner.current()
        self._parents = _usable_parents()
        self.enforced = frozenset(name for parent in self._parents for name in parent.controllers)

    def create(self, spec: SandboxSpec) -> list[Path]:
        """Groups with the limits of a spec, one a hierarchy."""
        name = f"{self._owner.prefix}{next(_numbers)}"
        groups = []
        for parent in self._parents:
            group = parent.directory / name
            group.mkdir()
            groups.append(group)
            for file, value in _limits(spec, parent):
                # Not to be created: a kernel without swap accounting lacks one.
                with contextlib.suppress(FileNotFoundError), open(group / file, "r+") as limit:
                    limit.write(value)
        return groups

    def sweep(self) -> int:
        """Remove groups whose owner, a process of this host, is dead. Returns how many."""
        removed = 0
        for parent in self._parents:
            for group in parent.directory.iterdir():
                owner = Owner.parse(group.name)
                if owner is not None and owner.certainly_dead():
                    with contextlib.suppress(OSError):
                        group.rmdir()
                        removed += 1
        return removed


def oom_kills(groups: list[Path]) -> int:
    """How many processes of these groups the kernel has killed for memory; 0 where it does not count them."""
    for file in (group / name for group in groups for name in ("memory.oom_control", "memory.events")):
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split(" ", 1) for line in file.read_text().splitlines())
            return int(counts["oom_kill"]) if "oom_kill" in counts else 0
    return 0


def remove(groups: list[Path]) -> None:
    """Remove groups once their processes are gone; gives up after two seconds (the sweep will find them)."""
    give_up = time.monotonic() + _REMOVAL_S
    for group in groups:
        while group.exists() and time.monotonic() < give_up:
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.01)


def _limits(spec: SandboxSpec, parent: _Parent) -> list[tuple[str, str]]:
    memory, pids = str(spec.memory_mb << 20), str(spec.pids + _OWN_PROCESSES)
    quota = str(int(spec.cpus * _PERIOD_US))
    if parent.version == 2:
        table = {
            "memory": [("memory.max", memory), ("memory.swap.max", "0")],
            "pids": [("pids.max", pids)],
            "cpu": [("cpu.max", f"{quota} {_PERIOD_US}")],
        }
    else:
        table = {
            "memory": [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)],
            "pids": [("pids.max", pids)],
            "cpu": [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", quota)],
        }
    return [limit for controller in parent.controllers for limit in table[controller]]


def _usable_parents() -> list[_Parent]:
    own = dict(_own_paths())
    parents: list[_Parent] = []
    found: set[str] = set()
    for kind, root, mount_point, options in _cgroup_mounts():
        offered = ("",) if kind == "cgroup2" else tuple(name for name in CONTROLLERS if name in options)
        for controller in offered:
            path = own.get(controller)
            if path is None:
                continue
            inside = Path(mount_point) / os.path.relpath(path, root)
            candidates = [inside] if kind == "cgroup" else [inside, Path(mount_point)]
            for directory in candidates:
                usable = _probe(directory, kind, controller)
                fresh = tuple(name for name in usable if name not in found)
                if fresh:
                    found.update(fresh)
                    parents.append(_Parent(directory, 2 if kind == "cgroup2" else 1, fresh))
                    break
    return parents


def _probe(directory: Path, kind: str, controller: str) -> tuple[str, ...]:
    """Which controllers a group made here would have."""
    trial = directory / f"{Owner.current().prefix}trial"
    try:
        if kind == "cgroup2":
            available = (directory / "cgroup.controllers").read_text().split()
            wanted = [name for name in CONTROLLERS if name in available]
            with contextlib.suppress(OSError):
                (directory / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
        trial.mkdir(exist_ok=True)
        try:
            if kind == "cgroup2":
                enabled = (trial / "cgroup.controllers").read_text().split()
                return tuple(name for name in CONTROLLERS if name in enabled)
            return (controller,) if os.access(trial / "cgroup.procs", os.W_OK) else ()
        finally:
            trial.rmdir()
    except OSError:
        return ()


def _own_paths() -> list[tuple[str, str]]:
    """Controller ("" for version 2) and our group's path in its hierarchy."""
    pairs = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        pairs += [(controller, path) for controller in controllers.split(",")]
    return pairs


def _cgroup_mounts() -> list[tuple[str, str, str, list[str]]]:
    """Type, root, mount point and super block options of each mounted hierarchy."""
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            fields = before.split()
            mounts.append((kind, fields[3], fields[4], options.split(",")))
    return mounts
