"""What the command lines of the benchmarks share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.report import Row
from benchmarks.runner import given, report

MEASUREMENTS = {"first": "one thing", "second": "another"}
ROWS = {
    "first": [Row("a", "1", met=True), Row("b", "2")],
    "second": [Row("c", "3", "rival: 4", 0.75, ">= 1", met=False)],
}


def test_names__all_unless_some_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert given("store", MEASUREMENTS, []).names == ["first", "second"]
    assert given("store", MEASUREMENTS, ["second", "--quick"]).names == ["second"]
    assert "cores" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["third"], ["--peers-python", "/nowhere/python"]])
def test_wrong_arguments__exit_2_before_any_work(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        given("store", MEASUREMENTS, arguments, peers=True)
    assert ended.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


@pytest.mark.parametrize(("names", "quick", "code"), [(["first"], False, 0), (["second"], False, 1), (["second"], True, 0)])
def test_report__code_says_whether_a_target_was_missed(names: list[str], quick: bool, code: int) -> None:
    assert report(names, ROWS.__getitem__, quick) == code


def test_report__rows_are_printed_when_they_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []

    def measure(name: str) -> Sequence[Row]:
        printed.append(capsys.readouterr().out)
        return ROWS[name]

    report(["first", "second"], measure, False)
    before, between = printed
    assert "| measurement |" in before
    assert "| a | 1 |" in between
    assert capsys.readouterr().out.strip() == "| c | 3 | rival: 4 | 0.75 | >= 1 | no |"
