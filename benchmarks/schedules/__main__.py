"""``python -m benchmarks.schedules [NAME ...] [--quick]``"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.runner import given, module

MEASUREMENTS = {
    "pace": "each schedule on one trace: wall time, idle shares, what was dropped or carried over, lags",
    "refresh": "loading every 1st, 3rd, 5th version: share of loads, rollouts that stand still, lag",
    "reward": "the same intervals with a model that learns: reward after equal numbers of trajectories",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Each measurement prints its own table."""
    asked = given("schedules", MEASUREMENTS, arguments)
    for name in asked.names:
        print(flush=True)
        module("schedules", name).measure(asked.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
