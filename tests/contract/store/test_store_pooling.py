"""Behind PgBouncer in transaction mode each transaction may have another server connection: none may leave anything behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url
from store_bench import Bench, PostgresWorld, Server

from agentrl.errors import UsageError
from agentrl.store.postgres import PostgresStore
from agentrl.store.reader import Reader
from agentrl.store.retention import retain

PORT = 26543


def pooled(url: str) -> str:
    return make_url(url).update_query_dict({"pgbouncer": "true"}).render_as_string(hide_password=False)


def test_transactions__leave_nothing_in_the_session(postgres: PostgresWorld) -> None:
    store = PostgresStore(pooled(postgres.url), pool_size=1)
    bench = Bench(store, lag_bound=0)
    bench.start()
    bench.publish()
    bench.train(2)
    assert store.rows("select name from pg_prepared_statements where name <> ''") == []
    changed = store.rows("select name from pg_settings where source = 'session' order by name")
    assert ("synchronous_commit",) not in changed
    assert ("lock_timeout",) not in changed
    with pytest.raises(UsageError, match="past PgBouncer"):
        retain(store, bench.run, 1)
    store.close()


def test_notifier__leaves_its_session_durable(postgres: PostgresWorld) -> None:
    """What it turns off is off for its own transaction only: the next one may be a worker's."""
    bench = postgres.bench()
    bench.publish()
    give_up = time.monotonic() + 10
    last = "select query from pg_stat_activity where query like 'select pg_notify%%' and datname = current_database()"
    while not (found := postgres.store.rows(last)) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert all("set_config('synchronous_commit', 'off', true)" in query for (query,) in found)
    assert found


def test_url__pgbouncer_is_true_or_false() -> None:
    with pytest.raises(UsageError, match="use true or false"):
        PostgresStore("postgresql://localhost/x?pgbouncer=yes")


@pytest.fixture
def bouncer(embedded_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PgBouncer in transaction mode in front of a new database."""
    program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    url = embedded_server.database()
    PostgresStore(url).close()
    named = psycopg.conninfo.conninfo_to_dict(url)
    folder = Path(tmp_path_factory.mktemp("bouncer"))
    (folder / "users").write_text(f'"{named["user"]}" ""\n')
    (folder / "ini").write_text(
        f"[databases]\n* = host={named['host']} port={named.get('port', 5432)}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {PORT}\nunix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users\npool_mode = transaction\n"
        "default_pool_size = 3\n"
    )
    for path in (folder, *folder.parents[: len(folder.parents) - 2], *folder.iterdir()):
        path.chmod(0o755)
    as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen([program, "-q", *as_user, str(folder / "ini")], stderr=subprocess.DEVNULL)
    through = f"postgresql://{named['user']}@127.0.0.1:{PORT}/{named['dbname']}?pgbouncer=true"
    try:
        give_up = time.monotonic() + 10
        while time.monotonic() < give_up:
            with suppress(psycopg.OperationalError):
                psycopg.connect(through.partition("?")[0]).close()
                break
            time.sleep(0.05)
        yield through
    finally:
        process.terminate()
        process.wait()


def test_bouncer__two_processes_share_three_connections(bouncer: str) -> None:
    """Two stores that would prepare statements of the same names train over the same connections."""
    stores = [PostgresStore(bouncer, pool_size=8) for _ in range(2)]
    for store in stores:
        bench = Bench(store, n_tasks=64, lag_bound=None, max_running=32, batch_min=32, batch_max=32)
        bench.start()
        bench.publish()
        episodes = bench.open(32)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(bench.finish, episodes))
        bench.commit(bench.claim().items)
        bench.check()
        store.subscribe(bench.run, print).close()
    reader = Reader(bouncer)
    assert len(reader.saved("conservation").result.rows) == 2
    reader.close()
    for store in stores:
        store.close()
