"""Engines that answer what can't be: one episode or request pays, whatever asks, and nothing of the lie is kept."""

from __future__ import annotations

import asyncio
import re
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import test_gateway
from test_episode_runner import Case, DeadPool, call, chat  # noqa: F401

from agentrl.engine.contract import GenerateRequest, Generation
from agentrl.errors import EngineError, UnknownOutcome
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.contract import OpenResult, RunSpec
from agentrl.tokens.chat_format import ChatFormat
from agentrl.types import FinishReason, Opened, Outcome, Place, Sampling, StoredTrajectory

EMPTY = np.empty(0, np.int32)


@dataclass(frozen=True)
class Lie:
    """``tell``: from a right answer to a wrong one; what the error must say."""

    tell: Callable[[Generation], Generation]
    kind: str
    words: str


def _raise(error: Exception) -> Generation:
    raise error


LIES = {
    "too few log-probs": Lie(lambda g: replace(g, logprobs=g.logprobs[:-1]), "WrongAnswer", "differ in length"),
    "too few versions": Lie(lambda g: replace(g, versions=g.versions[1:]), "WrongAnswer", "differ in length"),
    "another text": Lie(lambda g: replace(g, text="<tool_call>"), "WrongAnswer", "not of the same turn"),
    "lost ids": Lie(lambda g: replace(g, token_ids=g.token_ids[1:]), "WrongAnswer", "differ in length"),
    "a version that goes back in the turn": Lie(
        lambda g: replace(g, versions=np.arange(len(g.versions), 0, -1, dtype=np.int32)), "WrongAnswer", "decrease"
    ),
    "a version that goes back between turns": Lie(
        lambda g: replace(g, versions=g.versions - 1), "WrongAnswer", "the turn before ended at"
    ),
    "an empty completion": Lie(
        lambda g: Generation(EMPTY, EMPTY.astype(np.float32), EMPTY, FinishReason.STOP), "WrongAnswer", "gave no token"
    ),
    "a log-prob that is none": Lie(
        lambda g: replace(g, logprobs=np.full_like(g.logprobs, np.nan)), "BrokenDistribution", "not finite at token 0"
    ),
    "no answer in time": Lie(lambda g: _raise(EngineError("no answer within 1 s")), "EngineError", "no answer within 1 s"),
    "an error that nobody foresaw": Lie(lambda g: _raise(OSError("socket")), "OSError", "socket"),
}


def lie_in(engine: Any, when: Callable[[GenerateRequest], bool], lie: Lie) -> None:
    honest = engine.generate

    async def generate(request: GenerateRequest) -> Generation:
        answer = await honest(request)
        return lie.tell(answer) if when(request) else answer

    engine.generate = generate


async def worked(case: Case, folder: Path, lie: Lie) -> tuple[RolloutWorker, list[StoredTrajectory]]:
    """Four episodes of two turns; the engine lies in the second turn of one of them."""
    tasks = case.environment.tasks("train", 0, 4)
    spec = RunSpec("w", "counter", {}, "h", 0, lag_bound=0, batch_min=4, batch_max=4, max_attempts=1)
    case.run = case.store.create_run(spec, {"train": tasks})
    fence = case.store.start_trainer(case.run.id, owner="t", lease_s=60, checkpoint=None).fence
    version = case.store.stage_version(case.run.id, fence, parent=None, updates=0, uri="u", checksum="c")
    case.store.publish_version(case.run.id, fence, version.version)
    await case.engine.load(version)
    turns: Tally[str] = Tally()
    first: list[Opened] = []
    ask = case.store.open_episodes

    def once(*arguments: Any, **named: Any) -> OpenResult:
        opened = OpenResult([], "no_capacity") if first else ask(*arguments, **named)
        first.extend(opened.episodes)
        return opened

    case.store.open_episodes = once  # type: ignore[method-assign]

    def script(request: GenerateRequest) -> list[int]:
        turns[request.session] += 1
        return case.chat.encode_action(call(0) if turns[request.session] == 1 else "stop")

    case.engine._script = script
    lie_in(case.engine, lambda request: request.session == str(first[0].trajectory) and turns[request.session] == 2, lie)
    runner = EpisodeRunner(case.environment, case.store, case.engine, case.chat, DeadPool(), Sampling())
    worker = RolloutWorker(case.store, case.run, "W", case.engine, runner, case.lineage, 4, ProcessLog(folder, "rollout"))
    stop = asyncio.Event()
    serving = asyncio.create_task(worker.serve(stop))
    while case.store.counts(case.run.id)[Place.LIVE] or len(turns) < 4:
        await asyncio.sleep(0.005)
    stop.set()
    await serving
    found = [case.store.trajectory(key) for key in case.store._runs[case.run.id].episodes]
    return worker, [trajectory for trajectory in found if trajectory is not None]


@pytest.mark.parametrize("name", LIES)
async def test_one_failure__of_four_episodes_the_one_that_was_lied_to_fails(
    chat: ChatFormat,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    lie = LIES[name]
    worker, stored = await worked(Case(chat, []), tmp_path, lie)
    assert Tally(t.outcome for t in stored) == {Outcome.GRADED: 3, Outcome.INFRASTRUCTURE: 1}
    (failed,) = [t for t in stored if t.outcome is Outcome.INFRASTRUCTURE]
    assert (failed.error or "").startswith(f"{lie.kind}: ")
    assert lie.words in (failed.error or "")
    assert failed.reward is None
    assert [segment.action_text for segment in failed.segments] == [call(0)], "what was stored before stays, the lie does not"
    assert worker._ended["failed"] == 1
    assert lie.words in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, lie in LIES.items() if lie.kind != "OSError"])
async def test_no_trace_of_a_failure__the_gateway_refuses_and_the_same_request_is_answered(
    case: test_gateway.Case, name: str
) -> None:
    lie = LIES[name]
    case.says = ["one", "two", "two"]
    episode, client = await case.open()
    messages: list[Any] = [{"role": "user", "content": "count"}]
    first = (await test_gateway.chat(client, messages)).choices[0].message
    messages += [first, {"role": "user", "content": "go on"}]
    honest = case.engine.generate
    lie_in(case.engine, lambda request: True, lie)
    with pytest.raises(openai.InternalServerError, match=re.escape(lie.words)) as refused:
        await test_gateway.chat(client, messages)
    assert (refused.value.status_code, refused.value.code) == (503, "engine_error")
    case.engine.generate = honest  # type: ignore[method-assign]
    answer = await test_gateway.chat(client, messages)
    assert answer.choices[0].message.content == "two"
    await case.end(episode, reward=1.0)
    one, two = case.stored(episode).segments
    assert answer.usage.prompt_tokens == one.n_obs + one.n_act + two.n_obs
    assert case.chat.decode(two.observation.tolist()).count("go on") == 1


@pytest.fixture
async def case(tmp_path: Path) -> Any:
    made = test_gateway.Case(tmp_path)
    await made.engine.load(made.store.version(made.run.id, 0))
    yield made
    await made.http.aclose()


async def test_stored_before_answered__a_write_of_unknown_outcome_is_made_again_and_nothing_is_sampled_twice(
    case: test_gateway.Case,
) -> None:
    case.says = ["one", "two"]
    episode, client = await case.open()
    write = case.store.write_segment
    lost = iter([True, True, False])

    def flaky(*arguments: Any) -> None:
        if next(lost, False):
            raise UnknownOutcome("the connection broke")
        write(*arguments)

    case.store.write_segment = flaky  # type: ignore[method-assign,assignment]
    asked: list[Any] = [{"role": "user", "content": "count"}]
    for _ in range(2):
        with pytest.raises(openai.InternalServerError, match="the connection broke"):
            await test_gateway.chat(client, asked)
    answer = (await test_gateway.chat(client, asked)).choices[0].message
    assert answer.content == "one"
    await test_gateway.chat(client, [*asked, answer, {"role": "user", "content": "go on"}])
    await case.end(episode, reward=1.0)
    assert [segment.action_text for segment in case.stored(episode).segments] == ["one", "two"]


async def test_abandoned_is_infrastructure__but_not_an_agent_that_waits_for_its_answer(tmp_path: Path) -> None:
    case = test_gateway.Case(tmp_path, idle_s=0.02)
    await case.engine.load(case.store.version(case.run.id, 0))
    case.says = ["one"]
    honest, gate = case.engine.generate, asyncio.Event()

    async def slow(request: GenerateRequest) -> Generation:
        await gate.wait()
        return await honest(request)

    case.engine.generate = slow  # type: ignore[method-assign]
    episode, client = await case.open()
    asking = asyncio.create_task(test_gateway.chat(client, [{"role": "user", "content": "count"}]))
    while not case.gateway.open[episode].busy:
        await asyncio.sleep(0.001)
    sweeping = asyncio.create_task(case.gateway.sweep())
    await asyncio.sleep(0.08)
    assert episode in case.gateway.open
    gate.set()
    assert (await asking).choices[0].message.content == "one"
    sweeping.cancel()
    await case.http.aclose()
