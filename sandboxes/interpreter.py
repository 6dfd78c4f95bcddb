"""Finds a Python for sandboxes made from the host's own system, and what must be visible for it to run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sandboxes.contract import SandboxUnavailable

_ASK = (
    "import json, sys, sysconfig; paths = sysconfig.get_paths();"
    "print(json.dumps([list(sys.version_info[:3]), sys.base_prefix, paths['purelib'], paths['platlib']]))"
)


@dataclass(frozen=True)
class Interpreter:
    """``prefix``: where its libraries are; ``packages``: directories of installed packages, to be hidden."""

    executable: str
    version: tuple[int, int, int]
    prefix: str
    packages: tuple[str, ...]


def find_interpreter() -> Interpreter:
    """The system's python3, else the one that runs us; at least 3.9. `SandboxUnavailable` when there is none."""
    candidates = ["/usr/bin/python3", "/usr/local/bin/python3", getattr(sys, "_base_executable", sys.executable)]
    for candidate in candidates:
        path = Path(candidate)
        if path.exists() and (found := _ask(path.resolve())) is not None and found.version >= (3, 9, 0):
            return found
    raise SandboxUnavailable(f"no Python 3.9 or later among {', '.join(candidates)}; install python3")


def _ask(path: Path) -> Interpreter | None:
    asked = subprocess.run([path, "-I", "-S", "-c", _ASK], capture_output=True, stdin=subprocess.DEVNULL, timeout=30)
    if asked.returncode != 0:
        return None
    version, prefix, pure, plat = json.loads(asked.stdout)
    packages = {pure, plat, "/usr/lib/python3/dist-packages"}
    hidden = tuple(sorted(directory for directory in packages if Path(directory).is_dir()))
    return Interpreter(str(path), tuple(version), prefix, hidden)
