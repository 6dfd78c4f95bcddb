"""What people read with changes nothing, ends in time, and says which limit was hit."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest
from store_bench import Bench, PostgresWorld, Server

from agentrl.cli import doctor
from agentrl.errors import UsageError
from agentrl.store.postgres import PostgresStore
from agentrl.store.reader import LIMIT, ROLE, Reader


@pytest.fixture
def reader(postgres: PostgresWorld) -> Reader:
    found = Reader(postgres.url)
    yield found
    found.close()


def test_reader__acts_as_the_role_with_its_limits(reader: Reader) -> None:
    row = reader.ask(
        "select current_user::text, current_setting('transaction_read_only'), current_setting('statement_timeout'),"
        " current_setting('idle_in_transaction_session_timeout')"
    ).result.rows
    assert row == [(ROLE, "on", "30s", "1min")]


def test_role__sees_all_tables_and_may_execute_nothing_that_writes(postgres: PostgresWorld) -> None:
    bench = postgres.bench()
    bench.publish()
    rows = postgres.store.rows(
        "select relname::text from pg_class where relnamespace = 'agentrl'::regnamespace and relkind in ('r', 'p', 'v')"
        " and not has_table_privilege(%s, oid, 'select')",
        (ROLE,),
    )
    assert rows == []
    rows = postgres.store.rows(
        "select relname::text from pg_class where relnamespace = 'agentrl'::regnamespace and relkind in ('r', 'p', 'v')"
        " and has_table_privilege(%s, oid, 'insert, update, delete, truncate')",
        (ROLE,),
    )
    assert rows == []
    rows = postgres.store.rows(
        "select proname::text from pg_proc where pronamespace = 'agentrl'::regnamespace"
        " and (provolatile = 'v') = has_function_privilege(%s, oid, 'execute')",
        (ROLE,),
    )
    assert rows == []
    settings = dict(
        setting.split("=", 1)
        for (settings,) in postgres.store.rows("select rolconfig from pg_roles where rolname = %s", (ROLE,))
        for setting in settings
    )
    assert settings == {
        "statement_timeout": "30s", "idle_in_transaction_session_timeout": "60s", "default_transaction_read_only": "on",
    }  # fmt: skip


@pytest.mark.parametrize(
    "statement",
    [
        "delete from run",
        "update agentrl.run set status = 'failed'",
        "create table agentrl.x (a int)",
        "with gone as (delete from agentrl.live returning 1) select * from gone",
        "select nextval('agentrl.fence')",
        "select * from agentrl.run for share",
        "select agentrl.set_config_that_is_not_there()",
        "select agentrl.note_v1(1, gen_random_uuid(), null, 'live', 1, 'me', 'because')",
        "select agentrl.open_v1(1, 'w', gen_random_uuid(), 1, 0, '{}')",
        "select 1; delete from agentrl.run",
        "commit",
        "",
        "selct 1",
    ],
)
def test_writing_or_wrong_statement__one_paragraph(reader: Reader, statement: str) -> None:
    with pytest.raises(UsageError) as error:
        reader.ask(statement)
    assert "\n" not in str(error.value)
    assert reader.ask("select 1").result.rows == [(1,)]


def test_wrong_column__place_and_page_named(reader: Reader) -> None:
    with pytest.raises(UsageError, match=r'column "stauts" does not exist at \'stauts from v_runs\'.*schema\.md'):
        reader.ask("select stauts from v_runs")


def test_without_the_role__reads_and_still_writes_nothing(postgres: PostgresWorld) -> None:
    """A user who may not create roles, on a server where another made it."""
    user = f"poor_{os.getpid()}_{postgres.kind}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"create role {user} login".encode())
        connection.execute(f"create database {user} owner {user}".encode())
    url = postgres.url.replace("agentrl@", f"{user}@").replace("/agentrl?", f"/{user}?")
    poor = Reader(url)
    assert poor.role is None
    assert poor.ask("select current_user::text").result.rows == [(user,)]
    with pytest.raises(UsageError, match="only reads"):
        poor.ask("delete from reap")
    poor.timeout_s = 0.1
    with pytest.raises(UsageError, match="time limit"):
        poor.ask("select pg_sleep(10)")
    poor.close()


def test_user_who_may_create_roles__gets_to_use_it(embedded_server: Server) -> None:
    user = f"creator_{os.getpid()}"
    with psycopg.connect(embedded_server.url, autocommit=True) as connection:
        connection.execute(f"create role {user} login createrole".encode())
        connection.execute(f"create database {user} owner {user}".encode())
        connection.execute(f"grant {ROLE} to {user} with admin option".encode())
        connection.execute(f"revoke {ROLE} from {user}".encode())
        connection.execute(f"grant {ROLE} to {user} with admin true, set false, inherit false".encode())
    reader = Reader(embedded_server.url.replace("agentrl@", f"{user}@").replace("/agentrl?", f"/{user}?"))
    assert reader.role == ROLE
    assert reader.saved("runs").result.rows == []
    reader.close()


def test_time_limit__named_with_the_option(postgres: PostgresWorld) -> None:
    reader = Reader(postgres.url, timeout_s=0.1)
    with pytest.raises(UsageError, match=r"stopped after 0\.1 s, the time limit.*--timeout"):
        reader.ask("select pg_sleep(10)")
    assert reader.ask("select 1").result.rows == [(1,)]
    reader.close()


def test_row_limit__cuts_and_says_so(reader: Reader) -> None:
    answer = reader.ask("select generate_series(1, 1000000)")
    assert (len(answer.result.rows), answer.cut_at) == (LIMIT, LIMIT)
    assert reader.ask("select generate_series(1, 5)", limit=5).cut_at is None
    assert reader.ask("select generate_series(1, 6)", limit=5).cut_at == 5


def test_no_rows__the_columns_are_there(postgres: PostgresWorld, reader: Reader) -> None:
    postgres.bench(started=False)
    assert reader.ask("select 1 as a, 2 as b where false").result.columns == ["a", "b"]
    assert reader.saved("token_mismatch", run="latest").result.columns == ["run", "trajectory", "seg", "problem"]


def test_saved_query__own_limit_and_a_larger_one(postgres: PostgresWorld, reader: Reader) -> None:
    bench = postgres.bench(n_tasks=300, batch_min=300, batch_max=300)
    for episode in bench.open(210):
        bench.finish(episode)
    answer = reader.saved("reward_by_task", run=bench.spec.name)
    assert (len(answer.result.rows), answer.cut_at) == (200, 200)
    answer = reader.saved("reward_by_task", 250, run=bench.spec.name)
    assert (len(answer.result.rows), answer.cut_at) == (210, None)
    assert len(postgres.store.query("reward_by_task", run=bench.spec.name).rows) == 200
    assert len(postgres.store.query("reward_by_task", run=bench.spec.name, limit=3).rows) == 3


def test_reader__shows_what_the_store_has(postgres: PostgresWorld, reader: Reader) -> None:
    bench = postgres.bench()
    (episode,) = bench.open(1)
    bench.finish(episode)
    stored = reader.trajectory(episode.trajectory)
    assert stored is not None
    assert stored.segments[0].action.tolist() == [100, 101, 102]
    run = reader.find_run(bench.spec.name)
    assert run is not None
    assert run.id == bench.run


def cli(url: str, *arguments: str, given: str = "", code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "agentrl.cli.main", "db", *arguments],
        env={**os.environ, "AGENTRL_DATABASE_URL": url},
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_command_line__sql_limits_and_shell(embedded_server: Server) -> None:
    url = embedded_server.database()
    store = PostgresStore(url)
    bench = Bench(store)
    bench.start()
    bench.publish()
    (episode,) = bench.open(1)
    bench.finish(episode)
    store.close()
    assert "nor 'latest'" in cli(url, "query", "timeline", "newest", code=2)[1]
    moves = cli(url, "query", "timeline", "latest", "--csv")[0]
    assert moves == cli(url, "query", "timeline", str(episode.trajectory), "--csv")[0]
    assert "opened" in moves
    out, err = cli(url, "sql", "select x, '[bold]' as t from generate_series(1, 3) x", "--limit", "2", "--json")
    assert out.splitlines() == ['{"x": 1, "t": "[bold]"}', '{"x": 2, "t": "[bold]"}']
    assert "only the first 2 rows" in err
    assert "--limit N" in err
    out, _ = cli(url, "sql", "select '[bold]' as t")
    assert "[bold]" in out
    assert "time limit" in cli(url, "sql", "select pg_sleep(9)", "--timeout", "0.1", code=2)[1]
    assert cli(url, "sql", "selct", code=2)[1].count("\n") == 1
    out, err = cli(url, "shell", given="select current_user;\ndelete from reap;\nselect count(*) from v_runs;\n")
    assert ROLE in out
    assert "read-only transaction" in err
    assert "reading only" in err
    out, _ = cli(url, "shell", "--write", given="create table scratch (a int);\n\\dt scratch\n")
    assert "scratch" in out


def test_command_line__starts_without_drivers() -> None:
    program = (
        "import sys; sys.argv = ['agentrl', '--help']\n"
        "import agentrl.cli.main\n"
        "loaded = {'torch', 'alembic', 'sqlalchemy', 'psycopg'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_doctor__names_a_forgotten_transaction(embedded_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = embedded_server.database()
    monkeypatch.setenv("AGENTRL_DATABASE_URL", url)
    assert type(doctor._store()) is str
    with psycopg.connect(url, application_name="notebook") as forgotten:
        forgotten.execute("select 'what I wanted to know'")
        assert type(doctor._store()) is str
        monkeypatch.setattr(doctor, "_OLDEST_TRANSACTION", doctor._OLDEST_TRANSACTION.replace("1 minute", "0 s"))
        said = doctor._store()
        assert isinstance(said, doctor.Warned)
        assert f"process {forgotten.info.backend_pid}" in said
        assert "user agentrl (notebook)" in said
        assert "what I wanted to know" in said
