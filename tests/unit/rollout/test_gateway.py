"""An agent program that knows only OpenAI's client makes trajectories with exact ids."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import numpy as np
import openai
import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineError, UnknownOutcome, UnknownVersion
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.monitor.log import ProcessLog
from agentrl.rollout.gateway import Gateway
from agentrl.store.contract import RunSpec
from agentrl.store.memory import MemoryStore
from agentrl.tokens.chat_format import ChatFormat
from agentrl.trainer.batch import build_batch
from agentrl.types import Lineage, Outcome, Place, Sampling, StoredTrajectory, Task, Termination

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
LINEAGE = Lineage("tiny", "tok", "tmpl", "scripted", "1", "float32", Sampling())
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'


class Case:
    """A gateway over an engine that says the texts of ``says`` in turn."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        build_tokenizer(["add 3 to it", "the sum is 7"] * 5, TokenizerPlan(scaffold=()), folder)
        self.chat = ChatFormat(folder)
        self.says: list[str | Exception] = []
        self.store = MemoryStore()
        spec = RunSpec("r", "toy", {}, "h", 0, lag_bound=0, batch_min=2, batch_max=2)
        self.run = self.store.create_run(spec, {"train": [Task(f"t{i}", {"n": i}) for i in range(4)]})
        fence = self.store.start_trainer(self.run.id, owner="t", lease_s=600, checkpoint=None).fence
        staged = self.store.stage_version(self.run.id, fence, parent=None, updates=0, uri="w", checksum="c")
        self.store.publish_version(self.run.id, fence, staged.version)
        self.store.set_run_status(self.run.id, "running")
        self.engine = ScriptedEngine(self._say)
        settings: dict[str, Any] = {"concurrency": 4, "idle_s": 60.0} | changes
        self.gateway = Gateway(
            self.store, self.run, "gateway", self.engine, self.chat, Sampling(), LINEAGE,
            log=ProcessLog(folder, "gateway"), **settings,
        )  # fmt: skip
        transport = httpx2.ASGITransport(app=self.gateway.app())
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://gateway")

    def _say(self, request: Any) -> list[int]:
        text = self.says.pop(0)
        if isinstance(text, Exception):
            raise text
        return self.chat.encode_action(text)

    async def open(self) -> tuple[UUID, openai.AsyncOpenAI]:
        answer = (await self.http.post("/episodes")).json()
        client = openai.AsyncOpenAI(base_url=answer["base_url"], api_key="none", http_client=self.http, max_retries=0)
        return UUID(answer["episode"]), client

    async def end(self, episode: UUID, **said: Any) -> httpx2.Response:
        return await self.http.post(f"/episodes/{episode}/end", json=said)

    def stored(self, episode: UUID) -> StoredTrajectory:
        found = self.store.trajectory(episode)
        assert found is not None
        return found


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    made = Case(tmp_path)
    await made.engine.load(made.store.version(made.run.id, 0))
    yield made
    await made.http.aclose()


async def chat(client: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> Any:
    return await client.chat.completions.create(model="policy", messages=messages, **more)


async def test_appended_is_exact__an_agent_with_a_tool_gives_one_context(case: Case) -> None:
    case.says = [CALL, "the sum is 7"]
    episode, client = await case.open()
    messages: list[Any] = [{"role": "user", "content": "add 3 to it"}]
    first = (await chat(client, messages, tools=[TOOL])).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 3})
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    second = await chat(client, messages, tools=[TOOL])
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("the sum is 7", "stop")
    assert (await case.end(episode, reward=1.0, success=True)).json()["place"] == "ready"

    stored = case.stored(episode)
    assert [s.context for s in stored.segments] == [0, 0]
    assert [s.action.tolist() for s in stored.segments] == [case.chat.encode_action(t) for t in (CALL, "the sum is 7")]
    prefix = np.concatenate([a for s in stored.segments for a in (s.observation, s.action)])
    assert second.usage.prompt_tokens == len(prefix) - stored.segments[1].n_act
    assert stored.segments[0].tool_calls[0].name == "add"
    assert stored.reward is not None
    assert (stored.reward.value, stored.reward.grader) == (1.0, "gateway")
    assert build_batch([stored], max_context=4096).rejected == []


async def test_rewritten_is_a_context__each_sampled_token_is_stored_once(case: Case) -> None:
    case.says = ["one", "two"]
    episode, client = await case.open()
    await chat(client, [{"role": "user", "content": "count"}])
    await chat(client, [{"role": "user", "content": "summary: you said one. go on"}])
    await case.end(episode, reward=0.0)
    stored = case.stored(episode)
    assert [s.context for s in stored.segments] == [0, 1]
    assert stored.segments[1].observation_text.count("summary") == 1
    assert build_batch([stored], max_context=4096).rejected == []


async def test_repeated_is_the_same__and_is_sampled_once(case: Case) -> None:
    case.says = ["one"]
    episode, client = await case.open()
    answers = [await chat(client, [{"role": "user", "content": "count"}]) for _ in range(2)]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content == "one"
    assert len(case.gateway.open[episode].transcript.segments) == 1


async def test_request_without_an_answer__leaves_no_trace(case: Case) -> None:
    case.says = [EngineError("the server is gone"), "one"]
    episode, client = await case.open()
    with pytest.raises(openai.InternalServerError, match="the server is gone"):
        await chat(client, [{"role": "user", "content": "count"}])
    await chat(client, [{"role": "user", "content": "count"}])
    assert [s.context for s in case.stored(episode).segments] == [0]


async def test_stored_before_answered__the_turn_is_there_when_the_client_reads_it(case: Case) -> None:
    case.says = ["one"]
    episode, client = await case.open()
    await chat(client, [{"role": "user", "content": "count"}])
    assert case.stored(episode).segments[0].action_text == "one"


async def test_stream__gives_the_same_turn(case: Case) -> None:
    case.says = [CALL]
    _, client = await case.open()
    stream = await chat(client, [{"role": "user", "content": "add"}], tools=[TOOL], stream=True)
    chunks = [chunk async for chunk in stream]
    calls = [c.delta.tool_calls for chunk in chunks for c in chunk.choices if c.delta.tool_calls]
    assert calls[0][0].function.name == "add"
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "tool_calls"


async def test_truncated_is_no_call__its_text_is_shown(case: Case) -> None:
    case.says = [CALL]
    episode, client = await case.open()
    answer = await chat(client, [{"role": "user", "content": "add"}], tools=[TOOL], max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls is None
    await case.end(episode, reward=0.0)
    assert case.stored(episode).termination is Termination.TRUNCATED_TURN_TOKENS


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"temperature": 0.2}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"n": 2}, "n=2"),
        ({"stop": ["x"]}, "stop"),
        ({"parallel_tool_calls": False, "tools": [TOOL]}, "parallel_tool_calls"),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, "chat_template_kwargs"),
        ({"extra_body": {"guided_regex": "a+"}}, "guided_regex"),
    ],
)
async def test_other_distribution__is_refused_by_name(setting: dict[str, Any], named: str, case: Case) -> None:
    _, client = await case.open()
    with pytest.raises(openai.BadRequestError, match=named):
        await chat(client, [{"role": "user", "content": "add"}], **setting)


async def test_odd_bodies__are_refused_and_change_nothing(case: Case) -> None:
    episode, _ = await case.open()
    url = f"/episodes/{episode}/v1/chat/completions"
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    for body in (
        b"",
        b"[]",
        b"{}",
        b'{"messages": []}',
        json.dumps({"messages": [image]}).encode(),
    ):
        answer = await case.http.post(url, content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert (await case.http.post(f"/episodes/{UUID(int=1)}/end", json={})).status_code == 404
    assert (await case.end(episode, reward=1.0, error="both")).status_code == 400
    assert (await case.http.post(f"/episodes/{episode}/end", content=b'{"reward": NaN}')).status_code == 400
    assert (await case.end(episode, score=1.0)).status_code == 400
    assert case.stored(episode).segments == []


async def test_one_trajectory__admission_and_lost_leases_reach_the_client(case: Case) -> None:
    episode, client = await case.open()
    await case.open()
    refused = await case.http.post("/episodes")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "no_capacity")
    case.says = ["one"]
    taken = case.gateway.open[episode]
    taken.opened = dataclasses.replace(taken.opened, fence=10**6)
    with pytest.raises(openai.APIStatusError) as lost:
        await chat(client, [{"role": "user", "content": "count"}])
    assert lost.value.status_code == 410
    assert episode not in case.gateway.open


@pytest.mark.parametrize(
    ("error", "code"),
    [(UnknownVersion("version 9 has no row"), "store_refused"), (UnknownOutcome("gone"), "store_unreachable")],
)
async def test_store_that_opens_nothing__is_told_with_its_words(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    def refuse(*arguments: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr(case.store, "open_episodes", refuse)
    answer = await case.http.post("/episodes")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
    assert str(error) in answer.json()["error"]["message"]
    assert case.gateway.open == {}


async def test_error_end__is_infrastructure_and_no_verdict(case: Case) -> None:
    case.says = ["one"]
    episode, client = await case.open()
    await chat(client, [{"role": "user", "content": "count"}])
    assert (await case.end(episode, error="the browser crashed")).json()["place"] == "dropped"
    stored = case.stored(episode)
    assert (stored.outcome, stored.reward) == (Outcome.INFRASTRUCTURE, None)


async def test_end_without_a_reward__waits_for_a_grader(case: Case) -> None:
    case.says = ["one"]
    episode, client = await case.open()
    await chat(client, [{"role": "user", "content": "count"}])
    assert (await case.end(episode)).json()["place"] == Place.GRADE_JOB.value


async def test_abandoned_is_infrastructure__and_clean_release_costs_no_attempt(tmp_path: Path) -> None:
    case = Case(tmp_path, idle_s=0.05)
    await case.engine.load(case.store.version(case.run.id, 0))
    abandoned, _ = await case.open()
    sweeping = asyncio.create_task(case.gateway.sweep())
    while case.gateway.open:
        await asyncio.sleep(0.01)
    sweeping.cancel()
    assert case.stored(abandoned).outcome is Outcome.INFRASTRUCTURE
    released, _ = await case.open()
    await case.gateway.release()
    assert case.stored(released).termination is Termination.ABORTED
    assert case.store.counts(case.run.id)[Place.LIVE] == 0


async def test_abandoned_is_infrastructure__whoever_went_meanwhile_does_not_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, idle_s=0.05)
    await case.engine.load(case.store.version(case.run.id, 0))
    (first, _), (second, _) = await case.open(), await case.open()
    complete = case.store.complete

    def slow(*given: Any) -> Place:
        case.gateway.lost(second)
        return complete(*given)

    monkeypatch.setattr(case.store, "complete", slow)
    sweeping = asyncio.create_task(case.gateway.sweep())
    while case.gateway.open:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not sweeping.done()
    sweeping.cancel()
    assert case.stored(first).outcome is Outcome.INFRASTRUCTURE
