"""``agentrl tensorboard``: the steps of a run as TensorBoard files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agentrl.cli.session import reader_session, require_run

if TYPE_CHECKING:
    from agentrl.monitor.curves import Curves
    from agentrl.store.reader import Reader

FOLLOW_S = 5.0

_STEPS = """
  select step, at, metrics from agentrl.step
  where run = %s and step > %s and abandoned_by is null order by step limit 1000
"""
_SCORES = """
  select s.evaluation, s.step, coalesce(e.finished_at, now()), s.split, s.successes::float8 / s.graded
  from agentrl.evaluation_score s join agentrl.evaluation e on e.id = s.evaluation
  where s.run = %s and s.evaluation > %s and s.finished and s.graded > 0 order by s.evaluation
"""


def tensorboard(
    folder: Path = typer.Argument(..., metavar="FOLDER", help="Log directory; the run gets a folder of its name in it."),
    run: str = typer.Option("latest", "--run", help="Run name or 'latest'."),
    follow: bool = typer.Option(False, "--follow", help="Go on until the run ends."),
) -> None:
    """Write the steps of a run, and its held-out scores, as TensorBoard files.

    They are made from the store, so they can be made at any time, again, and for runs on other machines. Files that an earlier
    call wrote for the run are replaced.
    """
    from agentrl.monitor.curves import Curves

    with reader_session() as reader:
        row = require_run(reader, run)
        curves = Curves(folder / row.spec.name)
        try:
            step, evaluation = -1, -1
            while True:
                status = require_run(reader, row.spec.name).status  # before the rows, so that none comes after them
                step, evaluation = _write(reader, row.id, curves, step, evaluation)
                if not follow or status != "running":
                    break
                time.sleep(FOLLOW_S)
        finally:
            curves.close()
    print(f"wrote {max(step, 0)} steps of run {row.spec.name} to {folder / row.spec.name}; look: tensorboard --logdir {folder}")


def _write(reader: Reader, run: int, curves: Curves, step: int, evaluation: int) -> tuple[int, int]:
    """Everything after that step and evaluation; returns the newest ones."""
    while found := reader.rows(_STEPS, (run, step)):
        for step, at, metrics in found:
            curves.add(step, at, metrics)
    scores = reader.rows(_SCORES, (run, evaluation))
    for _, of_step, at, split, success in scores:
        curves.score(of_step, at, split, success)
    curves.flush()
    return step, scores[-1][0] if scores else evaluation
