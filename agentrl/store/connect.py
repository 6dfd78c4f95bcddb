"""Opening the store a command should use: the URL that was given, `AGENTRL_DATABASE_URL`, or a private server."""

from __future__ import annotations

import os

from agentrl.store.embedded import default_home, find_binaries, start_embedded
from agentrl.store.postgres import PostgresStore

URL_VARIABLE = "AGENTRL_DATABASE_URL"


def open_store(url: str | None = None, pool_size: int = 8) -> tuple[PostgresStore, str]:
    """The store and one line that says which it is and why; no password is in it."""
    if url is not None:
        store = PostgresStore(url, pool_size)
        return store, f"Postgres at {store.masked_url} (given)"
    if named := os.environ.get(URL_VARIABLE):
        store = PostgresStore(named, pool_size)
        return store, f"Postgres at {store.masked_url} ({URL_VARIABLE})"
    binaries = find_binaries()
    store = PostgresStore(start_embedded(), pool_size)
    return (
        store,
        f"private Postgres {binaries.major} in {default_home()} ({binaries.source} binaries; {URL_VARIABLE} is not set)",
    )
