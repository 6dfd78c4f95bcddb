"""The trainer's loop over a real store and a real worker, as the benchmark of schedules runs it; and the bounds beside it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from store_bench import Server

from agentrl.store.postgres import PostgresStore
from benchmarks.schedules.__main__ import main
from benchmarks.schedules.ideal import Ideal
from benchmarks.schedules.pace import SCHEDULES
from benchmarks.schedules.timed import Trace, config_of, make_trace, timed_run


def test_script__prints_a_row_for_each_schedule_and_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pace", "refresh", "reward", "--quick"]) == 0
    printed = capsys.readouterr().out
    for row in ("inside the trainer", *SCHEDULES, "1", "3", "5"):
        assert f"| {row} | " in printed


def ideal(schedule: str, trace: Trace) -> Ideal:
    return Ideal(trace, config_of(trace, *SCHEDULES[schedule]).pace, 1).run()


def test_bound__counts_waits_and_overlaps() -> None:
    """Sixteen episodes, of which one takes 10 s and the others 1 s; training takes 8 s and 1 s for the step."""
    seconds = [[10.0], *[[1.0]] * 15] * 3
    trace = Trace(seconds, 16, 2, 16, model_s=0.0, each_s=0.5, step_s=1.0, publish_s=0.0)
    assert ideal("synchronous", trace).now == 2 * (10 + 8 + 1)
    assert ideal("pipelined", trace).now == 2 * (10 + 0.5 + 1)  # only the slow one is left to train on
    late = ideal("drop_last (1/16)", trace)
    assert (late.trained, late.now) == (30, 1 + 8.5 + 1 + 8.5)  # the slow one ends during the first update
    assert ideal("async, lag 1", trace).now < ideal("pipelined", trace).now


def test_bound__what_gets_out_of_range_starts_again_and_nothing_is_generated_beyond_the_last_update() -> None:
    seconds = [[float(s)] for s in (9, 1, 1, 1, 1, 1, 1, 1)]
    trace = Trace(seconds, 1, 4, 4, model_s=0.0, each_s=1.0, step_s=0.0, publish_s=0.0)
    best = ideal("async, lag 1", trace)
    # Beside the long one there is room for one other at a time. After the second update, at 4 s, it is too old and starts
    # again; at 6 s it is all that the last update needs.
    assert (best.dropped, best.trained, best.now) == (1, 4, 4 + 9 + 1)


@pytest.fixture(scope="module")
def url(embedded_server: Server) -> str:
    return embedded_server.database()


SMALL = make_trace(batch=16, steps=2, turns=1, median_s=0.01)


def test_batch_min__on_postgres_an_update_takes_between_fewest_and_most(url: str, tmp_path: Path) -> None:
    trace = replace(SMALL, seconds=[[0.0]] * 64, each_s=0.0)
    found = timed_run(url, tmp_path / "fewer", trace, config_of(trace, "trainer.batch_min=8"))
    with closing(PostgresStore(url)) as store:
        taken = [row["n_trajectories"] for row in store.query("steps", run="fewer").records()]
    assert len(taken) == 2
    assert all(8 <= n <= 16 for n in taken)
    assert found.trained == sum(taken)
    assert max(found.lags) <= 1


def test_drop_last__on_postgres_what_is_late_is_counted_and_nobody_waits_for_it(url: str, tmp_path: Path) -> None:
    trace = replace(SMALL, seconds=[[600.0], *[[0.0]] * 47])
    found = timed_run(url, tmp_path / "late", trace, config_of(trace, *SCHEDULES["drop_last (1/16)"]))
    with closing(PostgresStore(url)) as store:
        rounds = store.query("rounds", run="late").records()
    assert [(r["trained"], r["late"], r["carried_over"], r["share"]) for r in rounds] == [(15, 0, 1, 1 / 16)] * 2
    assert (found.trained, found.dropped, found.lags) == (30, 0, {0: 1.0})
