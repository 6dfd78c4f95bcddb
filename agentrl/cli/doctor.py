"""``agentrl doctor``: one line a check, with what to do when it fails."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Callable

import typer

from agentrl.errors import AgentRLError

Check = Callable[[], str]


def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON object a check.")) -> None:
    """Check Python packages, the store and the sandbox. Exit code 3 when something is missing."""
    failed = False
    for name, check in (("packages", _packages), ("store", _store), ("sandbox", _sandbox), ("environments", _environments)):
        try:
            status, detail = "OK", check()
        except AgentRLError as error:
            status, detail, failed = "FAIL", str(error), True
        if as_json:
            print(json.dumps({"check": name, "status": status, "detail": detail}))
        else:
            print(f"{name:<13} {status:<5} {detail}")
    sys.exit(3 if failed else 0)


def _packages() -> str:
    from agentrl.errors import NotReadyError

    wanted = ("torch", "megatron.core", "transformers", "safetensors", "psycopg", "docker")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise NotReadyError(f"missing {', '.join(missing)}: pip install -e . -c constraints.txt")
    return ", ".join(wanted)


def _store() -> str:
    from agentrl.cli.session import store_session

    with store_session() as session:
        return session.description


def _sandbox() -> str:
    from agentrl.errors import NotReadyError
    from sandboxes.choose import choose
    from sandboxes.contract import SandboxError

    try:
        return asyncio.run(choose(None, False))[1]
    except SandboxError as error:
        raise NotReadyError(str(error)) from None


def _environments() -> str:
    from agentrl.environment.registry import installed

    return ", ".join(sorted(installed()))
