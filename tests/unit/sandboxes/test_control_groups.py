"""Where control groups are looked for, over a tree of plain files that behaves as the kernel's does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sandboxes import cgroups
from sandboxes.agent.memory import OomKills
from sandboxes.contract import SandboxSpec

FILES = (
    "cgroup.procs", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.max", "memory.limit_in_bytes", "memory.max",
    "memory.swap.max", "pids.max",
)  # fmt: skip
"""Without memory.memsw.limit_in_bytes, as on a kernel that does not count swap."""

SPEC = SandboxSpec(memory_mb=300, pids=50, cpus=0.5)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """New directories get the files of a group; only what the parent delegates is available in them."""
    make = Path.mkdir

    def mkdir(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        make(path, mode, parents, exist_ok)
        delegated = path.parent / "cgroup.subtree_control"
        if delegated.is_file():
            (path / "cgroup.controllers").write_text(delegated.read_text().replace("+", ""))
        for name in FILES:
            (path / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", lambda path: shutil.rmtree(path))


def hierarchy(monkeypatch: pytest.MonkeyPatch, mounts: list[tuple[str, str, str, list[str]]], own: dict[str, str]) -> None:
    monkeypatch.setattr(cgroups, "_cgroup_mounts", lambda: mounts)
    monkeypatch.setattr(cgroups, "_own_paths", lambda: list(own.items()))


def test_oom_kills__as_both_versions_write_them(tmp_path: Path) -> None:
    first, second, none = (tmp_path / name for name in ("first", "second", "none"))
    for group in (first, second, none):
        group.mkdir()
    (first / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (second / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n")
    (none / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert [cgroups.oom_kills([tmp_path, group]) for group in (first, second, none)] == [3, 1, 0]
    assert cgroups.oom_kills([]) == 0
    files = (first / "memory.oom_control", second / "memory.events", none / "memory.oom_control")
    assert [OomKills([str(tmp_path / "gone"), str(file)]).count() for file in files] == [3, 1, 0]
    assert OomKills([]).count() == 0


def test_version_2_with_a_busy_own_group__uses_the_top(kernel: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "user.slice"
    own.mkdir()
    for directory in (tmp_path, own):
        (directory / "cgroup.controllers").write_text("cpuset cpu io memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (own / "cgroup.subtree_control").mkdir()  # cannot be written, as when the group has processes
    hierarchy(monkeypatch, [("cgroup2", "/", str(tmp_path), [])], {"": "/user.slice"})
    groups = cgroups.ControlGroups()
    assert groups.enforced == {"memory", "pids", "cpu"}
    (made,) = groups.create(SPEC)
    assert made.parent == tmp_path
    limits = {name: (made / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")}
    assert limits == {"memory.max": str(300 << 20), "memory.swap.max": "0", "pids.max": "58", "cpu.max": "50000 100000"}


def test_version_1__uses_the_own_group_of_each_controller(
    kernel: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounts = []
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name / "job").mkdir(parents=True)
        mounts.append(("cgroup", "/", str(tmp_path / name), ["rw", name]))
    hierarchy(monkeypatch, mounts, {"memory": "/job", "pids": "/job", "cpu": "/job"})
    groups = cgroups.ControlGroups()
    assert groups.enforced == {"memory", "pids", "cpu"}
    made = groups.create(SPEC)
    assert {group.parent for group in made} == {tmp_path / name / "job" for name in ("memory", "pids", "cpu")}
    written = {file.name: file.read_text() for group in made for file in group.iterdir() if file.read_text()}
    assert written["memory.limit_in_bytes"] == str(300 << 20)
    assert written["pids.max"] == "58"
    assert written["cpu.cfs_quota_us"] == "50000"


def test_two_providers_of_a_process__make_groups_of_different_names(
    kernel: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memory" / "job").mkdir(parents=True)
    hierarchy(monkeypatch, [("cgroup", "/", str(tmp_path / "memory"), ["rw", "memory"])], {"memory": "/job"})
    made = [group for groups in (cgroups.ControlGroups(), cgroups.ControlGroups()) for group in groups.create(SPEC)]
    assert len(set(made)) == 2


def test_nothing_writable__enforces_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hierarchy(monkeypatch, [("cgroup2", "/", str(tmp_path / "missing"), [])], {"": "/"})
    groups = cgroups.ControlGroups()
    assert groups.enforced == frozenset()
    assert groups.create(SPEC) == []


def test_this_machine__tables_are_read() -> None:
    assert all(len(pair) == 2 for pair in cgroups._own_paths())
    assert all(kind in ("cgroup", "cgroup2") for kind, _, _, _ in cgroups._cgroup_mounts())
