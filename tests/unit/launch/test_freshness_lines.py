"""What plan and summary say of freshness: unusual lag bounds are named, the refresh interval follows from measured loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import resolve
from agentrl.config.run import RunConfig
from agentrl.config.stored import to_row
from agentrl.launch.freshness import refresh_line, refresh_proposal, staleness_line
from agentrl.staleness import refresh_interval
from agentrl.store.contract import QueryResult, RunRow, RunSpec


def config(*overrides: str, model: str = "/a/model", preset: str = "sao") -> RunConfig:
    flags = {"model.path": model}
    return resolve(environment="code_agent", preset=preset, file=None, flags=flags, overrides=list(overrides)).config


@pytest.mark.parametrize(
    ("setting", "single_turn", "said"),
    [
        ("staleness.eta=0.25", False, None),
        ("staleness.eta=0.2", False, None),
        ("staleness.eta=0.3", False, None),
        ("staleness.eta=0.1", False, "fresher"),
        ("staleness.lag=4", False, "older"),
        ("staleness.eta=1", False, "older"),
        ("staleness.lag=0", False, "fresher"),
        ("staleness.eta=0.4", True, None),
        ("staleness.eta=0.25", True, "a lag of 4 to 8, eta 0.35 to 0.5, is usual for a single turn; this is fresher"),
        ("staleness.lag=9", True, "older"),
    ],
)
def test_staleness_line__names_a_bound_outside_the_usual_range(setting: str, single_turn: bool, said: str | None) -> None:
    line = staleness_line(config(setting), single_turn=single_turn)
    assert ("note:" in line) is (said is not None)
    assert said is None or said in line


@pytest.mark.parametrize(("every", "said"), [(2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd"), (112, "112th")])
def test_refresh_interval__is_said_in_words(every: int, said: str) -> None:
    line = staleness_line(config(f"staleness.refresh_every={every}", f"staleness.lag={every}"), single_turn=False)
    assert f"workers load every {said} version" in line


def test_oversampling__says_what_is_under_way_and_what_becomes_of_the_rest() -> None:
    line = staleness_line(config("staleness.lag=2", "trainer.batch=64", "rollout.oversampling=0.25"), single_turn=False)
    assert "at most 80 episodes between start and training, of which the first 64 make a step and the others go on" in line
    assert "at most 192 episodes" in staleness_line(config("staleness.lag=2", "trainer.batch=64"), single_turn=False)


def test_single_turn_environment__starts_from_an_eta_of_its_own(tmp_path: Path) -> None:
    from agentrl.launch.defaults import run_defaults

    source = "from agentrl.environment import Environment\nclass {name}(Environment):\n    max_turns = {turns}\n"
    (tmp_path / "own.py").write_text(source.format(name="One", turns=1) + source.format(name="Many", turns=5))
    one, many = (run_defaults(f"{tmp_path}/own.py:{name}") for name in ("One", "Many"))
    assert (one, many) == ({"staleness.eta": 0.4}, {})


@pytest.mark.parametrize(("preset", "bound"), [("sao", 5), ("ppo", 0)])
def test_eta_of_the_environment__leaves_a_synchronous_preset_synchronous(preset: str, bound: int) -> None:
    found = resolve(
        environment="code_agent", preset=preset, file=None, flags={"model.path": "/a/model"}, overrides=[],
        defaults_of=lambda name: {"staleness.eta": 0.4},
    )  # fmt: skip
    assert found.config.staleness.bound == bound


@pytest.mark.parametrize(
    ("load_s", "update_s", "bound", "every"),
    [(0.5, 60.0, 2, 1), (12.0, 40.0, 4, 3), (12.0, 40.0, 1, 2), (12.0, 40.0, None, 3), (6.0, 60.0, 4, 1), (0.0, 1.0, 2, 1)],
)
def test_refresh_interval__keeps_loading_under_a_tenth_within_the_bound(
    load_s: float, update_s: float, bound: int | None, every: int
) -> None:
    assert refresh_interval(load_s, update_s, bound) == every


class Measured:
    """A store with one earlier run and its measured loads."""

    def __init__(self, earlier: RunConfig, load_s: float, update_s: float | None) -> None:
        spec = RunSpec("earlier", "code_agent", to_row(earlier, Path("/runs/earlier")), "h", 0, 2, 8, 8)
        self.row = RunRow(1, spec, "finished", 1, 9, 9)
        self.record = {"run": "earlier", "load_s": load_s, "update_s": update_s}

    def query(self, name: str, **parameters: Any) -> QueryResult:
        assert name == "weight_loads"
        return QueryResult(list(self.record), [list(self.record.values())])

    def find_run(self, name: str) -> RunRow:
        return self.row


def test_refresh_line__follows_from_an_earlier_run_of_the_same_model_and_engine() -> None:
    store: Any = Measured(config("trainer.learning_rate=1e-5"), 12.0, 40.0)
    line = refresh_line(config("staleness.lag=4"), store)
    assert line is not None
    assert "in run earlier a load took 12 s and an update 40 s" in line
    assert "30.0% of their time" in line
    assert "staleness.refresh_every=3 would make it 10.0%" in line
    assert refresh_line(config(model="/another/model"), store) is None
    assert refresh_line(config("engine.kind=sglang"), store) is None
    settled = refresh_line(config("staleness.lag=4", "staleness.refresh_every=3"), store)
    assert settled is not None
    assert "would" not in settled


def test_refresh_line__says_when_the_lag_bound_is_in_the_way() -> None:
    store: Any = Measured(config(), 12.0, 40.0)
    line = refresh_line(config("staleness.lag=1"), store)
    assert line is not None
    assert "refresh_every=2 would make it 15.0%, and only a larger lag bound than 1" in line


def test_refresh_proposal__needs_two_updates() -> None:
    assert refresh_proposal(config(), Measured(config(), 1.0, None), "earlier") is None  # type: ignore[arg-type]
    assert refresh_proposal(config(), Measured(config(), 1.0, 50.0), "earlier") is not None  # type: ignore[arg-type]
