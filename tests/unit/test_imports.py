"""What is public stays importable without heavy packages, and errors survive the way between processes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from agentrl import errors

LIGHT = ["import agentrl, agentrl.config.load", "from agentrl.cli.main import app"]


@pytest.mark.parametrize("statement", LIGHT)
def test_import__loads_no_torch(statement: str) -> None:
    code = f"{statement}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def all_errors() -> list[type[errors.AgentRLError]]:
    return [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.AgentRLError)]


@pytest.mark.parametrize("kind", all_errors())
def test_error__is_picklable_documented_and_in_the_tree(kind: type[errors.AgentRLError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what happened", 3)))
    assert error.args == ("what happened", 3)
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or "")
