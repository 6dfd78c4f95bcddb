"""A base file system from the distribution's own packages, for machines that reach no container registry.

The archive is cached under a hash of its recipe. Which mirror is used is read from apt's configuration at run time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from sandboxes.contract import SandboxUnavailable

_PACKAGES = ("python3",)
_OPTIONS = (
    "--variant=essential",
    f"--include={','.join(_PACKAGES)}",
    '--aptopt=APT::Install-Recommends "false"',
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)
_LIMIT_S = 900


def bootstrap() -> tuple[Path, str]:
    """The archive (made in one to two minutes when it is not cached) and its recipe's hash."""
    codename = _codename()
    recipe = hashlib.sha256(repr((_OPTIONS, codename, platform.machine())).encode()).hexdigest()[:16]
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    archive = directory / f"base-{codename}-{recipe}.tar"
    with open(directory / "bootstrap.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _build(archive, codename)
    return archive, recipe


def cache_directory() -> Path:
    """Where archives are kept: /var/cache/agentrl for root, ~/.cache/agentrl otherwise."""
    if os.geteuid() == 0:
        return Path("/var/cache/agentrl")
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl"


def _build(archive: Path, codename: str) -> None:
    if shutil.which("mmdebstrap") is None:
        raise SandboxUnavailable("mmdebstrap is not installed (as root: scripts/install-docker.sh)")
    partial = archive.with_suffix(".partial.tar")
    command = ["mmdebstrap", "--quiet", *_OPTIONS, codename, str(partial), "-"]
    try:
        made = subprocess.run(command, input=_sources(codename), capture_output=True, text=True, timeout=_LIMIT_S)
        if made.returncode != 0:
            raise SandboxUnavailable(f"mmdebstrap failed: {made.stderr.strip()[-800:]}")
        partial.rename(archive)
    except subprocess.TimeoutExpired:
        raise SandboxUnavailable(f"mmdebstrap took longer than {_LIMIT_S} s") from None
    finally:
        partial.unlink(missing_ok=True)


def _codename() -> str:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    codename = values.get("VERSION_CODENAME", "").strip('"')
    if not codename or shutil.which("apt-get") is None:
        raise SandboxUnavailable("no container registry can be reached and this is no Debian-like system to make a base from")
    return codename


def _sources(codename: str) -> str:
    """The distribution's own lines of apt's sources; those of third parties name other releases."""
    formatted = "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", formatted, "Created-By: Packages"], capture_output=True, text=True, timeout=60
    )
    lines = sorted({line for line in listed.stdout.splitlines() if f" {codename}" in line})
    if not lines:
        raise SandboxUnavailable("apt knows no package lists; run apt-get update")
    return "\n".join(lines) + "\n"
