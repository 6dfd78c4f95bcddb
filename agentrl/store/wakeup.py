"""Wake-ups: who waits learns soon that something changed, and nobody depends on it.

A NOTIFY inside a writer's transaction would hold a lock of the whole server over the flush of its commit, so writers only leave
word here, and one thread a process tells the server.

Invariants
- after_commit: word is left only when the change is committed.
- debounced: at most one message per run and kind in `DEBOUNCE_S`, on a connection of its own that waits for no flush.
- best_effort: a message may be lost or come for nothing; whoever waits asks again after ``poll_seconds``.
- heals: after an outage both sides connect again by themselves; word that could not be sent is sent then, and every listener is
  woken once for what it may have missed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import get_args

import psycopg

from agentrl.store.contract import Change

DEBOUNCE_S = 0.02
LISTEN_S = 0.5
"""How soon a new subscription is heard, and how soon `close` returns at the latest."""
RECONNECT_S = (0.1, 2.0)


# For this transaction only: behind PgBouncer the next one on this connection is somebody else's.
_NOTIFY = "select pg_notify(%s, %s), set_config('synchronous_commit', 'off', true)"


def channel(run: int) -> str:
    """The channel of a run; the payload is the kind of change."""
    return f"agentrl_run_{run}"


class Notifier:
    """Tells the server what was left with `leave`; its thread and connection begin with the first word."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pending: set[tuple[int, Change]] = set()
        self._lock = threading.Lock()
        self._due, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._wait = RECONNECT_S[0]

    def leave(self, run: int, change: Change) -> None:
        """Never blocks on the database and never raises."""
        with self._lock:
            self._pending.add((run, change))
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._tell, daemon=True, name="agentrl-notifier")
                self._thread.start()
        self._due.set()

    def close(self) -> None:
        """After the last word was sent, if the server can be reached at once."""
        self._closed.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join(timeout=LISTEN_S)

    def _tell(self) -> None:
        while not self._closed.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True, connect_timeout=5) as connection:
                self._tell_on(connection)
            self._closed.wait(self._wait)
            self._wait = min(2 * self._wait, RECONNECT_S[1])

    def _tell_on(self, connection: psycopg.Connection) -> None:
        while True:
            self._due.wait()
            if not self._closed.is_set():
                self._closed.wait(DEBOUNCE_S)
            self._due.clear()
            with self._lock:
                words, self._pending = self._pending, set()
            try:
                for run, change in words:
                    connection.execute(_NOTIFY, (channel(run), change))
            except psycopg.Error:
                with self._lock:
                    self._pending |= words
                self._due.set()  # they are said on the next connection
                raise
            self._wait = RECONNECT_S[0]
            if self._closed.is_set():
                return


class Subscription:
    """Calls ``callback(change)`` from a thread when something of ``run`` changed; close it when done."""

    def __init__(self, url: str, run: int, callback: Callable[[Change], None]) -> None:
        self._url, self._run, self._callback = url, run, callback
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="agentrl-listener")
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=2 * LISTEN_S)

    def _listen(self) -> None:
        wait = RECONNECT_S[0]
        while not self._closed.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True, connect_timeout=5) as connection:
                connection.execute(f"listen {channel(self._run)}")
                wait = RECONNECT_S[0]
                self._wake_for_what_was_missed()
                self._listen_on(connection)
            self._closed.wait(wait)
            wait = min(2 * wait, RECONNECT_S[1])

    def _wake_for_what_was_missed(self) -> None:
        for change in get_args(Change):
            self._callback(change)

    def _listen_on(self, connection: psycopg.Connection) -> None:
        while not self._closed.is_set():
            for notify in connection.notifies(timeout=LISTEN_S):
                if self._closed.is_set():
                    return
                self._callback(notify.payload)  # type: ignore[arg-type]


class Unheard:
    """The subscription of whoever can't listen: all it learns, it learns by asking every ``poll_seconds``."""

    def close(self) -> None:
        """There is nothing to end."""
