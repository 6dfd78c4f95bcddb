"""Specs that mean nothing are refused; the others become limits."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import pytest

from sandboxes.contract import Capabilities, SandboxSpec, SandboxUnsupported
from sandboxes.limits import check_enforceable, command_limits, tmpfs_options


class Some:
    """A provider as far as it matters here."""

    name = "docker"

    def __init__(self, snapshots: bool = True) -> None:
        self.capabilities = Capabilities(True, True, True, True, True, True, snapshots=snapshots)


@pytest.mark.parametrize(
    "change",
    [
        {"memory_mb": 200},
        {"memory_mb": "512"},
        {"memory_mb": True},
        {"tmp_mb": 0.5},
        {"ttl_s": float("inf")},
        {"cpus": "2"},
        {"pids": 0},
        {"cpus": 0.0},
        {"ttl_s": -1.0},
        {"idle_s": float("nan")},
        {"workspace_mb": 0},
        {"setup_timeout_s": 0.0},
        {"workdir": "relative"},
        {"workdir": "/a/../etc"},
        {"setup": "echo not a tuple"},
    ],
)
def test_impossible_spec__is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(SandboxUnsupported, match=f"docker: {next(iter(change))}"):
        check_enforceable(replace(SandboxSpec(), **change), Some())


def test_setup_without_snapshots__is_refused() -> None:
    spec = SandboxSpec(setup=("echo",))
    check_enforceable(spec, Some())
    with pytest.raises(SandboxUnsupported, match="setup"):
        check_enforceable(spec, Some(snapshots=False))


def test_default_spec__becomes_limits() -> None:
    spec = SandboxSpec()
    check_enforceable(spec, Some())
    assert command_limits(spec)[resource.RLIMIT_CORE] == 0
    assert tmpfs_options(spec)["/workspace"] == "mode=1777,size=64m,nr_inodes=20480"
