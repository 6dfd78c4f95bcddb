"""Migrating an existing schema with Alembic, when a person asks for it: ``agentrl db migrate``.

- One transaction, under the lock under which schemas are created: it is done or it is not.
- A statement that has to wait for somebody's open transaction gives up instead of making everybody queue behind it.
- `pre` may run while processes of the release before are at work, `post` only after they have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import psycopg
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from agentrl.errors import NotReadyError, UsageError
from agentrl.store.postgres_connection import CONNECT_TIMEOUT_S, with_timeouts
from agentrl.store.schema_setup import (
    FIRST_REVISION,
    REVISION,
    SCHEMA_LOCK,
    describe_version_table,
    missing_columns,
    revisions_of,
)
from agentrl.store.server_refusals import explain_connect_failure, first_line, incomplete_schema, no_permission

VERSION_TABLE = "alembic_version"
PHASES = ("pre", "post")
LOCK_TIMEOUT = "5s"


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The newest revision that a database holds (None: no schema yet) and those still to be applied, in order."""

    found: str | None
    pending: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    """Columns that it lacks although nothing is pending."""


def _config(connection: sqlalchemy.Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(str(files("agentrl.store") / "migrations"))))
    config.attributes["connection"] = connection
    return config


def schema_status(url: sqlalchemy.URL) -> SchemaStatus:
    """What the database holds and what is pending."""
    with _connect(url) as connection:
        found = revisions_of(_driver(connection))
        lacks = missing_columns(_driver(connection)) if found == (REVISION,) else ()
    return SchemaStatus(found[-1] if found else None, _pending(found), tuple(lacks))


def _pending(found: tuple[str, ...]) -> tuple[str, ...]:
    if not found or found == (REVISION,):
        return ()
    scripts = ScriptDirectory.from_config(_config())
    known = {s.revision for phase in PHASES for s in scripts.iterate_revisions(f"{phase}@head", "base")}
    if unknown := set(found) - known:
        raise NotReadyError(
            f"The database holds revision {max(unknown)} of the schema agentrl, which this release does not know: "
            "install the release that made it, or a newer one."
        )
    applied = {s.revision for s in scripts.iterate_revisions(found, "base")}
    return tuple(sorted(known - applied, key=lambda name: (name.startswith("post"), name)))


def migrate(url: sqlalchemy.URL, phase: str | None = None) -> tuple[str, ...]:
    """Apply what is pending, of one phase or of both; returns the revisions applied. `UsageError` for post before pre."""
    with _connect(url) as connection:
        driver = _driver(connection)
        with connection.begin():
            driver.execute("select pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
            driver.execute(f"set local lock_timeout = '{LOCK_TIMEOUT}'")
            found = revisions_of(driver)
            pending = _pending(found)
            wanted = tuple(r for r in pending if phase is None or r.startswith(phase))
            if phase == "post" and any(r.startswith("pre") for r in pending):
                raise UsageError("The pre migrations come first: run `agentrl db migrate --phase pre`.")
            if not wanted:
                if found == (REVISION,) and (lacks := missing_columns(driver)):
                    raise NotReadyError(incomplete_schema(url.render_as_string(), f"it lacks {', '.join(lacks)}"))
                return ()
            config = _config(connection)
            if found == (FIRST_REVISION,):
                command.stamp(config, FIRST_REVISION)
                describe_version_table(driver)
            try:
                for chain in PHASES if phase is None else (phase,):
                    command.upgrade(config, f"{chain}@head")
            except sqlalchemy.exc.OperationalError as e:
                raise _blocked(e) from e
            except psycopg.errors.LockNotAvailable as e:
                raise _blocked(e) from e
    return wanted


def _blocked(error: Exception) -> NotReadyError:
    return NotReadyError(
        f"A migration could not get a lock within {LOCK_TIMEOUT}: another transaction is open ({str(error).splitlines()[0]}). "
        "Nothing was changed. End that transaction, then run `agentrl db migrate` again."
    )


@contextmanager
def _connect(url: sqlalchemy.URL) -> Iterator[sqlalchemy.Connection]:
    engine = sqlalchemy.create_engine(
        with_timeouts(url).set(drivername="postgresql+psycopg"),
        poolclass=sqlalchemy.NullPool,
        connect_args={"connect_timeout": CONNECT_TIMEOUT_S},
    )
    try:
        connection = engine.connect()
    except sqlalchemy.exc.OperationalError as e:
        raise NotReadyError(explain_connect_failure(url, str(e.orig))) from e
    try:
        with connection:
            yield connection
    except (psycopg.errors.InsufficientPrivilege, sqlalchemy.exc.ProgrammingError) as e:
        cause = e.orig if isinstance(e, sqlalchemy.exc.ProgrammingError) else e
        if not isinstance(cause, psycopg.errors.InsufficientPrivilege):
            raise
        raise UsageError(no_permission(url.render_as_string(), url, first_line(cause))) from e
    finally:
        engine.dispose()


def _driver(connection: sqlalchemy.Connection) -> psycopg.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver
