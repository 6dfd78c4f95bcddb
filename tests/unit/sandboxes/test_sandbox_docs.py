"""The reference page speaks of what is there."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

from sandboxes import contract, pool
from sandboxes.contract import ExecResult, Sandbox, SandboxSpec

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/sandboxes.md").read_text()


def test_example__prints_what_its_comments_say(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n# try_sandbox\.py\n(.*?)```", PAGE, re.DOTALL)
    # Any machine can run it without isolation: the code is the page's own.
    block = block.replace("choose()", "choose(unsafe_local=True)")
    ran = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout.split() == ["hello", "42", "True"], ran.stderr


def test_fields_of_a_spec__are_all_named_in_order() -> None:
    (listed,) = re.findall(r"`SandboxSpec\((.*?)\)`", PAGE, re.DOTALL)
    assert re.split(r",\s+", listed) == [field.name for field in dataclasses.fields(SandboxSpec)]


def test_calls__are_those_of_the_contract() -> None:
    named = dict(re.findall(r"`(\w+)\(([^)]*)\)`", PAGE.split("## What can be done in one")[1].split("`ExecResult`")[0]))
    calls = {name: call for name, call in vars(Sandbox).items() if inspect.iscoroutinefunction(call)}
    assert named.keys() >= calls.keys()
    for name, call in calls.items():
        parameters = [parameter for parameter in inspect.signature(call).parameters if parameter != "self"]
        assert re.split(r",\s*", named[name]) == (parameters or [""]), name


def test_names_of_results_errors_and_metrics__exist() -> None:
    fields = {field.name for field in dataclasses.fields(ExecResult)}
    assert {"exit_code", "stdout", "stderr", "truncated", "limit", "limit_s", "duration_s"} <= fields
    for name in set(re.findall(r"`(Sandbox\w+)`", PAGE)):
        assert hasattr(contract, name) or hasattr(pool, name), name
    errors = {
        name for name in set(re.findall(r"`(Sandbox\w+)`", PAGE)) if name.startswith("Sandbox") and name != "SandboxError"
    }
    assert all(issubclass(getattr(contract, name), contract.SandboxError) for name in errors)
    assert len(errors) == 4


def test_commands__are_those_of_the_command_line() -> None:
    for command in sorted(set(re.findall(r"^agentrl sandbox (\w+)", PAGE, re.MULTILINE))):
        ran = subprocess.run(
            [sys.executable, "-m", "agentrl.cli.main", "sandbox", command, "--help"], capture_output=True, text=True, cwd=ROOT
        )
        assert ran.returncode == 0, ran.stderr
