"""Starts an SGLang server. SGLang's own interpreter runs this file by its path; nothing of this library is imported.

Arguments are those of ``sglang.launch_server``. The server starts once the folder after ``--model-path`` exists, so that the
imports may be over when a trainer has made the model. With ``AGENTRL_PARENT`` it ends with the process of that id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
POLL_S = 0.2


def end_with_parent(number: int, parent: int) -> None:
    """Ask the kernel for this signal when the parent ends; covers a parent that is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


# Processes that the server spawns import this file again, first of all.
if __name__ == "__mp_main__":
    end_with_parent(signal.SIGKILL, int(os.environ["AGENTRL_SERVER"]))
if "cpu" in sys.argv:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
if os.environ.get("SGLANG_USE_CPU_ENGINE"):
    import stand_ins

    stand_ins.install()


def wait_for_model(arguments: list[str]) -> None:
    model = Path(arguments[arguments.index("--model-path") + 1])
    while not (model / "config.json").is_file():
        time.sleep(POLL_S)


def main() -> None:
    parent = os.environ.pop("AGENTRL_PARENT", None)
    if parent is not None:
        end_with_parent(signal.SIGTERM, int(parent))
    os.environ["AGENTRL_SERVER"] = str(os.getpid())
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    wait_for_model(sys.argv)
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
