"""Worlds in which the store contract is tested: the in-memory twin, the embedded server, the system's where installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_bench import SYSTEM_15, PostgresWorld, Server, World, no_grace

from agentrl.store.postgres import PostgresStore


def _server(kind: str, binaries: Path | None) -> Iterator[Server]:
    server = Server(kind, binaries)
    yield server
    server.close()


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[Server]:
    yield from _server("pg18", None)


@pytest.fixture(scope="session")
def system_server() -> Iterator[Server]:
    if not SYSTEM_15.is_dir():
        pytest.skip("the system has no PostgreSQL 15")
    yield from _server("pg15", SYSTEM_15)


@pytest.fixture(scope="session")
def embedded_world(embedded_server: Server) -> Iterator[PostgresWorld]:
    store = PostgresStore(embedded_server.url)
    no_grace(store)
    yield PostgresWorld("embedded", store, embedded_server.url)
    store.close()


@pytest.fixture(scope="session")
def system_world(system_server: Server) -> Iterator[PostgresWorld]:
    store = PostgresStore(system_server.url)
    no_grace(store)
    yield PostgresWorld("system", store, system_server.url)
    store.close()


@pytest.fixture(params=["memory", "embedded", "system"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return World()
    found: World = request.getfixturevalue(f"{request.param}_world")
    return found


@pytest.fixture(params=["embedded", "system"])
def postgres(request: pytest.FixtureRequest) -> PostgresWorld:
    found: PostgresWorld = request.getfixturevalue(f"{request.param}_world")
    return found
