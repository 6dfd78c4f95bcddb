"""A store for the time of one command. The last command to leave the private server stops it.

Drivers are imported when a store is opened: the command line itself starts without them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from agentrl.errors import UsageError

if TYPE_CHECKING:
    from agentrl.store.contract import RunRow
    from agentrl.store.postgres import PostgresStore
    from agentrl.store.postgres_runs import PostgresRuns
    from agentrl.store.reader import Reader


MOST = 2**53
"""Greatest number that options take: any program reads it exactly."""


@dataclass(frozen=True)
class StoreSession:
    """An open store and one line that says which it is and why."""

    store: PostgresStore
    description: str


@contextmanager
def database_session() -> Iterator[str]:
    """The URL of the database, for as long as it is used."""
    from agentrl.store.connect import URL_VARIABLE
    from agentrl.store.embedded import embedded_in_use

    if named := os.environ.get(URL_VARIABLE):
        yield named
        return
    with embedded_in_use() as url:
        yield url


@contextmanager
def store_session() -> Iterator[StoreSession]:
    """The store at ``AGENTRL_DATABASE_URL`` or on the private server."""
    from agentrl.store.connect import open_store

    with database_session():
        store, description = open_store()
        try:
            yield StoreSession(store, description)
        finally:
            store.close()


@contextmanager
def reader_session(timeout_s: float | None = None, connections: int = 1) -> Iterator[Reader]:
    """The same store for reading only; a statement may take ``timeout_s``, and as many at a time as there are connections."""
    from agentrl.store.reader import TIMEOUT_S, Reader

    with database_session() as url:
        reader = Reader(url, TIMEOUT_S if timeout_s is None else timeout_s, connections)
        try:
            yield reader
        finally:
            reader.close()


def require_run(store: PostgresRuns, name: str) -> RunRow:
    """The run of that name or ``latest``. `UsageError` when there is none."""
    run = store.find_run(name)
    if run is None:
        raise UsageError(
            "There is no run yet: start one with `agentrl train --env code_agent`."
            if name == "latest"
            else f"There is no run named '{name}'. `agentrl db query runs` lists them."
        )
    return run


def require_trajectory(reader: Reader, text: str, run: str) -> UUID:
    """The id, or that of the newest trajectory that ended in ``run`` for ``latest``. `UsageError` when it is neither."""
    if text == "latest":
        name = require_run(reader, run).spec.name
        found = reader.query("latest_trajectory", run=name).records()
        if not found:
            raise UsageError(f"No trajectory has ended yet in run {name}. Name another with --run.")
        newest: UUID = found[0]["trajectory"]
        return newest
    try:
        return UUID(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a trajectory id (a UUID such as 0192f0c1-...), nor 'latest'.") from None
