"""``python -m benchmarks.rollout [NAME ...] [--quick]``"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.runner import given, module, report

MEASUREMENTS = {
    "engine": "tokens a second of the in-process engine against transformers' generate, sequences of unequal length",
    "worker": "CPU and memory of one worker process with 512 concurrent episodes",
    "schedule": "asynchronous against synchronous on the same long-tailed work, for five lag bounds",
}


def main(arguments: Sequence[str] | None = None) -> int:
    asked = given("rollout", MEASUREMENTS, arguments)
    return report(asked.names, lambda name: module("rollout", name).measure(asked.quick), asked.quick)


if __name__ == "__main__":
    sys.exit(main())
