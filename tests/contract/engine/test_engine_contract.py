"""What every engine promises, whatever computes its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from agentrl.engine.contract import GenerateRequest, Generation
from agentrl.errors import EngineError, UsageError, WeightsCorrupt
from agentrl.types import FinishReason, PolicyVersion, Sampling
from tests.contract.engine.harness import TOKENS, MakeEngine, midway

MakeRequest = Callable[..., GenerateRequest]
Versions = Callable[[int], PolicyVersion]

HALF = tuple(range(0, 250, 2))


def assert_well_formed(generation: Generation) -> None:
    n = len(generation.token_ids)
    assert generation.token_ids.dtype == np.int32
    assert generation.logprobs.dtype == np.float32
    assert generation.versions.dtype == np.int32
    assert len(generation.logprobs) == len(generation.versions) == n
    assert np.isfinite(generation.logprobs).all()
    assert (generation.logprobs <= 0).all()
    assert (np.diff(generation.versions) >= 0).all()


async def test_stop_token_sampled__is_last_and_has_logprob(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine()
    await engine.load(versions(1))
    generation = await engine.generate(make_request(n=60, stops=HALF))
    assert_well_formed(generation)
    assert generation.finish_reason is FinishReason.STOP
    assert int(generation.token_ids[-1]) in HALF
    assert not set(generation.token_ids[:-1].tolist()) & set(HALF)
    await engine.close()


async def test_token_budget_used_up__length_and_exactly_that_many(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine()
    await engine.load(versions(3))
    generation = await engine.generate(make_request(n=7))
    assert_well_formed(generation)
    assert generation.finish_reason is FinishReason.LENGTH
    assert len(generation.token_ids) == 7
    assert set(generation.versions.tolist()) == {3}
    await engine.close()


async def test_whole_context_used__allowed_and_one_more_refused(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine()
    await engine.load(versions(1))
    room = engine.info.max_context - 4
    generation = await engine.generate(make_request(n=room))
    assert len(generation.token_ids) == room
    with pytest.raises(EngineError, match="context"):
        await engine.generate(make_request(n=room + 1))
    await engine.close()


async def test_load_in_mid_turn__versions_span_both(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine(slow=True)
    await engine.load(versions(1))
    turn = asyncio.create_task(engine.generate(make_request(n=TOKENS)))
    await midway(engine)
    await engine.load(versions(2))
    assert engine.version == 2
    generation = await turn
    assert_well_formed(generation)
    assert set(generation.versions.tolist()) == {1, 2}
    await engine.close()


async def test_release_in_mid_turn__abort_with_tokens_so_far(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine(slow=True)
    await engine.load(versions(1))
    turn = asyncio.create_task(engine.generate(make_request(n=TOKENS)))
    await midway(engine)
    engine.release("s")
    generation = await turn
    assert_well_formed(generation)
    assert generation.finish_reason is FinishReason.ABORT
    assert 0 < len(generation.token_ids) < TOKENS
    await engine.close()


async def test_release_twice_or_of_nobody__harmless(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine(slots=1)
    await engine.load(versions(1))
    for _ in range(2):
        await engine.generate(make_request(n=2))
        for session in ("s", "s", "nobody"):
            engine.release(session)
    await engine.close()


async def test_close_with_turns_running__all_end_and_later_ones_refused(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine(slots=2, slow=True)
    await engine.load(versions(1))
    turns = [asyncio.create_task(engine.generate(make_request(str(i), n=TOKENS))) for i in range(5)]
    for _ in range(6):
        await asyncio.sleep(0)
    await engine.close()
    generations = await asyncio.gather(*turns)
    assert {g.finish_reason for g in generations} == {FinishReason.ABORT}
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(make_request())


async def test_caller_cancelled__session_can_go_on(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine(slots=1, slow=True)
    await engine.load(versions(1))
    turn = asyncio.create_task(engine.generate(make_request(n=TOKENS)))
    for _ in range(6):
        await asyncio.sleep(0)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert len((await engine.generate(make_request(n=5))).token_ids) == 5
    await engine.close()


async def test_same_session_twice_at_once__refused(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine(slow=True)
    await engine.load(versions(1))
    turn = asyncio.create_task(engine.generate(make_request(n=30)))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="running already"):
        await engine.generate(make_request(n=30))
    await turn
    await engine.close()


async def test_no_version_loaded__refused(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = await make_engine()
    assert engine.version < 0
    with pytest.raises(EngineError, match="load a version"):
        await engine.generate(make_request())
    await engine.close()


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=5), Sampling(temperature=-1.0)])
async def test_sampling_that_cant_be_replayed__refused(make_engine: MakeEngine, versions: Versions, sampling: Sampling) -> None:
    engine = await make_engine()
    await engine.load(versions(1))
    with pytest.raises(UsageError):
        await engine.generate(GenerateRequest("s", [1, 2], 5, (), sampling, 0))
    await engine.close()


async def test_same_seed_in_other_company__same_tokens(
    make_engine: MakeEngine, make_request: MakeRequest, versions: Versions
) -> None:
    engine = await make_engine(slots=4)
    if not engine.info.reproducible:
        pytest.skip(f"{engine.info.name} does not promise reproducible draws")
    await engine.load(versions(1))
    alone = await engine.generate(make_request("alone", seed=7))
    crowd = await asyncio.gather(*[engine.generate(make_request(str(i), seed=7 + i)) for i in range(9)])
    assert alone.token_ids.tolist() == crowd[0].token_ids.tolist()
    assert np.allclose(alone.logprobs, crowd[0].logprobs, atol=1e-5)
    assert alone.token_ids.tolist() != crowd[1].token_ids.tolist()
    await engine.close()


async def test_metrics__count_what_went_through(make_engine: MakeEngine, make_request: MakeRequest, versions: Versions) -> None:
    engine = await make_engine()
    await engine.load(versions(1))
    first = await engine.generate(make_request(token_ids=[1, 2, 3], n=6))
    second = await engine.generate(make_request(token_ids=[1, 2, 3, *first.token_ids.tolist(), 4], n=5))
    metrics = engine.metrics()
    assert metrics["turns"] == 2
    assert metrics["prompt_tokens"] == 3 + 10
    assert metrics["sampled_tokens"] == 11
    assert metrics["cached_tokens"] == second.cached_tokens
    assert metrics["queue_s"] >= 0
    await engine.close()


async def test_take_loads__each_attempt_once_with_its_outcome(make_engine: MakeEngine, versions: Versions) -> None:
    engine = await make_engine()
    await engine.load(versions(1))
    (load,) = engine.take_loads()
    assert (load.version, load.error) == (1, None)
    assert all(seconds >= 0 for seconds in load.phases.values())
    assert engine.take_loads() == []
    gone = replace(versions(2), uri="/nowhere/model.safetensors")
    if engine.info.name != "scripted":
        with pytest.raises(WeightsCorrupt):
            await engine.load(gone)
        (failed,) = engine.take_loads()
        assert failed.version == 2
        assert "/nowhere" in str(failed.error)
    await engine.close()
