"""Servers that lie, fail or refuse: what the SGLang engine makes of their answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from failing_servers import Case, eventually, turn

from agentrl.engine.contract import GenerateRequest
from agentrl.engine.sglang.engine import REISSUES
from agentrl.engine.sglang.naming import WeightNames
from agentrl.engine.sglang.server import ServerRefused
from agentrl.errors import BrokenDistribution, EngineError, UsageError, WrongAnswer
from agentrl.types import FinishReason, PolicyVersion, Sampling


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
