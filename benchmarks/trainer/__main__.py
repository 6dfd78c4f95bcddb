"""``python -m benchmarks.trainer [NAME ...] [--quick]``"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.runner import given, module

MEASUREMENTS = {
    "gae": "skip-observation GAE against the plain Python loop over tokens",
    "layouts": "loss, gradients and weights of every layout over 2 and 4 processes against one",
    "steps": "CPU time of a train step against plain transformers with AdamW; packed against padded rows",
    "trl": "CPU time of a GRPO step on given completions against TRL's trainer, which --peers-python has",
    "memory": "peak memory per token with and without log-probs in chunks",
    "publication": "bytes a second of publishing weights against a copy in memory and a safetensors file",
    "saving": "seconds of a checkpoint, and the interval that keeps saving under 5 % of a run",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Each measurement prints its own table and says whether its targets are met."""
    asked = given("trainer", MEASUREMENTS, arguments, peers=True)
    print()
    options = {"trl": {"peers_python": asked.peers_python}}
    met = [module("trainer", name).measure(asked.quick, **options.get(name, {})) for name in asked.names]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
