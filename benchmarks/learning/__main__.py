"""``python -m benchmarks.learning EXPERIMENT [--seeds 0,1,2] [--steps N] [--results FILE] [--quick]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.config.presets import PRESETS
from benchmarks.learning.cells import EXPERIMENTS, Cell
from benchmarks.learning.report import curves, each_run, over_seeds
from benchmarks.learning.results import Results
from benchmarks.learning.running import CellFailed, run_cell
from benchmarks.report import machine

SEEDS = (0, 1, 2)
RUN_MINUTES = 3.5
"""Of a run of the default length on two cores, warm start and both evaluations included."""
_WHOLE = ("evaluation.every=0",)
_QUICK = (
    "trainer.steps=3", "trainer.batch=16", "warm_start.demonstrations=60", "warm_start.steps=60", "evaluation.episodes=8",
    "evaluation.every=0", "sandbox.pool_size=4", "rollout.concurrency=32",
)  # fmt: skip
_QUICK_CRITIC = ("algorithm.critic.warmup_batches=1",)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    seeds = given.seeds[:1] if given.quick else given.seeds
    try:
        results = Results(given.results)
    except ValueError as error:
        parser.error(str(error))
    cells = [cell for seed in seeds for cell in EXPERIMENTS[given.experiment].cells(seed) if given.only in (None, cell.label)]
    if not cells:
        parser.error(f"no cell {given.only!r}; there are: {'; '.join(c.label for c in EXPERIMENTS[given.experiment].cells(0))}")
    print(f"Machine: {machine()}\n", flush=True)
    rows: dict[str, list[dict[str, Any]]] = {}
    failures = []
    for number, cell in enumerate(cells, 1):
        try:
            row = _measured(cell, _size(cell, given.steps, given.quick), results, f"{number}/{len(cells)} {cell.label}")
        except CellFailed as failure:
            print(f"  {failure}", flush=True)
            failures.append(cell)
        else:
            rows.setdefault(cell.label, []).append({"seed": cell.seed, **row})
    print("\n" + each_run(rows))
    if len(seeds) > 1:
        print("\n" + over_seeds(rows))
    print("\n" + curves(rows))
    if failures:
        print(f"\n{len(failures)} of {len(cells)} runs failed. The same command tries them again.")
    return 1 if failures else 0


def _measured(cell: Cell, size: Sequence[str], results: Results, title: str) -> dict[str, Any]:
    key = [cell.control or "agentrl", *cell.arguments(size)]
    if (known := results.find(key)) is not None:
        print(f"{title}, seed {cell.seed}: measured before", flush=True)
        return known
    print(f"{title}, seed {cell.seed}: running", flush=True)
    row = run_cell(cell, size, results.path.with_suffix(".logs"))
    results.add(key, row)
    return row


def _size(cell: Cell, steps: int | None, quick: bool) -> list[str]:
    critic = PRESETS[cell.preset].values.get("algorithm.critic", True) is not None
    size = [*_QUICK, *(_QUICK_CRITIC if critic else ())] if quick else list(_WHOLE)
    if steps is None:
        return size
    return [*(setting for setting in size if not setting.startswith("trainer.steps=")), f"trainer.steps={steps}"]


def _parser() -> argparse.ArgumentParser:
    listed = []
    for name, experiment in EXPERIMENTS.items():
        runs = len(experiment.cells(0))
        hours = runs * len(SEEDS) * RUN_MINUTES / 60
        listed.append(f"  {name:10s}{experiment.what};\n{'':12s}{runs} runs a seed, {hours:.1f} hours for {len(SEEDS)} seeds")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning",
        description=f"Trains the default task again and again, one run at a time, and reads the numbers from the store.\n"
        f"A run of the default length takes about {RUN_MINUTES} minutes on two otherwise idle cores. Experiments:\n"
        + "\n".join(listed)
        + "\nRuns with the same settings are shared between experiments. A finished run is a line of the results file; the\n"
        "same command goes on after it, so it may be interrupted at any time. Another version of the code: another file.\n"
        "The rows of the runs stay in the store and their logs in the runs folder; weights and checkpoints are removed.\n"
        "CPU seconds are those of trainer, rollout and evaluation processes after the warm start: what runs in sandboxes and\n"
        "in the database is not in them. Wall seconds count from the first weights to the last step. Memory is the most that\n"
        "all processes, sandboxes included and the database not, were seen to have together, looked at every 10 seconds.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", choices=EXPERIMENTS, metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--seeds", type=_numbers, default=list(SEEDS), help="seeds, e.g. 0,1,2 (the default)")
    parser.add_argument("--steps", type=int, help="steps of each run (default: the preset's)")
    parser.add_argument("--only", metavar="LABEL", help="only this cell, as the tables name it")
    parser.add_argument(
        "--results", type=Path, default=Path("learning-results.jsonl"), metavar="FILE",
        help="results file (default: %(default)s); what the runs print goes into a folder beside it",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="tiny runs of one seed: checks the script, measures nothing")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("Interrupted. The same command goes on with the run that was not finished.")
        sys.exit(130)
