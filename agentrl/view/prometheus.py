"""What Prometheus scrapes: gauges of the runs that go on, made from the views of the pages when it asks.

Of a run that has ended nothing is left but its place in the number of runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrl.view.asking import Asked

MEDIA_TYPE = CONTENT_TYPE_LATEST
MOST_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class _Gauge:
    """``sql`` gives a column for each label and the column ``value``; rows without a value are left out."""

    name: str
    meaning: str
    labels: tuple[str, ...]
    sql: LiteralString

    def read(self, asked: Asked) -> Metric:
        family = GaugeMetricFamily(self.name, self.meaning, labels=self.labels)
        for row in asked.rows(self.sql, MOST_ROWS):
            if row["value"] is not None:
                family.add_metric([_label(row[label]) for label in self.labels], float(row["value"]))
        return family


def _label(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_GAUGES = (
    _Gauge(
        "agentrl_runs", "Runs by status.", ("status",),
        "select status, count(*) as value from v_runs group by status order by status limit {limit}",
    ),
    _Gauge(
        "agentrl_step", "Last committed step of the live history.", ("run",),
        "select run_name as run, step as value from v_runs where status = 'running' order by run limit {limit}",
    ),
    _Gauge(
        "agentrl_policy_updates", "Policy updates after that step.", ("run",),
        "select run_name as run, updates as value from v_runs where status = 'running' order by run limit {limit}",
    ),
    _Gauge(
        "agentrl_policy_version", "Newest published version.", ("run",),
        "select run_name as run, policy_version as value from v_runs where status = 'running' order by run limit {limit}",
    ),
    _Gauge(
        "agentrl_step_age_seconds", "Seconds since the last step was committed.", ("run",),
        """
        select run_name as run, extract(epoch from now() - last_step_at) as value
        from v_runs where status = 'running' order by run limit {limit}
        """,
    ),
    _Gauge(
        "agentrl_trajectories", "Training trajectories in each place; together they are all that were created.",
        ("run", "place"),
        """
        select c.run_name as run, p.place, p.value
        from v_runs r join v_conservation c on c.run = r.run
        cross join lateral (values ('live', c.live), ('grade_job', c.grade_job), ('graded', c.graded), ('ready', c.ready),
          ('lease', c.lease), ('consumed', c.consumed), ('dropped', c.dropped)) p (place, value)
        where r.status = 'running' order by run, place limit {limit}
        """,
    ),
    _Gauge(
        "agentrl_dropped", "Dropped trajectories by reason.", ("run", "purpose", "reason"),
        """
        select d.run_name as run, d.purpose, d.reason, sum(d.trajectories) as value
        from v_runs r join v_dropped_by_reason d on d.run = r.run
        where r.status = 'running' group by d.run_name, d.purpose, d.reason order by run, purpose, reason limit {limit}
        """,
    ),
    _Gauge(
        "agentrl_step_metric", "Numbers of the newest step, such as reward_mean, entropy, lag_mean or wait_s.",
        ("run", "metric"),
        """
        select r.run_name as run, m.key as metric, agentrl.finite(agentrl.number(s.metrics, m.key)) as value
        from v_runs r join step s on s.run = r.run and s.step = r.step and s.abandoned_by is null
        cross join lateral jsonb_object_keys(s.metrics) m (key)
        where r.status = 'running' order by run, metric limit {limit}
        """,
    ),
    _Gauge(
        "agentrl_evaluation_success", "Share of successes of the newest finished evaluation.", ("run", "split"),
        """
        select distinct on (r.run_name, e.split) r.run_name as run, e.split, e.successes::float8 / nullif(e.graded, 0) as value
        from v_runs r join evaluation_score e on e.run = r.run and e.finished
        where r.status = 'running' order by r.run_name, e.split, e.evaluation desc limit {limit}
        """,
    ),
    _Gauge(
        "agentrl_workers", "Processes that gave a sign of life within ten minutes.", ("run", "role"),
        """
        select w.run_name as run, w.role, count(*) as value from v_runs r join v_workers w on w.run = r.run
        where r.status = 'running' and w.silent_s < 600 group by w.run_name, w.role order by run, role limit {limit}
        """,
    ),
    _Gauge(
        "agentrl_alert", "1 for each alert that holds at the newest step.", ("run", "alert", "severity"),
        """
        select r.run_name as run, a.alert, a.severity, 1 as value
        from v_runs r cross join lateral alerts_since(r.run, r.step - 1000) a
        where r.status = 'running' and a.active order by run, alert limit {limit}
        """,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Read(Collector):
    families: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def exposition(asked: Asked) -> bytes:
    """All gauges in Prometheus' text format."""
    return bytes(generate_latest(_Read([gauge.read(asked) for gauge in _GAUGES])))
