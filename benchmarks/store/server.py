"""Where the measurements run: a private server of their own, or a fresh database on a server that was named."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from agentrl.store.embedded import start_embedded, stop_embedded


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of a server: the one that was named, or a private one that ends with the block."""
    if url is not None:
        yield url
        return
    home = Path(tempfile.mkdtemp(prefix="agentrl-benchmark-", dir="/tmp"))
    home.chmod(0o755)  # as root the server runs as a user who must reach its folder
    try:
        yield start_embedded(home)
    finally:
        stop_embedded(home)
        shutil.rmtree(home)


@contextmanager
def database(server_url: str) -> Iterator[str]:
    """The URL of a new, empty database, which is dropped at the end."""
    name = f"agentrl_benchmark_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def describe(server_url: str) -> str:
    """One line about the server: version and what makes a commit durable."""
    with psycopg.connect(server_url) as connection:
        said = [
            f"{name} {_setting(connection, name)}"
            for name in ("server_version", "fsync", "synchronous_commit", "shared_buffers", "default_toast_compression")
        ]
    return "PostgreSQL: " + ", ".join(said)


def _setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("select current_setting(%s)", (name,)).fetchone()
    return str(row[0]) if row else "unknown"
