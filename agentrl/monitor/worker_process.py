"""The boundary of a worker's process: how it ends becomes an exit code, a line for people and a line in its log."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

from agentrl.errors import EnvironmentFault, RunFailed
from agentrl.monitor.log import ProcessLog

EXIT_FAILED = 5


def run_worker(serving: Coroutine[Any, Any, None], log: ProcessLog) -> int:
    """Exit code 0 after a stop, 5 when the run can't go on, 2 when that is the environment's own doing.

    Anything else is raised: the log keeps the traceback, the launcher the exit code.
    """
    try:
        asyncio.run(serving)
    except (RunFailed, EnvironmentFault) as error:
        log.error("run failed", error=str(error))
        print(f"agentrl: {error}", file=sys.stderr, flush=True)
        return EXIT_FAILED if isinstance(error, RunFailed) else error.exit_code
    except Exception:
        log.error("process failed")
        raise
    return 0
