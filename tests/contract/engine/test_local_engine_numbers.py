"""The in-process engine computes what it says: compared with transformers and with fresh engines."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.engine.contract import GenerateRequest, Generation
from agentrl.engine.local import LocalEngine
from agentrl.errors import BrokenDistribution, EngineError, WeightsCorrupt
from agentrl.model.safetensors_io import checksum
from agentrl.types import FinishReason, PolicyVersion
from agentrl.weights.files import export_weights

MakeRequest = Callable[..., GenerateRequest]
Versions = Any
"""The fixture of that name: a version number to its weights, ``tensors`` of it for the bare ones."""
Reference = Callable[..., np.ndarray]
Played = tuple[list[int], np.ndarray, np.ndarray, list[Generation]]
TOLERANCE = 1e-5


async def play(
    engine: LocalEngine, make_request: MakeRequest, session: str, *, seed: int, turns: int = 3, **options: Any
) -> Played:
    """An episode of several turns with forced text between them: ids, mask and log-probs."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 250, 1 + seed % 9).tolist()
    mask, logprobs, generations = [0] * len(ids), [0.0] * len(ids), []
    for turn in range(turns):
        generation: Generation = await engine.generate(make_request(session, ids, n=8, seed=seed * 10 + turn, **options))
        generations.append(generation)
        forced = rng.integers(0, 250, 1 + (seed + turn) % 11).tolist()
        ids = ids + generation.token_ids.tolist() + forced
        mask += [1] * len(generation.token_ids) + [0] * len(forced)
        logprobs += generation.logprobs.tolist() + [0.0] * len(forced)
        await asyncio.sleep(0)
    return ids, np.array(mask, dtype=bool), np.array(logprobs, dtype=np.float32), generations


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
@pytest.mark.parametrize("slots", [16, 3])
async def test_one_distribution_in_mixed_company__equals_transformers(
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
    reference: Reference,
    temperature: float,
    slots: int,
) -> None:
    engine = LocalEngine(model_dir, slots=slots)
    await engine.load(versions(1))
    played = await asyncio.gather(
        *[play(engine, make_request, str(i), seed=i, temperature=temperature, stops=(5, 7)) for i in range(12)]
    )
    for ids, mask, logprobs, _ in played:
        expected = reference(1, ids, temperature)
        assert np.abs(expected - logprobs[1:])[mask[1:]].max() < TOLERANCE
    await engine.close()


async def test_prefix_of_a_session__is_reused_between_turns(
    model_dir: Path, versions: Versions, make_request: MakeRequest
) -> None:
    engine = LocalEngine(model_dir)
    await engine.load(versions(1))
    first = await engine.generate(make_request(n=6))
    ids = [10, 11, 12, 13, *first.token_ids.tolist(), 20, 21]
    second = await engine.generate(make_request(token_ids=ids, n=6))
    assert first.cached_tokens == 0
    assert second.cached_tokens == len(ids) - 3  # the last sampled token and the two forced ones are new
    engine.release("s")
    assert (await engine.generate(make_request(token_ids=ids, n=6))).cached_tokens == 0
    await engine.close()


async def test_last_token_is_fed_before_the_next_text__equals_one_long_prompt(
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
) -> None:
    engine = LocalEngine(model_dir)
    await engine.load(versions(1))
    ids, _, _, generations = await play(engine, make_request, "s", seed=4)
    last = generations[-1]
    prompt = ids[: len(ids) - len(last.token_ids) - (1 + (4 + 2) % 11)]
    again = await engine.generate(make_request("fresh", prompt, n=8, seed=42))
    assert again.token_ids.tolist() == last.token_ids.tolist()
    assert np.abs(again.logprobs - last.logprobs).max() < TOLERANCE
    await engine.close()


async def test_history_rewritten__new_prefix_decides(model_dir: Path, versions: Versions, make_request: MakeRequest) -> None:
    engine = LocalEngine(model_dir)
    await engine.load(versions(1))
    await engine.generate(make_request(token_ids=[1, 2, 3, 4, 5, 6, 7, 8], n=10))
    rewritten = await engine.generate(make_request(token_ids=[1, 2, 3, 99, 5], n=10, seed=3))
    fresh = await engine.generate(make_request("fresh", [1, 2, 3, 99, 5], n=10, seed=3))
    assert rewritten.cached_tokens == 3
    assert rewritten.token_ids.tolist() == fresh.token_ids.tolist()
    assert np.abs(rewritten.logprobs - fresh.logprobs).max() < TOLERANCE
    await engine.close()


async def test_no_old_cache_after_load__equals_a_fresh_engine(
    model_dir: Path, versions: Versions, make_request: MakeRequest
) -> None:
    engine = LocalEngine(model_dir)
    await engine.load(versions(1))
    first = await engine.generate(make_request(n=10))
    ids = [10, 11, 12, 13, *first.token_ids.tolist(), 20, 21]
    await engine.load(versions(2))
    second = await engine.generate(make_request(token_ids=ids, n=10, seed=5))
    fresh_engine = LocalEngine(model_dir)
    await fresh_engine.load(versions(2))
    fresh = await fresh_engine.generate(make_request(token_ids=ids, n=10, seed=5))
    assert second.cached_tokens == 0
    assert second.token_ids.tolist() == fresh.token_ids.tolist()
    assert np.abs(second.logprobs - fresh.logprobs).max() < TOLERANCE
    await engine.close()
    await fresh_engine.close()


async def test_no_old_cache_after_load_in_mid_turn__each_token_is_of_its_version(
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
    reference: Reference,
) -> None:
    engine = LocalEngine(model_dir, slots=4)
    await engine.load(versions(1))
    turns = [asyncio.create_task(engine.generate(make_request(str(i), n=80, seed=i))) for i in range(3)]
    for version in (2, 3):
        for _ in range(15):
            await asyncio.sleep(0)
        await engine.load(versions(version))
    for generation in await asyncio.gather(*turns):
        ids = [10, 11, 12, 13, *generation.token_ids.tolist()]
        assert set(generation.versions.tolist()) == {1, 2, 3}
        expected = {v: reference(v, ids)[3:] for v in (1, 2, 3)}
        of_its_version = np.array([expected[v][i] for i, v in enumerate(generation.versions.tolist())])
        assert np.abs(of_its_version - generation.logprobs).max() < TOLERANCE
        assert np.abs(expected[1] - generation.logprobs).max() > 0.1
    await engine.close()


async def test_nobody_waits_for_ever_with_one_slot__all_answered_as_with_many(
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
) -> None:
    results = []
    for slots in (1, 16):
        engine = LocalEngine(model_dir, slots=slots)
        await engine.load(versions(1))
        results.append(await asyncio.gather(*[play(engine, make_request, str(i), seed=i) for i in range(6)]))
        await engine.close()
    for (few, _, few_logprobs, _), (many, _, many_logprobs, _) in zip(*results, strict=True):
        assert few == many
        assert np.abs(few_logprobs - many_logprobs).max() < TOLERANCE


async def test_nobody_waits_for_ever_when_the_engine_breaks__every_request_fails(
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    engine = LocalEngine(model_dir, slots=2)
    await engine.load(versions(1))
    monkeypatch.setattr("agentrl.engine.local.draw", broken)
    answers = await asyncio.gather(*[engine.generate(make_request(str(i))) for i in range(5)], return_exceptions=True)
    assert all(isinstance(answer, EngineError) and "out of memory" in str(answer) for answer in answers)
    monkeypatch.undo()
    assert len((await engine.generate(make_request(n=5))).token_ids) == 5
    await engine.close()


async def test_greedy__most_likely_token_with_raw_logprob(
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
    reference: Reference,
) -> None:
    engine = LocalEngine(model_dir)
    await engine.load(versions(1))
    greedy, other = await asyncio.gather(
        engine.generate(make_request("a", temperature=0.0, seed=1)), engine.generate(make_request("b", temperature=0.0, seed=2))
    )
    ids = [10, 11, 12, 13, *greedy.token_ids.tolist()]
    assert greedy.token_ids.tolist() == other.token_ids.tolist()
    assert np.abs(reference(1, ids)[3:] - greedy.logprobs).max() < TOLERANCE
    await engine.close()


async def test_long_prompt_beside_short_ones__split_over_steps_and_equal(
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrl.engine.local.ROWS_PER_STEP", 7)
    engine = LocalEngine(model_dir, slots=12)
    await engine.load(versions(1))
    prompts = {str(i): np.random.default_rng(i).integers(0, 250, 3 + 7 * i).tolist() for i in range(10)}
    generations = await asyncio.gather(*[engine.generate(make_request(name, ids, n=5)) for name, ids in prompts.items()])
    for ids, generation in zip(prompts.values(), generations, strict=True):
        expected = reference(1, ids + generation.token_ids.tolist())[len(ids) - 1 :]
        assert np.abs(expected - generation.logprobs).max() < TOLERANCE
    await engine.close()


async def test_damaged_file__refused_and_old_weights_stay(
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
    tmp_path: Path,
) -> None:
    engine = LocalEngine(model_dir)
    await engine.load(versions(1))
    before = await engine.generate(make_request("before"))
    good = versions(2)
    damaged = tmp_path / "damaged.safetensors"
    data = bytearray(Path(good.uri).read_bytes())
    data[-5] ^= 0xFF
    damaged.write_bytes(data)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(data[: len(data) // 2])
    short = export_weights([pair for pair in versions.tensors(2) if "norm" not in pair[0]], tmp_path / "short")
    nan = export_weights(((n, t * float("nan")) for n, t in versions.tensors(2)), tmp_path / "nan")
    bad = {
        "checksum": dataclasses.replace(good, uri=str(damaged)),
        "can't read": dataclasses.replace(good, uri=str(tmp_path / "none.safetensors")),
        "can't read tensors": dataclasses.replace(good, uri=str(cut), checksum=checksum(cut)),
        "missing model.layers.0": dataclasses.replace(good, uri=short.uri, checksum=short.checksum),
        "not finite": dataclasses.replace(good, uri=nan.uri, checksum=nan.checksum),
    }
    for message, version in bad.items():
        with pytest.raises(WeightsCorrupt, match=message):
            await engine.load(version)
    after = await engine.generate(make_request("after"))
    assert engine.version == 1
    assert after.token_ids.tolist() == before.token_ids.tolist()
    assert set(after.versions.tolist()) == {1}
    await engine.close()


@pytest.mark.parametrize("ids", [[], [-1], [10**6]])
async def test_impossible_prompt__refused_alone(
    model_dir: Path, versions: Versions, make_request: MakeRequest, ids: list[int]
) -> None:
    engine = LocalEngine(model_dir)
    await engine.load(versions(1))
    with pytest.raises(EngineError, match="prompt"):
        await engine.generate(dataclasses.replace(make_request(), token_ids=ids))
    assert (await engine.generate(make_request(n=3))).finish_reason is FinishReason.LENGTH
    await engine.close()


async def test_versions_named_twice__same_weights(model_dir: Path, versions: Versions, make_request: MakeRequest) -> None:
    engine = LocalEngine(model_dir)
    renamed: PolicyVersion = dataclasses.replace(versions(1), version=9)
    await engine.load(versions(1))
    first = await engine.generate(make_request("a"))
    await engine.load(renamed)
    second = await engine.generate(make_request("b"))
    assert first.token_ids.tolist() == second.token_ids.tolist()
    assert set(second.versions.tolist()) == {9}
    await engine.close()


async def test_weights_that_overflow__every_request_says_which_version_broke_and_good_ones_serve_again(
    model_dir: Path, versions: Versions, make_request: MakeRequest, tmp_path: Path
) -> None:
    engine = LocalEngine(model_dir)
    huge = export_weights(((n, t * 1e25) for n, t in versions.tensors(2)), tmp_path / "huge")
    await engine.load(versions(1))
    running = asyncio.create_task(engine.generate(make_request("running", n=60)))
    for _ in range(6):
        await asyncio.sleep(0)
    await engine.load(dataclasses.replace(versions(2), uri=huge.uri, checksum=huge.checksum))
    for turn in (running, engine.generate(make_request("late"))):
        with pytest.raises(BrokenDistribution, match="version 2 gave a distribution that is not finite"):
            await turn
    await engine.load(versions(3))
    assert set((await engine.generate(make_request("late"))).versions.tolist()) == {3}
    await engine.close()


@pytest.mark.parametrize("part", ["Decoder.forward", "Slots.begin", "uniforms"])
async def test_nobody_waits_for_ever__a_failure_of_the_engine_fails_every_request_and_later_ones_are_served(
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
) -> None:
    engine = LocalEngine(model_dir, slots=1)
    await engine.load(versions(1))

    def broken(*arguments: Any) -> None:
        raise MemoryError("no memory for the cache")

    with monkeypatch.context() as patch:
        patch.setattr(f"agentrl.engine.local.{part}", broken)
        turns = [engine.generate(make_request(str(i))) for i in range(3)]
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*turns, return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, EngineError)
            assert "the engine failed: MemoryError('no memory for the cache')" in str(outcome)
    assert len((await engine.generate(make_request("0", n=4))).token_ids) == 4
    await engine.close()


async def test_waits_for_the_absent__and_not_for_sessions_that_have_asked(
    model_dir: Path, versions: Versions, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.engine.local.GATHER_S", 60.0)
    engine = LocalEngine(model_dir)
    await engine.load(versions(1))

    async def turns(session: str) -> None:
        for n in (1, 4, 2):
            await engine.generate(make_request(session, n=n))
        engine.release(session)

    async with asyncio.timeout(5):
        await turns("alone")
        await asyncio.gather(*(turns(str(i)) for i in range(3)))


async def test_waits_for_the_absent__until_they_ask_or_are_over(
    model_dir: Path, versions: Versions, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.engine.local.GATHER_S", 60.0)
    engine = LocalEngine(model_dir)
    await engine.load(versions(1))
    for end in (lambda: engine.release("absent"), lambda: asyncio.create_task(engine.generate(make_request("absent", n=1)))):
        await engine.generate(make_request("absent", n=1))
        running = asyncio.create_task(engine.generate(make_request("present", n=1)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not running.done()
        async with asyncio.timeout(5):
            kept = end()
            await running
            if kept is not None:
                await kept
        engine.release("present")
    engine.release("absent")
    await engine.close()
