"""``python -m benchmarks.trainer [NAME ...] [--quick]``"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from benchmarks.store.report import machine

MEASUREMENTS = {
    "gae": "skip-observation GAE against the plain Python loop over tokens",
    "layouts": "loss, gradients and weights of every layout over 2 and 4 processes against one",
    "steps": "CPU time of a train step against plain transformers with AdamW; packed against padded rows",
    "trl": "CPU time of a GRPO step on given completions against TRL's trainer, which --peers-python has",
    "memory": "peak memory per token with and without log-probs in chunks",
    "saving": "seconds of a checkpoint, and the interval that keeps saving under 5 % of a run",
}


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"  {name:12s}{what}" for name, what in MEASUREMENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trainer", description=f"Measurements:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements to take (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and one round: checks the script, measures little")
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH", help="interpreter that has TRL")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"no measurement called {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    print(f"Machine: {machine()}\n", flush=True)
    options = {"trl": {"peers_python": given.peers_python}}
    met = [
        importlib.import_module(f"benchmarks.trainer.{name}").measure(given.quick, **options.get(name, {}))
        for name in given.names or MEASUREMENTS
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
