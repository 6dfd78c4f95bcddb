"""A store for the time of one command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.errors import UsageError
from agentrl.store.contract import RunRow
from agentrl.store.connect import StoreConnection, connect


@contextmanager
def store_session() -> Iterator[StoreConnection]:
    """Connect to ``AGENTRL_DATABASE_URL`` or the embedded server; a server started here is stopped at the end if idle."""
    connection = connect(os.environ.get("AGENTRL_DATABASE_URL"))
    try:
        yield connection
    finally:
        connection.close()


def require_run(connection: StoreConnection, name: str) -> RunRow:
    """The run of that name or ``latest``. `UsageError` when there is none."""
    run = connection.store.find_run(name)
    if run is None:
        raise UsageError(
            "There is no run yet: start one with `agentrl train --env code_agent`."
            if name == "latest"
            else f"There is no run named '{name}'. `agentrl db query runs` lists them."
        )
    return run
