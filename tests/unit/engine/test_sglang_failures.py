"""Servers that die, pause, restart or hold other weights: what the SGLang engine makes of it."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx2
import pytest
from failing_servers import Case, eventually, turn

from agentrl.engine.sglang import fleet, loading
from agentrl.engine.sglang.engine import REISSUES, SGLangEngine
from agentrl.engine.sglang.loading import loader_lock
from agentrl.engine.sglang.naming import WeightNames
from agentrl.errors import EngineError, WeightsCorrupt
from tests.fake_sglang import FakeSGLang


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
