"""An alert is told when it begins, and not at every look."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentrl.launch.alerts import TELL_S, Alerts, fired, said
from agentrl.store.contract import QueryResult, TrajectoryStore

COLUMNS = ("alert", "severity", "active", "first_step", "last_step", "steps", "value", "bound", "what", "look")


class Store:
    """Answers the one query that is asked."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def query(self, name: str, **parameters: Any) -> QueryResult:
        assert (name, parameters) == ("alerts", {"run": "mine"})
        return QueryResult(COLUMNS, self.rows)


def alert(steps: int, *, severity: str = "warning", active: bool = True, name: str = "kl") -> tuple[Any, ...]:
    return (name, severity, active, 11, 10 + steps, steps, 0.0612345, 0.05, "It is wrong.", "agentrl db query x --run mine")


def test_alert__is_told_at_its_first_step_and_at_powers_of_ten(capsys: pytest.CaptureFixture[str]) -> None:
    now, store = [0.0], Store()
    alerts = Alerts("mine", clock=lambda: now[0])

    def look(*rows: tuple[Any, ...]) -> list[str]:
        store.rows = list(rows)
        now[0] += TELL_S
        alerts.look(cast(TrajectoryStore, store))
        return capsys.readouterr().out.splitlines()

    assert look() == []
    assert look(alert(1)) == ["  warning kl, step 11: It is wrong. (0.0612, bound 0.05; agentrl db query x --run mine)"]
    assert look(alert(2)) == []
    assert [line.split()[1] for line in look(alert(9), alert(1, name="lag"))] == ["lag,"]
    assert look(alert(12)) == ["  warning kl, steps 11 to 22: It is wrong. (0.0612, bound 0.05; agentrl db query x --run mine)"]
    assert look(alert(99)) == []
    assert len(look(alert(100))) == 1


def test_alert_that_gets_worse__is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    now, store = [0.0], Store()
    alerts = Alerts("mine", clock=lambda: now[0])
    store.rows = [alert(3)]
    alerts.look(cast(TrajectoryStore, store))
    now[0] += TELL_S
    store.rows = [alert(4, severity="critical")]
    alerts.look(cast(TrajectoryStore, store))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["warning", "critical"]


def test_alert_that_is_over__is_not_told_but_stays_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    store = Store()
    store.rows = [alert(3, active=False)]
    Alerts("mine").look(cast(TrajectoryStore, store))
    assert capsys.readouterr().out == ""
    assert [said(row) for row in fired(cast(TrajectoryStore, store), "mine")] == [
        "warning kl, steps 11 to 13: It is wrong. (0.0612, bound 0.05; agentrl db query x --run mine)"
    ]


def test_store__is_asked_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    now, store = [0.0], Store()
    alerts = Alerts("mine", clock=lambda: now[0])
    alerts.look(cast(TrajectoryStore, store))
    store.rows = [alert(1)]
    now[0] += TELL_S / 2
    alerts.look(cast(TrajectoryStore, store))
    assert capsys.readouterr().out == ""


def test_slow_answer__makes_the_questions_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    now, store, asked = [0.0], Store(), []

    def slow(name: str, **parameters: Any) -> QueryResult:
        asked.append(now[0])
        now[0] += 2.0
        return QueryResult(COLUMNS, [])

    monkeypatch.setattr(store, "query", slow)
    alerts = Alerts("mine", clock=lambda: now[0])
    while now[0] < 250.0:
        alerts.look(cast(TrajectoryStore, store))
        now[0] += 1.0
    assert asked == [0.0, 100.0, 200.0]
