"""The private server: shared by processes, survives them, private to its user."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from store_bench import Server

from agentrl.errors import NotReadyError
from agentrl.store import embedded
from agentrl.store.embedded import embedded_in_use, find_binaries, start_embedded, stop_embedded

START = "import sys, pathlib, agentrl.store.embedded as e; print(e.start_embedded(pathlib.Path(sys.argv[1])))"
AS_ROOT = os.getuid() == 0


@pytest.fixture
def home() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="agentrl-home-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    stop_embedded(directory)
    shutil.rmtree(directory)


def test_several_processes__start_one_server_that_outlives_them(home: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", START, str(home)], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    urls = {p.communicate(timeout=120)[0].strip() for p in started}
    assert len(urls) == 1
    with psycopg.connect(urls.pop()) as connection:
        (one,) = connection.execute("select pg_postmaster_start_time()").fetchone() or (None,)
    assert start_embedded(home)
    with psycopg.connect(start_embedded(home)) as connection:
        assert connection.execute("select pg_postmaster_start_time()").fetchone() == (one,)
    assert stop_embedded(home) is True
    assert stop_embedded(home) is False
    (data,) = home.glob("pg18")
    assert data.stat().st_mode & 0o777 == 0o700


def test_last_user_stops_it__not_one_that_leaves_while_all_connections_are_broken(home: Path) -> None:
    with embedded_in_use(home) as url, psycopg.connect(url) as connection:
        backend, before = connection.info.backend_pid, _checkpointer(connection)
        with embedded_in_use(home):
            os.kill(backend, signal.SIGKILL)  # the server closes all connections and recovers
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select pg_sleep(30)")
            _wait_until_recovered(url, before)
        with psycopg.connect(url) as again:
            assert again.execute("select 1").fetchone() == (1,)
    assert stop_embedded(home) is False


def test_connected_client__keeps_the_server_of_the_last_user(home: Path) -> None:
    with embedded_in_use(home) as url:
        client = psycopg.connect(url)
    assert client.execute("select 1").fetchone() == (1,)
    client.close()


def test_stop__of_a_server_that_would_not_end_loses_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(start_embedded(home), autocommit=True) as connection:
        connection.execute("create table kept as select 1 as one")
        os.kill(_checkpointer(connection), signal.SIGSTOP)
    monkeypatch.setattr(embedded, "_FAST_STOP_S", 1)
    assert stop_embedded(home) is True
    with psycopg.connect(start_embedded(home)) as connection:
        assert connection.execute("select one from kept").fetchone() == (1,)
    assert stop_embedded(home) is True


def _checkpointer(connection: psycopg.Connection[tuple[int]]) -> int:
    found = connection.execute("select pid from pg_stat_activity where backend_type = 'checkpointer'").fetchone()
    assert found is not None
    return found[0]


def _wait_until_recovered(url: str, before: int) -> None:
    """``before``: pid of the checkpointer before the crash. A server that has not seen the crash yet still answers."""
    deadline = time.monotonic() + 120
    while True:
        try:
            with psycopg.connect(url) as connection:
                if _checkpointer(connection) != before:
                    return
        except (psycopg.OperationalError, AssertionError):
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_server_user__is_nobody_for_root_and_oneself_otherwise(embedded_server: Server) -> None:
    pid = int((embedded_server.home / "pg18" / "postmaster.pid").read_text().splitlines()[0])
    owner = os.stat(f"/proc/{pid}").st_uid
    assert owner == (pwd.getpwnam("nobody").pw_uid if AS_ROOT else os.getuid())


@pytest.mark.skipif(not AS_ROOT, reason="only root runs the server as another user")
def test_home_that_the_server_user_cannot_enter__named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(NotReadyError, match="may not enter"):
        start_embedded(closed / "home")
    assert closed.stat().st_mode & 0o777 == 0o700


def _start_as(user: str, home: Path, answer: multiprocessing.SimpleQueue[str]) -> None:
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    answer.put(start_embedded(home))
    answer.put(str(stop_embedded(home)))


@pytest.mark.skipif(not AS_ROOT, reason="needs to become another user")
def test_ordinary_user__starts_and_stops_its_own_server(home: Path) -> None:
    own = home / "of-nobody"
    own.mkdir()
    os.chown(own, pwd.getpwnam("nobody").pw_uid, -1)
    context = multiprocessing.get_context("fork")
    answer: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    child = context.Process(target=_start_as, args=("nobody", own, answer))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert (answer.get(), answer.get()) == (f"postgresql://agentrl@/agentrl?host={own}/socket", "True")


def test_binaries_out_of_reach__copied_and_run(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root with an environment below a closed directory, the server's user gets a copy of the binaries."""
    install = find_binaries().directory.parent
    hidden = tmp_path / "closed" / install.parent.name
    shutil.copytree(install, hidden / install.name, symlinks=True)
    shutil.copytree(install.parent.parent / f"{install.parent.name}.libs", hidden.parent / f"{install.parent.name}.libs")
    hidden.parent.chmod(0o700)
    monkeypatch.setenv("AGENTRL_PG_BIN", str(hidden / install.name / "bin"))
    with psycopg.connect(start_embedded(home)) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    assert (home / "binaries18").is_dir() == AS_ROOT


def test_no_binaries_there__named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTRL_PG_BIN", str(tmp_path))
    with pytest.raises(NotReadyError, match="AGENTRL_PG_BIN"):
        find_binaries()


def test_long_home__socket_path_stays_short(home: Path) -> None:
    deep = home / ("d" * 60) / ("e" * 40)
    url = start_embedded(deep)
    socket = url.split("host=")[1] + "/.s.PGSQL.5432"
    assert len(socket) <= 107
    with psycopg.connect(url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    stop_embedded(deep)
    Path(url.split("host=")[1]).rmdir()
