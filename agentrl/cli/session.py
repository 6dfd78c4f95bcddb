"""A store for the time of one command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentrl.errors import UsageError
from agentrl.store.connect import URL_VARIABLE, open_store
from agentrl.store.contract import RunRow
from agentrl.store.embedded import embedded_is_running, stop_embedded
from agentrl.store.postgres import PostgresStore


@dataclass(frozen=True)
class StoreSession:
    """An open store and one line that says which it is and why."""

    store: PostgresStore
    description: str


@contextmanager
def store_session() -> Iterator[StoreSession]:
    """The store at ``AGENTRL_DATABASE_URL`` or the private server; a private server started here is stopped again when idle."""
    starts_server = URL_VARIABLE not in os.environ and not embedded_is_running()
    store, description = open_store()
    try:
        yield StoreSession(store, description)
    finally:
        idle = store.other_connections() == 0 if starts_server else False
        store.close()
        if idle:
            stop_embedded()


def require_run(session: StoreSession, name: str) -> RunRow:
    """The run of that name or ``latest``. `UsageError` when there is none."""
    run = session.store.find_run(name)
    if run is None:
        raise UsageError(
            "There is no run yet: start one with `agentrl train --env code_agent`."
            if name == "latest"
            else f"There is no run named '{name}'. `agentrl db query runs` lists them."
        )
    return run
