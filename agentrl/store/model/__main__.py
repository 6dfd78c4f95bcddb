"""``python -m agentrl.store.model [quick|all|NAME]``: one line per configuration; the trace of each that breaks when named."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from agentrl.store.model.configurations import CONFIGURATIONS, Configuration


def main(arguments: Sequence[str]) -> int:
    """Explore what was asked for. 0: all verdicts as expected, 1: not, 2: no such configuration."""
    wanted = arguments[0] if arguments else "quick"
    chosen = [c for c in CONFIGURATIONS if wanted in ("all", c.name) or (wanted == "quick" and c.quick)]
    if not chosen:
        names = ", ".join(c.name for c in CONFIGURATIONS)
        print(f'There is no configuration "{wanted}". Choose quick, all, or one of: {names}', file=sys.stderr)
        return 2
    print(f"{'configuration':<30} {'states':>8} {'seconds':>8}  verdict")
    verdicts = [_report(c, with_trace=wanted == c.name) for c in chosen]
    return 0 if all(verdicts) else 1


def _report(configuration: Configuration, *, with_trace: bool) -> bool:
    began = time.process_time()
    result = configuration.run()
    seconds = time.process_time() - began
    good = configuration.as_expected(result)
    verdict = "; ".join(result.broken) or "holds"
    mark = "" if good else "   <-- NOT EXPECTED"
    print(f"{configuration.name:<30} {result.states:>8} {seconds:>8.1f}  {verdict}{mark}", flush=True)
    for invariant, trace in result.broken.items():
        if with_trace or not good:
            print(f"\n{invariant}:", *(f"  {n + 1}. {label}" for n, label in enumerate(trace)), "", sep="\n")
    return good


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
