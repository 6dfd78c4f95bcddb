"""Writes docs/reference/queries.md, every saved query and every view with an example: `python scripts/query_page.py URL RUN`.

The results are those of the run RUN in the database at URL; a view that is empty there shows its columns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.cli.trajectory_text import visible
from agentrl.store.reader import Answer, Reader
from agentrl.store.saved_queries import saved_queries

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "queries.md"
ROWS = 3
WIDTH = 130
CELL = 60
VIEWS = {
    "v_runs": ("Which runs wait for their trainer?",
               "select run_name, status, step, policy_version, trainer, running, ready, leased from agentrl.v_runs\n"
               "where running + ready > 0 or trainer is not null or status <> 'running'\norder by created_at desc"),
    "v_conservation": ("Do the books of every run balance?",
                       "select run_name, created, consumed, dropped, created - consumed - dropped as in_work, holds\n"
                       "from agentrl.v_conservation\norder by run"),
    "v_stuck": ("What waits longest, by place?",
                "select place, why, count(*) as trajectories, max(waiting_s) as longest_s from agentrl.v_stuck\n"
                "where run = agentrl.find_run_v1('latest')\ngroup by place, why\norder by longest_s desc"),
    "v_dropped_by_reason": ("What share of the dropped comes from each reason?",
                            "select reason, from_place, trajectories, example from agentrl.v_dropped_by_reason\n"
                            "where run = agentrl.find_run_v1('latest')\norder by trajectories desc"),
    "v_staleness": ("In which steps was the data oldest?",
                    "select step, trajectories, mean_lag, p95_lag, max_lag, lag_bound from agentrl.v_staleness\n"
                    "where run = agentrl.find_run_v1('latest')\norder by mean_lag desc, step"),
    "v_reward_by_task": ("Which tasks are never solved?",
                         "select task_id, episodes, graded, mean_reward, spread, success from agentrl.v_reward_by_task\n"
                         "where run = agentrl.find_run_v1('latest') and purpose = 'train'\norder by success nulls first, mean_reward, task_id"),
    "v_groups": ("Which groups lose seats?",
                 "select grp, task_id, state, size, attempts, failed, mean_reward, step from agentrl.v_groups\n"
                 "where run = agentrl.find_run_v1('latest')\norder by failed desc, created_at"),
    "v_zero_variance": ("Which steps trained groups that teach nothing?",
                        "select step, count(*) as groups, avg(reward) as mean_reward from agentrl.v_zero_variance\n"
                        "where run = agentrl.find_run_v1('latest')\ngroup by step\norder by step"),
    "v_tool_errors": ("Which tool fails most often?",
                      "select tool, calls, errors, error_share, mean_s, example from agentrl.v_tool_errors\n"
                      "where run = agentrl.find_run_v1('latest')\norder by error_share desc nulls last"),
    "v_stop_reasons": ("How do training episodes end?",
                       "select termination, outcome, trajectories, share, mean_segments, mean_reward from agentrl.v_stop_reasons\n"
                       "where run = agentrl.find_run_v1('latest') and purpose = 'train'\norder by trajectories desc"),
    "v_token_mismatch": ("Does anything stored disagree with itself? No rows: nothing does.",
                         "select trajectory, seg, problem from agentrl.v_token_mismatch\n"
                         "where run = agentrl.find_run_v1('latest')"),
    "v_step_timing": ("In which steps did the trainer wait most?",
                      "select step, wall_s, wait_s, wait_share, train_s, tokens_per_s, data_age_s from agentrl.v_step_timing\n"
                      "where run = agentrl.find_run_v1('latest')\norder by wait_s desc nulls last"),
    "v_workers": ("Who is silent?",
                  "select worker, role, holds, last_seen, silent_s, lapsed from agentrl.v_workers\n"
                  "where run = agentrl.find_run_v1('latest')\norder by silent_s desc"),
    "v_grader_disagreement": ("Which verdicts were changed after the trajectory was trained?",
                              "select trajectory, task_id, graders, first_reward, newest_reward, step\n"
                              "from agentrl.v_grader_disagreement\n"
                              "where run = agentrl.find_run_v1('latest') and step is not null"),
}  # fmt: skip
_INTRODUCTION = """# Saved queries and views

Made by `scripts/query_page.py`: each saved query and each view for people, with an example and what it gave on a small simulated run
of four steps. Results are cut to their first rows. The columns are explained on the [schema page](schema.md), [Debug with SQL](../howto/debug-with-sql.md) says
which of them to use when.

## Saved queries

All take `--run NAME` (or `latest`; without it they span all runs), `--json`, `--csv` and `--limit N`.
"""


def page(reader: Reader, run: str) -> str:
    """The whole page, with the results of that run."""
    return "\n".join([_INTRODUCTION, *_queries(reader, run), "## Views\n", *_views(reader)]).rstrip() + "\n"


def _queries(reader: Reader, run: str) -> Iterator[str]:
    newest = reader.saved("latest_trajectory", run=run).result.rows
    for query in saved_queries().values():
        given: dict[str, Any] = {"run": run} if "run" in query.parameters else {}
        command = f"agentrl db query {query.name}"
        if "trajectory" in query.parameters:
            given["trajectory"] = str(newest[0][1])
            command += f" {newest[0][1]}"
        else:
            command += " --run latest"
        yield f"### {query.name}\n\n{query.purpose}\n\n```\n{command}\n```\n"
        yield result(reader.saved(query.name, ROWS, **given))


def _views(reader: Reader) -> Iterator[str]:
    for name, (question, statement) in VIEWS.items():
        yield f"### {name}\n\n{question}\n\n```sql\n{statement}\nlimit {ROWS};\n```\n"
        yield result(reader.ask(f"{statement}\nlimit {ROWS}"))


def result(answer: Answer) -> str:
    """Rows as a block of text; one below another where they are too wide."""
    columns = list(answer.result.columns)
    rows = [[_cell(value) for value in row] for row in answer.result.rows]
    widths = [max(len(name), *(len(row[i]) for row in rows), 0) for i, name in enumerate(columns)]
    if sum(widths) + 2 * len(widths) <= WIDTH or not rows:
        lines = [_line(columns, widths), *(_line(row, widths) for row in rows)]
    else:
        name_width = max(map(len, columns))
        lines = [f"{name:<{name_width}}  {value}".rstrip() for name, value in zip(columns, rows[0], strict=True)]
    return "```\n" + "\n".join(lines) + "\n```\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else visible(str(value))
    return text if len(text) <= CELL else text[: CELL - 3] + "..."


def main() -> None:
    """Write the page."""
    url, run = sys.argv[1:]
    reader = Reader(url)
    try:
        PAGE.write_text(page(reader, run), encoding="utf-8")
    finally:
        reader.close()


if __name__ == "__main__":
    main()
