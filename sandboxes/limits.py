"""What a spec means in resource limits and mount options, alike for all providers."""

from __future__ import annotations

import math
import posixpath
import resource
from typing import Protocol

from sandboxes.contract import Capabilities, SandboxSpec, SandboxUnsupported

OPEN_FILES = 1024
_INODES_PER_MB = 320
_OWN_MEMORY_MB = 100
"""What agent and zygote need beside full tmpfs mounts: less, and the kernel might end them for lack of memory."""


class Enforcer(Protocol):
    """What of a provider matters here."""

    name: str
    capabilities: Capabilities


def check_enforceable(spec: SandboxSpec, by: Enforcer) -> None:
    """`SandboxUnsupported` for a spec that no limit can express, or none of this provider's."""
    provider = by.name
    sizes = {"workspace_mb": spec.workspace_mb, "tmp_mb": spec.tmp_mb, "shm_mb": spec.shm_mb, "pids": spec.pids}
    times = {"ttl_s": spec.ttl_s, "idle_s": spec.idle_s, "setup_timeout_s": spec.setup_timeout_s}
    for name, value in {**sizes, "memory_mb": spec.memory_mb, "cpus": spec.cpus, **times}.items():
        kinds = (int, float) if name in (*times, "cpus") else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value < math.inf:
            wanted = "a number" if float in kinds else "a whole number"
            raise SandboxUnsupported(f"{provider}: {name} is {value!r:.100}; it must be {wanted} above 0")
    if not spec.workdir.startswith("/") or posixpath.normpath(spec.workdir) != spec.workdir:
        raise SandboxUnsupported(f"{provider}: workdir is {spec.workdir!r}; give a plain absolute path")
    if isinstance(spec.setup, str):
        raise SandboxUnsupported(f"{provider}: setup is a string; give a tuple of commands")
    if spec.setup and not by.capabilities.snapshots:
        raise SandboxUnsupported(f"{provider} can't keep what setup made as an image; use docker or podman for this spec")
    least = spec.workspace_mb + spec.tmp_mb + spec.shm_mb + _OWN_MEMORY_MB
    if spec.memory_mb < least:
        raise SandboxUnsupported(
            f"{provider}: memory_mb is {spec.memory_mb}; workspace, tmp and shm count as memory, so it must be at least {least}"
        )


def command_limits(spec: SandboxSpec) -> dict[int, int]:
    """Resource limits of each command's processes."""
    return {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_FSIZE: max(spec.workspace_mb, spec.tmp_mb) << 20,
    }


def tmpfs_options(spec: SandboxSpec, *, count_inodes: bool = True) -> dict[str, str]:
    """Mount options of the writable places: sticky and root-owned, sized.

    Inodes cost memory too and are bounded, except for engines that refuse the option: there a flood of empty files may
    exhaust the memory limit, which costs the sandbox.
    """
    sizes = {"/workspace": spec.workspace_mb, "/tmp": spec.tmp_mb, "/dev/shm": spec.shm_mb}
    inodes = {path: f",nr_inodes={mb * _INODES_PER_MB}" if count_inodes else "" for path, mb in sizes.items()}
    return {path: f"mode=1777,size={mb}m{inodes[path]}" for path, mb in sizes.items()}
