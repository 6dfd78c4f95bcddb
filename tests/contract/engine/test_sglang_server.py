"""The SGLang engine on a real server: numbers equal transformers', weights change in flight, nothing unchecked is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch

from agentrl.engine.contract import GenerateRequest, Generation
from agentrl.engine.sglang.engine import SGLangEngine
from agentrl.engine.sglang.loading import read_checked
from agentrl.engine.sglang.server import Server
from agentrl.errors import EngineError, WeightsCorrupt
from agentrl.model.config import ModelConfig
from agentrl.store.loads import EngineLoad
from agentrl.trainer.push import ServerPush
from agentrl.types import PolicyVersion
from agentrl.weights.files import export_weights
from tests.contract.engine.harness import SLOW_S, TOKENS, Versions, connect, midway, slow_down
from tests.sglang_server import SGLang

MakeRequest = Callable[..., GenerateRequest]
Reference = Callable[..., np.ndarray]
TOLERANCE = 1e-5
EOS = 2


@pytest.fixture
async def engine(sglang: SGLang, model_dir: Path, versions: Versions, tmp_path: Path) -> AsyncIterator[SGLangEngine]:
    """Holds version 1."""
    await slow_down(sglang, None)
    made = await connect(sglang.url, model_dir, tmp_path, tell=print)
    await made.load(versions(1))
    yield made
    await made.close()


def largest_gap(prompt: Sequence[int], generation: Generation, reference: Reference, temperature: float = 1.0) -> float:
    """Between recorded log-probs and those that each token's version gives it after the whole prefix."""
    ids = [*prompt, *generation.token_ids.tolist()]
    gaps = [0.0]
    for version in sorted(set(generation.versions.tolist())):
        of_version = generation.versions == version
        expected = reference(version, ids, temperature)[len(prompt) - 1 :]
        gaps.append(float(np.abs(expected - generation.logprobs)[of_version].max()))
    return max(gaps)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
async def test_turns_in_mixed_company__log_probs_equal_transformers(
    engine: SGLangEngine, make_request: MakeRequest, reference: Reference, temperature: float
) -> None:
    async def two_turns(i: int) -> float:
        prompt = list(range(3 + i, 6 + 2 * i))
        first = await engine.generate(make_request(str(i), prompt, n=8, temperature=temperature, stops=(5, 7)))
        longer = [*prompt, *first.token_ids.tolist(), 40, 41]
        second = await engine.generate(make_request(str(i), longer, n=8, temperature=temperature))
        gaps = [largest_gap(prompt, first, reference, temperature), largest_gap(longer, second, reference, temperature)]
        return max(gaps)

    gaps = await asyncio.gather(*(two_turns(i) for i in range(12)))
    assert max(gaps) < TOLERANCE
    assert engine.metrics()["cached_tokens"] > 0


async def test_greedy__most_likely_token_with_its_raw_log_prob(
    engine: SGLangEngine, make_request: MakeRequest, reference: Reference
) -> None:
    prompt = [10, 11, 12]
    generation = await engine.generate(make_request(token_ids=prompt, n=10, temperature=0.0))
    again = await engine.generate(make_request(token_ids=prompt, n=10, temperature=0.0))
    assert generation.token_ids.tolist() == again.token_ids.tolist()
    assert largest_gap(prompt, generation, reference) < TOLERANCE


async def sums_on(sglang: SGLang) -> dict[str, str]:
    server = Server(sglang.url)
    (found,) = await server.checksums()
    await server.close()
    return found


async def expected(sglang: SGLang, model_dir: Path, version: PolicyVersion) -> dict[str, str]:
    server = Server(sglang.url)
    sums = read_checked(version, ModelConfig.read(model_dir)).sums(await server.info())
    await server.close()
    assert sums is not None
    return dict(sums)


@pytest.mark.parametrize("transport", ["disk", "tensor", "distributed"])
async def test_update_in_flight__both_versions_in_one_turn_and_sums_equal(
    sglang: SGLang,
    model_dir: Path,
    versions: Versions,
    make_request: MakeRequest,
    reference: Reference,
    tmp_path: Path,
    transport: str,
) -> None:
    await slow_down(sglang, SLOW_S)
    run = f"{transport}-{tmp_path.name}"
    engine = await connect(sglang.url, model_dir, tmp_path, run=run, route="disk" if transport == "disk" else "tensor")
    await engine.load(versions(1))
    assert await sums_on(sglang) == await expected(sglang, model_dir, versions(1))
    prompt = [10, 11, 12, 13]
    turn = asyncio.create_task(engine.generate(make_request(token_ids=prompt, n=TOKENS)))
    await midway(engine)
    if transport != "disk":
        locks, config = tmp_path / "locks", ModelConfig.read(model_dir)
        failures: list[str] = []
        loads: list[EngineLoad] = []
        push = ServerPush(
            [sglang.url],
            config,
            run,
            locks,
            transport,
            "gloo",
            1,
            failures.append,
            loads.append,  # type: ignore[arg-type]
        )
        await asyncio.to_thread(push, lambda: versions(2), list(versions.tensors(2)))
        await asyncio.to_thread(push.close)
        assert failures == []
        (load,) = loads
        assert (load.engine, load.version, load.transport, load.error) == (sglang.url, 2, transport, None)
        assert {"pause", "transfer", "verify", "resume"} <= load.phases.keys()
    await engine.load(versions(2))
    assert engine.metrics()["loads"] == (2 if transport == "disk" else 1)
    await slow_down(sglang, None)
    generation = await turn
    assert set(generation.versions.tolist()) == {1, 2}
    assert largest_gap(prompt, generation, reference) < TOLERANCE
    assert await sums_on(sglang) == await expected(sglang, model_dir, versions(2))
    assert (await engine.generate(make_request("after", prompt, n=5))).versions.tolist() == [2] * 5
    await engine.close()


@pytest.mark.parametrize("transport", ["tensor", "distributed"])
async def test_only_on_its_base__a_push_of_what_changed_leaves_the_whole_right(
    sglang: SGLang, model_dir: Path, versions: Versions, make_request: MakeRequest, tmp_path: Path, transport: str
) -> None:
    run = f"changed-{transport}-{tmp_path.name}"
    engine = await connect(sglang.url, model_dir, tmp_path, run=run, route="tensor")
    config, failures, loads = ModelConfig.read(model_dir), [], []  # type: ignore[var-annotated]
    push = ServerPush(
        [sglang.url],
        config,
        run,
        tmp_path / "locks",
        transport,
        "gloo",
        1,
        failures.append,
        loads.append,  # type: ignore[arg-type]
    )
    tensors = dict(versions.tensors(6))
    for number in (6, 7, 8):
        tensors["model.norm.weight"] = tensors["model.norm.weight"] + 0.25
        file = export_weights(tensors.items(), tmp_path / f"v{number}")
        version = PolicyVersion(number, None, number, file.uri, file.checksum, "published")
        await asyncio.to_thread(push, lambda version=version: version, list(tensors.items()))  # type: ignore[misc]
        assert await sums_on(sglang) == await expected(sglang, model_dir, version)
    await asyncio.to_thread(push.close)
    assert failures == []
    assert [load.bytes for load in loads][-1] == tensors["model.norm.weight"].nbytes
    await engine.load(version)
    assert (await engine.generate(make_request("s", [10, 11, 12], n=4))).versions.tolist() == [8] * 4
    assert engine.take_loads() == [], "nothing was left for the worker to send"
    await engine.close()


async def test_new_weights__no_cache_of_the_old_ones(
    engine: SGLangEngine, make_request: MakeRequest, versions: Versions
) -> None:
    prompt = list(range(20, 50))
    await engine.generate(make_request(token_ids=prompt, n=4))
    assert (await engine.generate(make_request(token_ids=prompt, n=4))).cached_tokens == len(prompt) - 1
    await engine.load(versions(2))
    assert (await engine.generate(make_request(token_ids=prompt, n=4))).cached_tokens == 0


def broken(versions: Versions, kind: str) -> PolicyVersion:
    tensors = dict(versions.tensors(5))
    name = "model.layers.1.self_attn.o_proj.weight"
    if kind == "shape":
        tensors[name] = tensors[name][:, :-1]
    elif kind == "name":
        tensors["model.layers.9.mlp.up_proj.weight"] = tensors[name].clone()
    elif kind == "number":
        tensors[name] = torch.full_like(tensors[name], torch.nan)
    folder = versions.folder / f"broken-{kind}"
    file = export_weights(tensors.items(), folder)
    return PolicyVersion(5, None, 5, file.uri, "sha256:0" if kind == "checksum" else file.checksum, "published")


@pytest.mark.parametrize("kind", ["shape", "name", "number", "checksum"])
async def test_checked_before_sent__the_server_keeps_what_it_has(
    sglang: SGLang, engine: SGLangEngine, make_request: MakeRequest, versions: Versions, kind: str
) -> None:
    before = await sums_on(sglang)
    with pytest.raises(WeightsCorrupt, match="version 5"):
        await engine.load(broken(versions, kind))
    assert await sums_on(sglang) == before
    assert set((await engine.generate(make_request(n=3))).versions.tolist()) == {1}


async def test_preflight__ids_that_would_kill_the_server_are_refused(engine: SGLangEngine, make_request: MakeRequest) -> None:
    for ids in ([1, 288], [-1], [5] * engine.info.max_context):
        with pytest.raises(EngineError):
            await engine.generate(make_request(token_ids=ids))
    assert len((await engine.generate(make_request(n=3))).token_ids) == 3


async def test_only_asked_ends__the_models_own_end_of_sequence_ends_nothing(
    engine: SGLangEngine, make_request: MakeRequest, reference: Reference
) -> None:
    stop = 200
    for attempt in range(60):
        prompt = [10 + attempt, 11, 12]
        generation = await engine.generate(make_request(str(attempt), prompt, n=TOKENS, stops=(stop,), temperature=5.0))
        if EOS in generation.token_ids[:-1]:
            break
    else:
        pytest.fail("no turn sampled the end-of-sequence id")
    assert len(generation.token_ids) == TOKENS or int(generation.token_ids[-1]) == stop
    assert largest_gap(prompt, generation, reference, 5.0) < TOLERANCE


async def test_paused_is_alive__a_turn_waits_and_goes_on(
    sglang: SGLang, engine: SGLangEngine, make_request: MakeRequest
) -> None:
    server = Server(sglang.url)
    await server.pause()
    turn = asyncio.create_task(engine.generate(make_request(n=5)))
    await asyncio.sleep(1.0)
    assert not turn.done()
    assert engine.metrics()["servers_up"] == 1
    await server.resume()
    assert len((await turn).token_ids) == 5
    assert engine.metrics()["servers_lost"] == 0
    await server.close()


async def test_someone_elses_weights__noticed_and_replaced_before_the_next_turn(
    sglang: SGLang, engine: SGLangEngine, make_request: MakeRequest, reference: Reference, versions: Versions
) -> None:
    server = Server(sglang.url)
    await server.load_from_disk(str(Path(versions(4).uri).parent), "of-nobody")
    generation = await engine.generate(make_request(n=6))
    assert generation.versions.tolist() == [1] * 6
    assert largest_gap([10, 11, 12, 13], generation, reference) < TOLERANCE
    await server.close()


async def test_aborted_by_someone_else__the_turn_goes_on_behind_its_tokens(
    sglang: SGLang, engine: SGLangEngine, make_request: MakeRequest, reference: Reference
) -> None:
    await slow_down(sglang, SLOW_S)
    turn = asyncio.create_task(engine.generate(make_request(n=40)))
    await asyncio.sleep(10 * SLOW_S)
    async with httpx2.AsyncClient(base_url=sglang.url) as client:
        await client.post("/abort_request", json={"abort_all": True})
    await slow_down(sglang, None)
    generation = await turn
    assert len(generation.token_ids) == 40
    assert largest_gap([10, 11, 12, 13], generation, reference) < TOLERANCE
