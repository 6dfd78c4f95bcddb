"""``agentrl doctor``: one line a check, with what to do when it fails."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import typer

from agentrl import __version__
from agentrl.errors import AgentRLError, NotReadyError


class Warned(str):
    """The detail of a check that works but needs a look."""


Check = Callable[[], str]
_INSTALL = "pip install -c constraints.txt -e ."
_PACKAGES = ("torch", "megatron-core", "transformers", "safetensors", "psycopg", "docker")
_OLDEST_TRANSACTION = """
  select pid, extract(epoch from now() - xact_start)::float8, usename, application_name, state, left(query, 200)
  from pg_stat_activity
  where backend_type = 'client backend' and datname = current_database() and xact_start < now() - interval '1 minute'
  order by xact_start limit 1
"""


def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON object a check.")) -> None:
    """Check packages, disk, the store, open transactions, the sandbox. Exit code 3 when something is missing."""
    checks: dict[str, Check] = {
        "packages": _packages, "disk": _disk, "store": _store, "sandbox": _sandbox, "environments": _environments
    }  # fmt: skip
    failed = False
    for name, check in checks.items():
        try:
            detail = check()
            status = "WARN" if isinstance(detail, Warned) else "OK"
        except AgentRLError as error:
            status, detail, failed = "FAIL", str(error), True
        except ImportError as error:
            status, detail, failed = "FAIL", f"the package {error.name} can't be imported: {_INSTALL}", True
        if as_json:
            print(json.dumps({"check": name, "status": status, "detail": detail}))
        else:
            print(f"{name:<13} {status:<5} {detail}")
    sys.exit(3 if failed else 0)


def _packages() -> str:
    found, missing = [f"agentrl {__version__}", f"Python {platform.python_version()}"], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise NotReadyError(f"missing {', '.join(missing)}: {_INSTALL}")
    return ", ".join(found)


def _disk() -> str:
    from agentrl.launch.disk import free_space, runs_folder
    from agentrl.store.connect import URL_VARIABLE
    from agentrl.store.embedded import default_home

    places = [("runs", runs_folder())] + ([] if os.environ.get(URL_VARIABLE) else [("store", default_home())])
    said = [(name, free_space(folder)) for name, folder in places]
    detail = "; ".join(f"{name}: {space}" for name, space in said)
    return Warned(detail) if any(space.little for _, space in said) else detail


def _store() -> str:
    from agentrl.cli.session import store_session
    from agentrl.errors import NotReadyError
    from agentrl.store.schema_setup import missing_columns
    from agentrl.store.server_refusals import incomplete_schema

    with store_session() as session:
        with session.store.session() as connection:
            lacks = missing_columns(connection)
        if lacks:
            raise NotReadyError(incomplete_schema(session.store.masked_url, f"it lacks {', '.join(lacks)}"))
        oldest = session.store.rows(_OLDEST_TRANSACTION)
        return _forgotten(session.description, *oldest[0]) if oldest else session.description


def _forgotten(
    description: str, pid: int, age_s: float, user: str | None, application: str | None, state: str | None, query: str | None
) -> str:
    """An open transaction keeps the server from cleaning up behind everybody: claims get slower the longer it stays."""
    from agentrl.monitor.terminal import visible

    who = f"user {user}" + (f" ({application})" if application else "")
    said = " ".join((query or "").split())
    return Warned(
        f"{description}; a transaction of {who}, process {pid}, is open for {age_s:.0f} s ({state}): {visible(said)} - claims "
        f"get slower until it ends. End it there, or with: select pg_terminate_backend({pid})"
    )


def _sandbox() -> str:
    from sandboxes.choose import choose
    from sandboxes.contract import SandboxError

    try:
        return asyncio.run(choose(None, False))[1]
    except SandboxError as error:
        raise NotReadyError(str(error)) from None


def _environments() -> str:
    from agentrl.environment.registry import installed

    return ", ".join(sorted(installed()))
