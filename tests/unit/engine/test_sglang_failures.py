"""Servers that die, pause, restart, lie or refuse: what the SGLang engine makes of it."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx2
import pytest

from agentrl.engine.contract import GenerateRequest
from agentrl.engine.sglang import fleet, loading
from agentrl.engine.sglang.engine import REISSUES, SGLangEngine
from agentrl.engine.sglang.loading import loader_lock
from agentrl.engine.sglang.naming import WeightNames
from agentrl.engine.sglang.server import ServerRefused
from agentrl.errors import BrokenDistribution, EngineError, UsageError, WeightsCorrupt, WrongAnswer
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import checksum
from agentrl.model.tiny import initial_tensors
from agentrl.types import FinishReason, PolicyVersion, Sampling
from agentrl.weights.files import export_weights
from tests.fake_sglang import FakeSGLang
from tests.sglang_server import contract_model

POLL_S = 0.01


class Case:
    """Fake servers by URL, engines for them, versions of weights."""

    def __init__(self, folder: Path, model_dir: Path) -> None:
        self.folder, self.model_dir = folder, model_dir
        self.servers: dict[str, FakeSGLang] = {}
        self.said: list[str] = []
        self.engines: list[SGLangEngine] = []

    def server(self, name: str) -> FakeSGLang:
        return self.servers.setdefault(f"http://{name}", FakeSGLang(self.model_dir))

    async def engine(self, *names: str, **options: Any) -> SGLangEngine:
        for name in names:
            self.server(name)
        engine = await SGLangEngine.connect(
            [f"http://{name}" for name in names],
            self.model_dir,
            transport=self.servers.__getitem__,
            tell=self.said.append,
            **{"run": "r", "locks": self.folder / "locks", "poll_s": POLL_S, "wait_s": 5.0, **options},
        )
        self.engines.append(engine)
        return engine

    def version(self, number: int) -> PolicyVersion:
        folder = self.folder / f"v{number}"
        if not folder.exists():
            export_weights(initial_tensors(ModelConfig.read(self.model_dir), seed=number), folder)
        file = next(folder.glob("*.safetensors"))
        return PolicyVersion(number, None, number, str(file), checksum(file), "published")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return contract_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def case(tmp_path: Path, model_dir: Path) -> AsyncIterator[Case]:
    made = Case(tmp_path, model_dir)
    yield made
    for engine in made.engines:
        await engine.close()


def turn(session: str = "s", n: int = 20, ids: tuple[int, ...] = (10, 11, 12), **sampling: Any) -> GenerateRequest:
    return GenerateRequest(session, list(ids), n, (), Sampling(**sampling), 1)


async def eventually(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never happened")


async def test_reissue__a_turn_whose_server_died_is_answered_by_another(case: Case) -> None:
    engine = await case.engine("a", "b")
    await engine.load(case.version(1))
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    for server in case.servers.values():
        server.token_s = 0.005
    turns = [asyncio.create_task(engine.generate(turn(str(i)))) for i in range(6)]
    await asyncio.sleep(0.03)
    case.server("a").die()
    generations = await asyncio.gather(*turns)
    assert {len(g.token_ids) for g in generations} == {20}
    assert engine.metrics()["reissued"] == 3
    assert engine.metrics()["servers_up"] == 1
    assert any("lost" in line for line in case.said)


async def test_reissue__a_request_that_kills_servers_is_given_up(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    killer = case.server("a")
    killer.faults["/generate"] = [lambda reply: httpx2.ReadError("reset")] * (REISSUES + 1)
    with pytest.raises(EngineError, match="given up after 4"):
        await engine.generate(turn())
    assert len((await engine.generate(turn())).token_ids) == 20


async def test_current_before_routable__a_restarted_server_answers_with_the_newest_weights(case: Case) -> None:
    engine = await case.engine("a", "b")
    await engine.load(case.version(1))
    await engine.load(case.version(2))

    async def turns() -> None:
        for i in range(25):
            await engine.generate(turn(f"{i}", n=3))
            engine.release(f"{i}")

    acting = [asyncio.create_task(turns()) for _ in range(1)]
    await asyncio.sleep(0.005)
    restarted = case.server("a")
    restarted.die()
    await eventually(lambda: engine.metrics()["servers_up"] == 1)
    restarted.start()
    await asyncio.gather(*acting)
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    for i in range(10):
        assert set((await engine.generate(turn(f"late{i}", n=3))).versions.tolist()) == {2}
    assert set(restarted.served[-3:]) == {WeightNames("r").name(case.version(2))}
    assert any("serves after" in line for line in case.said)


def held_up(server: FakeSGLang) -> tuple[asyncio.Event, asyncio.Event]:
    """Set when the server is told to load from disk; what it waits for then."""
    begun, gate, update = asyncio.Event(), asyncio.Event(), server._update_weights_from_disk

    async def gated(body: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        await gate.wait()
        return await update(body)

    server._update_weights_from_disk = gated
    return begun, gate


async def restarted_in_a_load(case: Case, engine: SGLangEngine, name: str) -> asyncio.Event:
    """The server came back, and what it is to be given waits for the event."""
    server, up = case.server(name), engine.metrics()["servers_up"]
    server.die()
    await eventually(lambda: engine.metrics()["servers_up"] == up - 1)
    begun, gate = held_up(server)
    server.start()
    await asyncio.wait_for(begun.wait(), 5)
    return gate


async def test_current_before_routable__a_server_that_comes_back_while_a_version_is_loaded_gets_that(case: Case) -> None:
    engine = await case.engine("a", "b")
    await engine.load(case.version(1))
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    gate = await restarted_in_a_load(case, engine, "b")
    await engine.load(case.version(2))
    gate.set()
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    assert case.server("b").name == WeightNames("r").name(case.version(2))
    for i in range(4):
        assert set((await engine.generate(turn(str(i), n=3))).versions.tolist()) == {2}


async def test_current_before_routable__the_only_server_comes_back_while_a_version_is_loaded(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    gate = await restarted_in_a_load(case, engine, "a")
    loading = asyncio.create_task(engine.load(case.version(2)))
    await eventually(lambda: engine._fleet.wanted is not None and engine._fleet.wanted.version.version == 2)
    gate.set()
    await loading
    assert set((await engine.generate(turn(n=3))).versions.tolist()) == {2}


async def test_current_before_routable__an_own_server_that_comes_back_goes_back_with_the_others(case: Case) -> None:
    engine = await case.engine("a", "b", shared=False)
    await engine.load(case.version(2))
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    gate = await restarted_in_a_load(case, engine, "b")
    await engine.load(case.version(1))
    gate.set()
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    assert case.server("b").name == WeightNames("r").name(case.version(1))


async def test_own_server_with_a_newer_version_than_wanted__is_brought_back(case: Case) -> None:
    engine = await case.engine("a", shared=False)
    await engine.load(case.version(1))
    case.server("a").name = WeightNames("r").name(case.version(2))
    await eventually(lambda: case.server("a").name == WeightNames("r").name(case.version(1)))


async def test_one_after_the_other__a_load_waits_for_the_one_before_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await case.engine("a", shared=False)
    await engine.load(case.version(2))
    begun, gate, bring = [], asyncio.Event(), fleet.bring

    async def gated(server: Any, info: Any, weights: Any, *arguments: Any, **options: Any) -> Any:
        begun.append(weights.version.version)
        await gate.wait()
        return await bring(server, info, weights, *arguments, **options)

    monkeypatch.setattr(fleet, "bring", gated)
    case.server("a").name = "default"  # rolled back: a probe finds it
    await eventually(lambda: begun == [2])
    loading = asyncio.create_task(engine.load(case.version(1)))
    await eventually(lambda: engine._fleet.wanted is not None and engine._fleet.wanted.version.version == 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert begun == [2]
    gate.set()
    await loading
    assert begun == [2, 1]
    assert case.server("a").name == WeightNames("r").name(case.version(1))


async def test_current_before_routable__a_restart_nobody_saw_gives_no_token(case: Case) -> None:
    engine = await case.engine("a", poll_s=60.0)
    await engine.load(case.version(1))
    case.server("a").start()  # base weights, between two probes
    generation = await engine.generate(turn())
    assert set(generation.versions.tolist()) == {1}
    assert case.server("a").served == ["default", WeightNames("r").name(case.version(1))]


async def test_sticky__a_session_stays_and_sessions_spread(case: Case) -> None:
    engine = await case.engine("a", "b")
    await engine.load(case.version(1))
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    for _ in range(3):
        for i in range(4):
            await engine.generate(turn(str(i), n=2))
    assert [len(server.served) for server in case.servers.values()] == [6, 6]
    assert engine.metrics()["cached_tokens"] > 0


async def test_nobody_waits_for_ever__no_server_is_an_error_that_names_them(case: Case) -> None:
    for name in ("a", "b"):
        case.server(name).die()
    with pytest.raises(EngineError, match=r"http://a: .*ConnectError.*http://b: .*ConnectError"):
        await case.engine("a", "b", wait_s=0.05)
    engine = await case.engine("c", wait_s=0.1)
    await engine.load(case.version(1))
    case.server("c").die()
    with pytest.raises(EngineError, match=r"given up|no SGLang server serves"):
        await engine.generate(turn())


@pytest.mark.parametrize("broken", ["bring", "loader_lock"])
async def test_watched_for_good__an_error_that_nobody_foresaw_costs_one_look(
    case: Case, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    case.server("a").die()
    await eventually(lambda: engine.metrics()["servers_up"] == 0)
    place = f"agentrl.engine.sglang.{'fleet.bring' if broken == 'bring' else 'loading.loader_lock'}"
    monkeypatch.setattr(place, once_broken(place, ArithmeticError("unforeseen")))
    case.server("a").start()
    assert len((await engine.generate(turn())).token_ids) == 20


async def test_watched_for_good__no_lock_loses_the_server_until_there_is_one(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    place = "agentrl.engine.sglang.loading.fcntl.flock"
    monkeypatch.setattr(place, once_broken(place, OSError(errno.ENOLCK, "No locks available")))
    await engine.load(case.version(2))
    assert set((await engine.generate(turn())).versions.tolist()) == {2}
    (told,) = [line for line in case.said if "lost" in line]
    assert re.search(r"http://a: its weights can't be changed without the lock /.*\.lock: .*No locks available", told)


async def test_watched_for_good__a_page_of_something_else_is_told_once_and_the_server_comes_back(case: Case) -> None:
    engine = await case.engine("a", "b")
    await engine.load(case.version(1))
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    case.server("b").faults["/server_info"] = [lambda reply: httpx2.Response(200, text="starting up")] * 3
    for name in ("b", "a"):
        case.server(name).die()
        await eventually(lambda: engine.metrics()["servers_up"] == 1)
        case.server(name).start()
        await eventually(lambda: engine.metrics()["servers_up"] == 2)
    assert len([line for line in case.said if "http://b is not an SGLang server" in line]) == 1


def once_broken(place: str, error: Exception) -> Callable[..., Any]:
    """What stands at ``place``, but its first call raises."""
    whole: Callable[..., Any] = resolve_name(place)
    errors = [error]

    def call(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return whole(*arguments, **options)

    return call


async def test_nobody_waits_for_ever__the_wait_is_told_once_for_all_who_wait(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    monkeypatch.setattr(fleet, "TELL_S", 0.2)
    case.server("a").die()
    turns = [asyncio.create_task(engine.generate(turn(str(i)))) for i in range(8)]
    await eventually(lambda: any("waiting for an SGLang server" in line for line in case.said))
    case.server("a").start()
    await asyncio.gather(*turns)
    waits = [line for line in case.said if "waiting" in line]
    assert len(waits) == len(set(waits))
    assert "http://a: " in waits[0]


async def test_nobody_waits_for_ever__a_pause_without_end_is_an_error_at_the_deadline(case: Case) -> None:
    engine = await case.engine("a", request_s=0.1)
    await engine.load(case.version(1))
    case.server("a").paused = True
    with pytest.raises(EngineError, match="no answer within"):
        await engine.generate(turn())


async def test_paused_is_alive__one_that_was_left_paused_is_resumed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    case.server("a").paused = True
    waiting = asyncio.create_task(engine.generate(turn()))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert engine.metrics()["servers_up"] == 1
    monkeypatch.setattr(fleet, "STUCK_S", 0.02)
    assert len((await waiting).token_ids) == 20
    assert engine.metrics()["servers_lost"] == 0
    assert any("left paused" in line for line in case.said)


async def test_paused_is_alive__also_when_nothing_was_loaded_here_yet(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "STUCK_S", 0.02)
    case.server("a").paused = True
    engine = await case.engine("a")
    await engine.load(case.version(1))
    assert len((await engine.generate(turn())).token_ids) == 20


async def test_paused_is_alive__one_that_holds_something_else_is_loaded_again(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    server = case.server("a")
    right, server.sums = server.sums, {"model.norm.weight": "0"}
    server.paused = True
    monkeypatch.setattr(fleet, "STUCK_S", 0.02)
    await eventually(lambda: not server.paused)
    assert server.sums == right
    assert server.calls.count("/update_weights_from_disk") == 2


async def test_name_and_sums__newer_weights_that_were_left_paused_wait_for_who_can_compare_them(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    server = case.server("a")
    server.paused, server.name, server.sums = True, WeightNames("r").name(case.version(2)), {"model.norm.weight": "0"}
    monkeypatch.setattr(fleet, "STUCK_S", 0.02)
    await eventually(lambda: any("left paused with newer weights" in line for line in case.said))
    assert server.paused
    await engine.load(case.version(2))
    assert not server.paused
    assert server.calls.count("/update_weights_from_disk") == 2
    assert set((await engine.generate(turn())).versions.tolist()) == {2}


async def test_paused_is_alive__a_loader_at_work_is_not_disturbed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    monkeypatch.setattr(fleet, "STUCK_S", 0.02)
    async with loader_lock(case.folder / "locks", "http://a"):
        case.server("a").paused = True
        await asyncio.sleep(0.1)
        assert case.server("a").paused
    await eventually(lambda: not case.server("a").paused)


async def test_one_loader__two_workers_load_once_and_both_know_it(case: Case) -> None:
    first, second = await case.engine("a"), await case.engine("a")
    await asyncio.gather(first.load(case.version(1)), second.load(case.version(1)))
    assert case.server("a").calls.count("/update_weights_from_disk") == 1
    assert (first.version, second.version) == (1, 1)
    assert not case.server("a").paused


async def test_one_loader__who_waits_for_another_says_so(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await case.engine("a")
    monkeypatch.setattr(loading, "LOCK_TELL_S", 0.05)
    async with loader_lock(case.folder / "locks", "http://a"):
        waiting = asyncio.create_task(engine.load(case.version(1)))
        await eventually(lambda: len(case.said) > 2)
        assert not waiting.done()
    await waiting
    assert re.fullmatch(
        r"waiting since 0 s for the process that changes the weights of http://a and holds /.*\.lock", case.said[1]
    )


async def test_one_loader__a_cancelled_one_ends_what_it_began(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    server = case.server("a")
    begun, gate = held_up(server)
    loading = asyncio.create_task(engine.load(case.version(2)))
    await asyncio.wait_for(begun.wait(), 5)
    for _ in range(2):
        loading.cancel()
        await asyncio.sleep(0.01)
        assert not loading.done()
        assert server.paused
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert (server.paused, server.name) == (False, WeightNames("r").name(case.version(2)))


async def test_one_loader__one_that_died_in_a_pause_is_made_up_for(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    second = await case.engine("a")
    case.server("a").paused = True
    await second.load(case.version(1))
    assert not case.server("a").paused


async def test_never_back__a_shared_server_keeps_newer_weights_and_an_own_one_goes_back(case: Case) -> None:
    slow, fast = await case.engine("a"), await case.engine("a")
    await fast.load(case.version(2))
    await slow.load(case.version(1))
    assert case.server("a").name == WeightNames("r").name(case.version(2))
    alone = await case.engine("b", shared=False)
    await alone.load(case.version(2))
    await alone.load(case.version(1))
    assert set((await alone.generate(turn())).versions.tolist()) == {1}


async def test_rolled_back_by_a_stale_trainer__the_newest_is_loaded_again(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(2))
    case.server("a").name = WeightNames("r").name(case.version(1))
    await eventually(lambda: case.server("a").name == WeightNames("r").name(case.version(2)))


def wrong_sums(reply: Any) -> Any:
    return {"ranks": [{"checksums": {"model.norm.weight": "0"}}]}


async def test_other_sums_after_a_load__the_server_stays_paused_until_they_are_right(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    server = case.server("a")
    server.faults["/weights_checker"] = [wrong_sums]
    await engine.load(case.version(2))
    assert engine.metrics()["servers_lost"] == 1
    assert any("another sum" in line for line in case.said)
    assert set((await engine.generate(turn())).versions.tolist()) == {2}


async def test_name_and_sums__a_server_with_other_weights_under_the_name_is_loaded_again(case: Case) -> None:
    engine = await case.engine("a")
    server = case.server("a")
    server.faults["/weights_checker"] = [wrong_sums, wrong_sums]
    await engine.load(case.version(1))
    assert server.calls.count("/update_weights_from_disk") == 2
    assert len((await engine.generate(turn())).token_ids) == 20


async def test_refused_load__the_old_weights_serve_until_it_works(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    refusal = httpx2.Response(400, json={"success": False, "message": "no such\nfolder"})
    case.server("a").faults["/update_weights_from_disk"] = [lambda reply: refusal]
    await engine.load(case.version(2))
    assert any("refused the weights" in line and "no such folder" in line for line in case.said)


async def test_loads__one_for_each_server_that_was_sent_something(case: Case) -> None:
    engine = await case.engine("a", "b")
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    await engine.load(case.version(1))
    case.server("a").faults["/weights_checker"] = [wrong_sums, wrong_sums]
    await engine.load(case.version(2))
    await eventually(lambda: engine.metrics()["servers_up"] == 2)
    loads = engine.take_loads()
    assert sorted((load.version, load.engine, load.error is None) for load in loads) == [
        (1, "http://a", True), (1, "http://b", True), (2, "http://a", False), (2, "http://a", True), (2, "http://b", True),
    ]  # fmt: skip
    first = loads[0]
    assert list(first.phases) == ["checksum", "read", "check", "lock", "pause", "transfer", "verify", "resume"]
    assert (first.transport, first.bytes) == ("disk", sum(t.nbytes for t in case.server("a").tensors.values()))
    assert engine.take_loads() == []


async def test_loads__a_damaged_file_is_one_that_failed(case: Case) -> None:
    engine = await case.engine("a")
    version = case.version(1)
    Path(version.uri).unlink()
    with pytest.raises(WeightsCorrupt):
        await engine.load(version)
    (load,) = engine.take_loads()
    assert (load.engine, load.version) == ("", 1)
    assert "can't read" in str(load.error)


async def test_checked_before_sent__a_damaged_file_touches_no_server(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    calls = len([c for c in case.server("a").calls if "weight" in c])
    version = case.version(2)
    with Path(version.uri).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    with pytest.raises(WeightsCorrupt, match="checksum"):
        await engine.load(version)
    assert len([c for c in case.server("a").calls if "weight" in c]) == calls
    assert engine.version == 1


def damaged(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda reply: {**reply, "meta_info": {**reply["meta_info"], **changes}}


def spans(*named: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"version": name, "start": start, "end": end} for name, start, end in named]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (damaged(output_token_logprobs=[[-0.5, 1, None]]), "1 log-probs for 3 tokens"),
        (lambda reply: damaged(output_token_logprobs=_with(reply, 1, [None, None]))(reply), "token 1 is None"),
        (lambda reply: damaged(output_token_logprobs=_with(reply, 2, [-0.5, 249]))(reply), "log-prob of token 2 is of id"),
        (damaged(weight_versions=spans(("r@2#x", 0, 1), ("r@1#x", 1, 3))), "decrease"),
        (damaged(weight_versions=spans(("r@1#x", 0, 2))), "token 2 of 3 has no version"),
        (damaged(completion_tokens=4), "3 ids, but the server counted 4"),
        (
            lambda reply: {**damaged(output_token_logprobs=_with(reply, 0, [-0.5, 10**6]))(reply), "output_ids": [10**6, 1, 1]},
            "id 1000000 is outside of",
        ),
        (damaged(finish_reason={"type": "tired"}), "malformed"),
        (lambda reply: {"output_ids": "x"}, "malformed"),
        (lambda reply: [reply], "not an object"),
        (lambda reply: httpx2.Response(200, content=b"[" * 10**5, headers={"content-type": "application/json"}), "not JSON"),
        (lambda reply: httpx2.Response(200, content=b"{", headers={"content-type": "application/json"}), "not JSON"),
        (lambda reply: httpx2.Response(400, json={"error": "bad\x1b request"}), "HTTP 400: bad"),
    ],
)
async def test_one_length_and_version_truth__a_lie_costs_one_turn(case: Case, fault: Any, message: str) -> None:
    kind = {"token 1 is None": BrokenDistribution, "HTTP 400: bad": ServerRefused}.get(message, WrongAnswer)
    engine = await case.engine("a")
    await engine.load(case.version(1))
    case.server("a").faults["/generate"] = [fault]
    with pytest.raises(EngineError, match=re.escape(message)) as raised:
        await engine.generate(turn(n=3))
    assert type(raised.value) is kind
    assert len((await engine.generate(turn(n=3))).token_ids) == 3


def _with(reply: dict[str, Any], place: int, row: list[Any]) -> list[Any]:
    rows = [list(r) for r in reply["meta_info"]["output_token_logprobs"]]
    rows[place] = [row[0], rows[place][1] if row[1] is None else row[1], None]
    return rows


@pytest.mark.parametrize("status", [500, 503])
async def test_server_error__is_tried_again_since_nothing_was_recorded(case: Case, status: int) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    case.server("a").faults["/generate"] = [lambda reply: httpx2.Response(status, text="oops")]
    assert len((await engine.generate(turn())).token_ids) == 20
    assert engine.metrics()["reissued"] == 1


async def test_server_error__again_and_again_is_given_up(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    case.server("a").faults["/generate"] = [lambda reply: httpx2.Response(500, text="oops")] * (REISSUES + 1)
    with pytest.raises(EngineError, match=r"given up after 4 servers failed: http://a/generate: HTTP 500: oops"):
        await engine.generate(turn())
    assert len((await engine.generate(turn())).token_ids) == 20


@pytest.mark.parametrize("reason", ["stop", "abort", "length"])
async def test_empty_completion__is_asked_again_and_given_up_in_the_end(case: Case, reason: str) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    empty = damaged(
        finish_reason={"type": reason, "message": "too long\x1b"},
        output_token_logprobs=[],
        weight_versions=[],
        completion_tokens=0,
    )
    case.server("a").faults["/generate"] = [lambda reply: {**empty(reply), "output_ids": []}] * REISSUES
    assert len((await engine.generate(turn())).token_ids) == 20
    case.server("a").faults["/generate"] = [lambda reply: {**empty(reply), "output_ids": []}] * (REISSUES + 1)
    with pytest.raises(WrongAnswer, match=f"4 answers without a token, the last ended by {reason}: too long"):
        await engine.generate(turn())


async def test_text__is_handed_on_for_the_comparison_with_the_ids(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    server = case.server("a")
    assert (await engine.generate(turn())).text is None, "a server without a tokenizer gives none"
    server.faults["/generate"] = [lambda reply: {**reply, "text": "<tool_call>"}]
    assert (await engine.generate(turn())).text == "<tool_call>"
    assert server.asked[-1]["sampling_params"]["skip_special_tokens"] is False, "control tokens are a part of it"
    server.script = lambda ids, n: 2 if n == 3 else 7  # an end that the request does not name: the turn goes on behind it
    server.faults["/generate"] = [lambda reply: {**reply, "text": "half"}]
    stopping = GenerateRequest("s", [10, 11, 12], 8, (9,), Sampling(), 1)
    assert (await engine.generate(stopping)).text is None, "pieces may end within a character"


async def test_server_that_names_no_weights__is_lost_and_watched_on(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    case.server("a").faults["/model_info"] = [lambda reply: {"hello": 1}]
    await eventually(lambda: engine.metrics()["servers_lost"] == 1)
    assert any("names no weight_version" in line for line in case.said)
    assert len((await engine.generate(turn())).token_ids) == 20


@pytest.mark.parametrize("error", [httpx2.ReadError("cut"), httpx2.RemoteProtocolError("cut"), httpx2.DecodingError("cut")])
async def test_cut_connection__costs_that_request_and_not_the_server(case: Case, error: Exception) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    case.server("a").faults["/generate"] = [lambda reply: error]
    assert len((await engine.generate(turn())).token_ids) == 20
    assert engine.metrics()["servers_lost"] == 0


async def test_abort_is_partial__also_while_no_server_is_there(case: Case) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    case.server("a").die()
    await eventually(lambda: engine.metrics()["servers_up"] == 0)
    waiting = asyncio.create_task(engine.generate(turn()))
    await asyncio.sleep(0.02)
    engine.release("s")
    generation = await waiting
    assert (generation.finish_reason, len(generation.token_ids)) == (FinishReason.ABORT, 0)


@pytest.mark.parametrize(("attribute", "value"), [("version", "0.5.20"), ("architecture", "Qwen3ForCausalLM")])
async def test_server_that_cant_serve_the_run__refused_at_the_start(case: Case, attribute: str, value: str) -> None:
    setattr(case.server("a"), attribute, value)
    with pytest.raises(UsageError, match=re.escape(value)):
        await case.engine("a")


async def test_preflight__a_server_that_samples_otherwise_than_asked_is_refused(case: Case) -> None:
    case.server("a").preferred = {"temperature": 0.6}
    await case.engine("a")  # each request names its own
    case.server("b").preferred = {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}
    with pytest.raises(UsageError, match=r"http://b was started with .* that set repetition_penalty, top_p"):
        await case.engine("b")


@pytest.mark.parametrize("sampling", [{"top_p": 0.9}, {"top_k": 5}])
async def test_preflight__cut_distributions_are_refused(case: Case, sampling: dict[str, Any]) -> None:
    engine = await case.engine("a")
    await engine.load(case.version(1))
    with pytest.raises(UsageError, match="replayed"):
        await engine.generate(turn(**sampling))


@pytest.mark.parametrize("name", ["default", "r", "r@", "r@x#1", "other@3#1", "r@3x", "r@-1#2"])
def test_names__only_our_own_give_a_version(name: str) -> None:
    assert WeightNames("r").version(name) is None
    assert WeightNames("a@b").version(WeightNames("a@b").name(PolicyVersion(7, None, 7, "", "sha256:ab", "staged"))) == 7
