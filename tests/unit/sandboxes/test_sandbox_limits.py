"""Specs that mean nothing are refused; the others become limits."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest

from sandboxes.contract import SandboxSpec, SandboxUnsupported
from sandboxes.limits import check_enforceable, command_limits, tmpfs_options


@pytest.mark.parametrize(
    "change", [{"memory_mb": 200}, {"pids": 0}, {"cpus": 0.0}, {"ttl_s": -1.0}, {"idle_s": float("nan")}, {"workspace_mb": 0}]
)
def test_impossible_spec__is_refused_by_name(change: dict[str, float]) -> None:
    with pytest.raises(SandboxUnsupported, match=f"docker: {next(iter(change))}"):
        check_enforceable(replace(SandboxSpec(), **change), "docker")  # type: ignore[arg-type]


def test_default_spec__becomes_limits() -> None:
    spec = SandboxSpec()
    check_enforceable(spec, "docker")
    assert command_limits(spec)[resource.RLIMIT_CORE] == 0
    assert tmpfs_options(spec)["/workspace"] == "mode=1777,size=64m,nr_inodes=20480"
