"""A judge that fails in each way that servers fail: never a score, always a reason; what is too long is never cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentrl.environment import Message
from agentrl.environment.judge import Judge
from agentrl.errors import JudgeError, JudgeNonsense, JudgeOverrun, JudgeRefused, JudgeUnavailable

Answer = httpx2.Response | Exception


def said(text: Any, **choice: Any) -> httpx2.Response:
    return httpx2.Response(200, json={"choices": [{"message": {"role": "assistant", "content": text}, **choice}]})


class Server:
    """Gives its answers one after the other, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.bodies, self.headers = list(answers), [], []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(json.loads(request.content))
        self.headers.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def judge(server: Callable[[httpx2.Request], Any], **settings: Any) -> Judge:
    given: dict[str, Any] = {"max_input_chars": 1000, "pause_s": 0.0, "tries": 3, **settings}
    return Judge("http://judge/v1", "critic", transport=httpx2.MockTransport(server), **given)


BUSY = httpx2.Response(429, text="slow down")
AWAY = httpx2.Response(503, text="overloaded")
SILENT = httpx2.ReadTimeout("no answer within 60 s")
JUNK = httpx2.Response(200, text="<html>welcome</html>")


@pytest.mark.parametrize("failure", [BUSY, AWAY, SILENT, httpx2.ConnectError("refused"), JUNK, said(None), said("  ")])
async def test_outage_is_no_verdict__what_passes_is_asked_again(failure: Answer) -> None:
    server = Server(failure, failure, said("Fine.\nScore: 7"))
    assert await judge(server).score("how good?", 0, 10) == 0.7
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (BUSY, "status 429 'slow down'"), (AWAY, "status 503 'overloaded'"), (SILENT, "ReadTimeout no answer within 60 s"),
        (JUNK, "no answer in '<html>welcome"), (said("half a sent", finish_reason="length"), "half a sent"),
        (httpx2.Response(200, json={"choices": []}), "no answer in"), (httpx2.Response(200, json=[1]), "no answer in"),
    ],
)  # fmt: skip
async def test_outage_is_no_verdict__after_the_last_try_it_is_an_error_with_its_reason(failure: Answer, why: str) -> None:
    server = Server(failure)
    with pytest.raises(JudgeUnavailable) as raised:
        await judge(server).ask("how good?")
    assert why in str(raised.value)
    assert "judge critic at http://judge/v1 gave no answer in 3 tries" in str(raised.value)
    assert len(server.bodies) == 3


@pytest.mark.parametrize("answer", ["I can't say.", "", "Score: eleven", "Score: 11", "7\nBut I am not sure.", "Score: -1"])
async def test_outage_is_no_verdict__an_answer_without_a_number_in_range_is_none(answer: str) -> None:
    with pytest.raises(JudgeError) as raised:
        await judge(Server(said(answer))).score("how good?", 0, 10)
    assert isinstance(raised.value, JudgeNonsense if answer else JudgeUnavailable)


@pytest.mark.parametrize(
    ("answer", "score"), [("Score: 0", 0.0), ("10", 1.0), ("4 of 5 tests pass.\nFinal score: 2.5", 0.25), ("8/10: 5\n", 0.5)]
)
async def test_score__is_the_last_number_of_the_last_line(answer: str, score: float) -> None:
    assert await judge(Server(said(answer))).score("how good?", 0, 10) == score


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_wrong_request__is_not_tried_again(status: int) -> None:
    server = Server(httpx2.Response(status, text="no such model"))
    with pytest.raises(JudgeRefused, match=rf"status {status} 'no such model'"):
        await judge(server).ask("how good?")
    assert len(server.bodies) == 1


async def test_request__has_what_was_set_and_further_fields() -> None:
    server = Server(said("ok"))
    await judge(server, temperature=0.5, max_tokens=9, extra={"seed": 3}).ask("how good?")
    assert server.bodies == [
        {
            "model": "critic", "messages": [{"role": "user", "content": "how good?"}], "temperature": 0.5, "max_tokens": 9,
            "seed": 3,
        }
    ]  # fmt: skip


async def test_nothing_is_cut__a_prompt_over_the_limit_is_not_even_sent() -> None:
    server = Server(said("Score: 1"))
    with pytest.raises(JudgeOverrun, match="the prompt has 1001 characters, max_input_chars is 1000"):
        await judge(server).ask([Message("system", "x" * 1000), Message("user", "y")])
    assert server.bodies == []
    assert await judge(server).ask("x" * 1000) == "Score: 1"
    assert server.bodies[0]["messages"][0]["content"] == "x" * 1000


@pytest.mark.parametrize(
    "refusal",
    [
        httpx2.Response(400, json={"error": {"message": "This model's maximum context length is 4096 tokens"}}),
        httpx2.Response(422, text="prompt is too long"), httpx2.Response(413, text=""),
    ],
)  # fmt: skip
async def test_nothing_is_cut__a_server_that_can_t_read_it_all_is_named(refusal: httpx2.Response) -> None:
    with pytest.raises(JudgeOverrun, match="judge critic"):
        await judge(Server(refusal)).ask("how good?")


async def test_asked_once__the_same_question_of_any_process(tmp_path: Path) -> None:
    first, second = Server(said("Score: 3")), Server(said("Score: 9"))
    assert await judge(first, cache=tmp_path).score("how good?", 0, 10) == 0.3
    assert await judge(second, cache=tmp_path).score("how good?", 0, 10) == 0.3
    assert second.bodies == []
    assert await judge(second, cache=tmp_path).score("how bad?", 0, 10) == 0.9, "another question"
    assert await judge(second, cache=tmp_path, max_tokens=9).score("how good?", 0, 10) == 0.9, "asked otherwise"
    assert await judge(second, cache=tmp_path, temperature=0.5).score("how good?", 0, 10) == 0.9, "answers differ by chance"


async def test_asked_once__a_damaged_answer_is_asked_for_again_and_an_error_is_not_kept(tmp_path: Path) -> None:
    server = Server(AWAY, said("Score: 3"))
    with pytest.raises(JudgeUnavailable):
        await judge(server, cache=tmp_path, tries=1).ask("how good?")
    assert await judge(server, cache=tmp_path).ask("how good?") == "Score: 3"
    (kept,) = tmp_path.rglob("*.json")
    kept.write_text("{")
    server.answers = [said("Score: 4")]
    assert await judge(server, cache=tmp_path).ask("how good?") == "Score: 4"


async def test_key__is_sent_and_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    server = Server(httpx2.Response(401, text="bad key"))
    with pytest.raises(JudgeRefused) as raised:
        await judge(server, key_variable="JUDGE_KEY").ask("how good?")
    assert server.headers[0]["authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(raised.value)
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(JudgeRefused, match="JUDGE_KEY holds no key"):
        await judge(server, key_variable="JUDGE_KEY").ask("how good?")


async def test_at_once__no_more_questions_than_that() -> None:
    running, most = 0, 0

    async def server(request: httpx2.Request) -> httpx2.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return said("Score: 1")

    one = judge(server, at_once=3)
    await asyncio.gather(*(one.ask(f"question {i}") for i in range(12)))
    assert most == 3


async def test_retry_after__is_obeyed_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("agentrl.environment.judge.asyncio.sleep", noted)
    answers = [httpx2.Response(429, headers={"retry-after": wait}) for wait in ("5", "99999", "soon")]
    await judge(Server(*answers, said("ok")), tries=4).ask("how good?")
    assert 4 <= pauses[0] <= 6
    assert all(24 <= pause <= 36 for pause in pauses[1:])
