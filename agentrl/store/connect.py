"""Opening the store a command should use: the URL that was given, `AGENTRL_DATABASE_URL`, or a private server."""

from __future__ import annotations

import os

from agentrl.store.embedded import default_home, find_binaries, start_embedded
from agentrl.store.postgres import PostgresStore

URL_VARIABLE = "AGENTRL_DATABASE_URL"


def database_url(url: str | None = None) -> str:
    """Where the store is; a private server is started when nothing else is named."""
    return url or os.environ.get(URL_VARIABLE) or start_embedded()


def open_store(url: str | None = None, pool_size: int = 8) -> tuple[PostgresStore, str]:
    """The store and one line that says which it is and why; no password is in it."""
    store = PostgresStore(database_url(url), pool_size)
    if url is not None:
        return store, f"Postgres at {store.masked_url} (given)"
    if os.environ.get(URL_VARIABLE):
        return store, f"Postgres at {store.masked_url} ({URL_VARIABLE})"
    binaries = find_binaries()
    return (
        store,
        f"private Postgres {binaries.major} in {default_home()} ({binaries.source} binaries; {URL_VARIABLE} is not set)",
    )
