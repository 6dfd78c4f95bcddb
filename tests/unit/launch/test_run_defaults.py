"""What an environment may bring along for its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import UsageError
from agentrl.launch.defaults import run_defaults

SOURCE = """
from agentrl.environment import Environment


class Mine(Environment):
    run_defaults = {defaults}
"""


def named(folder: Path, defaults: str) -> str:
    (folder / "mine.py").write_text(SOURCE.format(defaults=defaults))
    return f"{folder}/mine.py:Mine"


def test_class_attribute__is_read_without_making_the_environment(tmp_path: Path) -> None:
    assert run_defaults(named(tmp_path, '{"staleness.eta": 0.4}')) == {"staleness.eta": 0.4}
    assert run_defaults("qa_verify")["staleness.eta"] == run_defaults("qa_verify_large")["staleness.eta"] == 0.4
    assert run_defaults("sql_agent") == {}


@pytest.mark.parametrize(("defaults", "said"), [("[1]", "must map"), ('{"preset": "grpo"}', "can't set 'preset'")])
def test_what_is_no_default__is_refused(defaults: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        run_defaults(named(tmp_path, defaults))
