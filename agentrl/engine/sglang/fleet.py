"""The servers of an engine: which is up, which session belongs to which, and how a lost one comes back.

Invariants, each a test of this name:
- ``current_before_routable``: a server that is new or came back gets no request before it holds the version wanted, also when
  another is wanted meanwhile.
- ``sticky``: a session stays with its server, which has its prefix cached, for as long as that is up.
- ``paused_is_alive``: a server that answers is alive, paused or not; one that was left paused is resumed, or loaded again when
  what it holds is not what its name says.
- ``nobody_waits_for_ever``: whoever waits for a server gets one or an error that names all of them.
- ``watched_for_good``: whatever goes wrong with a server once one has served, each is looked at again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2

from agentrl.engine.load_log import LoadLog
from agentrl.engine.sglang.loading import CheckedWeights, Route, bring, loader_lock
from agentrl.engine.sglang.naming import WeightNames
from agentrl.engine.sglang.server import Server, ServerGone, ServerInfo
from agentrl.errors import EngineError, UsageError
from agentrl.model.config import ModelConfig
from agentrl.monitor.stopwatch import Stopwatch
from agentrl.store.loads import EngineLoad

POLL_S = 0.5
SILENT_S = 60.0
"""A connection that is taken and not answered for so long is a lost server; a busy one may take a while."""
TELL_S = 15.0
"""How often a wait for servers is told."""
STUCK_S = 20.0
"""After so long a pause that nobody works on was left behind."""


@dataclass(eq=False)
class Member:
    """One server. ``problem``: why it is not up."""

    server: Server
    info: ServerInfo | None = None
    up: bool = False
    problem: str = "not reached yet"
    since: float = field(default_factory=time.monotonic)
    answered: float = field(default_factory=time.monotonic)
    paused_since: float | None = None
    loads: int = 0
    """Those that ended; ``loading`` is held while one is at work."""
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    sessions: set[str] = field(default_factory=set)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Fleet:
    """All servers of one engine. ``tell`` gets a line when one is lost, comes back or is resumed."""

    def __init__(
        self,
        servers: Sequence[Server],
        config: ModelConfig,
        names: WeightNames,
        *,
        route: Route,
        shared: bool,
        locks: Path,
        wait_s: float,
        tell: Callable[[str], None],
        poll_s: float = POLL_S,
    ) -> None:
        self.members = [Member(server) for server in servers]
        self.wanted: CheckedWeights | None = None
        self.log = LoadLog()
        self.loads = 0
        self.load_s = 0.0
        self.lost_servers = 0
        self._config, self._names, self._route, self._shared = config, names, route, shared
        self._locks, self._wait_s, self._tell, self._poll_s = locks, wait_s, tell, poll_s
        self._home: dict[str, Member] = {}
        self._changed = asyncio.Event()
        self._refused: UsageError | None = None
        self._served = False
        self._watchers: list[asyncio.Task[None]] = []
        self._told = 0.0

    async def start(self) -> ServerInfo:
        """Watch the servers; returns what the first one that is up says. `UsageError` when one can't serve this model."""
        self._watchers = [asyncio.create_task(self._watch(member), name=member.server.url) for member in self.members]
        member = await self._first_up()
        assert member is not None
        assert member.info is not None
        return member.info

    async def load(self, weights: CheckedWeights) -> None:
        """Bring all servers that are up to these weights, and those that are not as soon as they come back.

        Returns when at least one holds them.
        """
        self.wanted = weights
        await asyncio.gather(*(self._bring(member) for member in self.members if member.up))
        await self._first_up()

    async def take(self, session: str, unless: asyncio.Event) -> Member | None:
        """The session's server, or the one with the fewest sessions; waits for one. None: ``unless`` was set meanwhile."""
        home = self._home.get(session)
        if home is None or not home.up:
            self.forget(session)
            home = await self._first_up(unless)
            if home is None:
                return None
            self._home[session] = home
            home.sessions.add(session)
        return home

    def forget(self, session: str) -> None:
        home = self._home.pop(session, None)
        if home is not None:
            home.sessions.discard(session)

    async def ask(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:
        """One request; `ServerGone` as soon as the server is known to be lost, even when its connection just hangs."""
        call = asyncio.ensure_future(member.server.generate(body))
        gone = asyncio.ensure_future(member.gone.wait())
        try:
            await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            raise ServerGone(f"{member.server.url} was lost: {member.problem}")
        finally:
            call.cancel()
            gone.cancel()

    async def doubt(self, member: Member, error: EngineError) -> None:
        """A request failed on it: lost, unless it was only that connection."""
        if isinstance(error.__cause__, httpx2.RequestError):
            try:
                await member.server.weight_version()
                return
            except EngineError as second:
                if _silent(second):
                    return
        self.lost(member, error)

    def lost(self, member: Member, error: EngineError) -> None:
        """Nothing is sent there before it is back."""
        member.problem = str(error.args[0])
        if not member.up:
            return
        member.up = False
        member.since = time.monotonic()
        member.gone.set()
        self.lost_servers += 1
        self._tell(f"SGLang server lost: {member.problem}")

    @property
    def n_up(self) -> int:
        return sum(member.up for member in self.members)

    async def close(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for member in self.members:
            await member.server.close()

    async def _first_up(self, unless: asyncio.Event | None = None) -> Member | None:
        began = time.monotonic()
        while True:
            self._changed.clear()
            if self._refused is not None:
                raise self._refused
            up = [member for member in self.members if member.up]
            if up:
                return min(up, key=lambda member: len(member.sessions))
            if unless is not None and unless.is_set():
                return None
            now = time.monotonic()
            problems = "; ".join(f"{member.server.url}: {member.problem}" for member in self.members)
            if now - began > self._wait_s:
                raise EngineError(f"no SGLang server serves after {self._wait_s:.0f} s of waiting: {problems}")
            if now - max(began, self._told) > TELL_S:  # one line for all who wait
                self._told = now
                self._tell(f"waiting for an SGLang server since {now - began:.0f} s: {problems}")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._changed.wait()

    async def _watch(self, member: Member) -> None:
        while self._refused is None:
            try:
                await (self._probe(member) if member.up else self._recover(member))
            except UsageError as error:
                if self._served:  # it fitted, so it may again: something else answers there while it restarts, for example
                    self._unfit(member, error)
                else:
                    self._refused = error
                    self._changed.set()
            except EngineError as error:
                self.lost(member, error)
            except Exception as error:  # a watcher's boundary: without it the server would never come back
                self.lost(member, EngineError(f"{member.server.url}: {error!r}"))
            await self._pause(member)

    def _unfit(self, member: Member, error: UsageError) -> None:
        """Told once, not at every look."""
        if member.problem != str(error):
            self._tell(f"SGLang server not used: {error}")
        self.lost(member, EngineError(str(error)))

    async def _pause(self, member: Member) -> None:
        """Until the next look at it; one that was up and is lost is looked at immediately."""
        if not member.up:
            await asyncio.sleep(self._poll_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll_s):
                await member.gone.wait()

    async def _recover(self, member: Member) -> None:
        member.info = await member.server.info()
        self._require_model(member)
        while True:
            wanted = self.wanted
            if wanted is not None:
                await self._send(member)
            if not await member.server.ready():
                await self._note_pause(member)
                raise EngineError(f"{member.server.url} answers and is not ready")
            if self.wanted is wanted:  # `load` takes care of those that are up, so nothing may be awaited from here on
                break
        member.gone = asyncio.Event()
        member.up, member.answered, member.paused_since = True, time.monotonic(), None
        self._served = True
        self._changed.set()
        self._tell(f"SGLang server {member.server.url} serves after {time.monotonic() - member.since:.1f} s")

    def _require_model(self, member: Member) -> None:
        ours = self._config.raw["architectures"][0]
        if member.info is not None and ours not in member.info.architectures:
            raise UsageError(f"{member.server.url} serves {', '.join(member.info.architectures)}; the trained model is {ours}")

    async def _probe(self, member: Member) -> None:
        """Alive is who answers; a busy machine may be silent for a while. Readiness only tells a pause that was left behind."""
        loads, wanted = member.loads, self.wanted
        try:
            name, ready = await member.server.weight_version(), await member.server.ready()
        except ServerGone as error:
            if _silent(error) and time.monotonic() - member.answered < SILENT_S:
                return
            raise
        member.answered = time.monotonic()
        nobody_loads = loads == member.loads and wanted is self.wanted and not member.loading.locked()
        if nobody_loads and self._is_outdated(name):
            await self._send(member)
        if ready:
            member.paused_since = None
        else:
            await self._note_pause(member)

    def _is_outdated(self, name: str) -> bool:
        """Whether a server with weights of this name was restarted or rolled back."""
        if self.wanted is None:
            return False
        held, wanted = self._names.version(name), self.wanted.version.version
        return held is None or (held < wanted if self._shared else held != wanted)

    async def _note_pause(self, member: Member) -> None:
        if member.paused_since is None:
            member.paused_since = time.monotonic()
        elif time.monotonic() - member.paused_since > STUCK_S:
            await self._unstick(member)
            member.paused_since = None

    async def _unstick(self, member: Member) -> None:
        """Waits while a loader is at work."""
        async with loader_lock(self._locks, member.server.url, self._tell):
            if await member.server.ready():
                return
            if self.wanted is None:
                await member.server.resume()
        if self.wanted is not None:
            await self._send(member)
        if await member.server.ready():
            self._tell(f"SGLang server {member.server.url} was left paused and is resumed")
        else:
            self._tell(
                f"SGLang server {member.server.url} is starting, or was left paused with newer weights than this worker's"
            )

    async def _bring(self, member: Member) -> None:
        assert self.wanted is not None
        try:
            await self._send(member, self.wanted.phases)
        except EngineError as error:
            self.lost(member, error)

    async def _send(self, member: Member, read: Mapping[str, float] | None = None) -> None:
        """What is wanted when its turn comes, so that of two at once the later never brings older weights.

        ``read``: seconds by phase that reading them took for this load.
        """
        async with member.loading:
            assert self.wanted is not None
            try:
                await self._send_now(member, self.wanted, read or {})
            finally:
                member.loads += 1

    async def _send_now(self, member: Member, weights: CheckedWeights, read: Mapping[str, float]) -> None:
        assert member.info is not None
        watch = Stopwatch()
        attempt = EngineLoad(member.server.url, weights.version.version, self._route)
        try:
            sent = await bring(
                member.server,
                member.info,
                weights,
                self._names,
                route=self._route,
                shared=self._shared,
                locks=self._locks,
                watch=watch,
                tell=self._tell,
            )
        except EngineError as error:
            self.log.add(replace(attempt, phases={**read, **watch.seconds}, error=str(error.args[0])))
            raise
        self.load_s += watch.total
        if sent is not None:
            self.loads += 1
            self.log.add(replace(attempt, phases={**read, **watch.seconds}, bytes=sent))


def _silent(error: EngineError) -> bool:
    """Nothing came back in time, which is not yet a refusal."""
    return isinstance(error.__cause__, httpx2.TimeoutException)
