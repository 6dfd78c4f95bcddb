"""One episode from prompt to place: what is stored is what the engine saw, and every ending has its own class."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from agentrl.engine.contract import GenerateRequest, Generation
from agentrl.engine.scripted import ScriptedEngine
from agentrl.environment import Done, Environment, Episode, Message, Reward, Step, Task, tool
from agentrl.environment.evidence import unpack
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.rollout.episode import EpisodeRunner
from agentrl.store.contract import RunSpec
from agentrl.store.memory import MemoryStore
from agentrl.tokens.audit import _check_end
from agentrl.tokens.chat_format import ChatFormat
from agentrl.trainer.batch import build_batch
from agentrl.types import (
    EpisodeEnd,
    FinishReason,
    Lineage,
    Outcome,
    Place,
    PolicyVersion,
    Sampling,
    StoredTrajectory,
    Termination,
)
from sandboxes.contract import Sandbox, SandboxDied, SandboxSpec


class Counter(Environment):
    """Counts; "stop" ends the episode, a right count is a success."""

    max_turns = 3
    max_turn_tokens = 60
    max_tokens = 400

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        return [Task(f"count/{i}", {"to": i}, split) for i in range(n)]

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", f"count to {task.payload['to']}")]

    @tool(side_effects=False)
    async def count(self, episode: Episode, number: int) -> str:
        """Say a number."""
        episode.state.number = number
        return f"ok {number}"

    async def respond(self, episode: Episode, text: str) -> str | Done:
        return Done() if text == "stop" else "say stop"

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        right = getattr(episode.state, "number", None) == episode.task.payload["to"]
        return Reward(float(right), right)


class BrokenBox(Counter):
    """Needs a sandbox, and every sandbox dies."""

    sandbox = SandboxSpec()

    @tool(side_effects=False)
    async def count(self, episode: Episode, number: int) -> str:
        """Use the sandbox."""
        await episode.sandbox.exec("true")
        return "never"


class GraderBox(BrokenBox):
    """Only its grader uses one."""

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        await sandbox.ping()
        raise AssertionError("never")


class DeadPool:
    def __init__(self) -> None:
        self.first: list[bool] = []

    def acquire(self, spec: SandboxSpec, *, timeout: float = 60.0, first: bool = False):
        self.first.append(first)
        raise SandboxDied("container c0ffee died")

    def metrics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        return None


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(["count to 3", '{"name": "count", "arguments": {"number": 3}}', "stop"] * 20, TokenizerPlan(), folder)
    return ChatFormat(folder)


def call(number: object) -> str:
    return f'<tool_call>{{"name": "count", "arguments": {{"number": {number}}}}}</tool_call>'


ENDLESS = range(100, 100 + 10**9)


class Case:
    """A store with one run, and an engine that says ``turns`` one after the other."""

    def __init__(
        self, chat: ChatFormat, turns: Sequence[str], environment: Environment | None = None, max_context: int = 400
    ) -> None:
        self.environment = environment or Counter()
        self.pool = DeadPool()
        self.store = MemoryStore()
        spec = RunSpec("r", "counter", {}, "h", 0, lag_bound=1, batch_min=1, batch_max=1)
        self.run = self.store.create_run(spec, {"train": self.environment.tasks("train", 0, 4)})
        start = self.store.start_trainer(self.run.id, owner="t", lease_s=60, checkpoint=None)
        self.version = self.store.stage_version(self.run.id, start.fence, parent=None, updates=0, uri="u", checksum="c")
        self.store.publish_version(self.run.id, start.fence, self.version.version)
        self.requests: list[GenerateRequest] = []
        self.chat = chat
        self.runner: EpisodeRunner | None = None
        self.sandbox_of: Callable[[Task], Awaitable[str]] | None = None
        answers = iter(turns)

        def script(request: GenerateRequest) -> Sequence[int]:
            self.requests.append(request)
            text = next(answers)
            return ENDLESS if text == "endless" else chat.encode_action(text)

        self.engine = ScriptedEngine(script, max_context=max_context)
        self.lineage = Lineage("m", "t", "c", "scripted", "1", "float32", Sampling())

    grades = True

    async def play(self) -> tuple[EpisodeEnd, StoredTrajectory, Place]:
        await self.engine.load(PolicyVersion(self.version.version, None, 0, "u", "c", "published"))
        opened = self.store.open_episodes(
            self.run.id, worker="w", request=uuid4(), n=1, engine_version=self.version.version, lineage=self.lineage
        ).episodes[0]
        self.runner = EpisodeRunner(
            self.environment, self.store, self.engine, self.chat, self.pool, Sampling(), grades=self.grades
        )
        self.runner.sandbox_of = self.sandbox_of
        ending = await self.runner.run(opened)
        stored = self.store.trajectory(opened.trajectory)
        assert stored is not None
        (place,) = [place for place, n in self.store.conservation(self.run.id).places.items() if n]
        return ending, stored, place


async def test_sandbox_for_grading__is_asked_for_as_first(chat: ChatFormat) -> None:
    acting, grading = Case(chat, [call(0)], BrokenBox()), Case(chat, ["stop"], GraderBox())
    await acting.play()
    await grading.play()
    assert (acting.pool.first, grading.pool.first) == ([False], [True])


async def test_sandbox_of_the_task__is_stored_with_the_trajectory(chat: ChatFormat) -> None:
    case = Case(chat, ["stop"])

    async def digest(task: Task) -> str:
        return f"docker:sha256:{task.id}"

    case.sandbox_of = digest
    _, stored, _ = await case.play()
    assert stored.lineage.sandbox == f"docker:sha256:{stored.task_id}"

    async def away(task: Task) -> str:
        raise SandboxDied("the daemon is away")

    case = Case(chat, ["stop"])
    case.sandbox_of = away
    ending, stored, place = await case.play()
    assert (ending.outcome, place) == (Outcome.INFRASTRUCTURE, Place.DROPPED)


async def test_token_truth__stored_ids_are_the_ids_of_the_requests(chat: ChatFormat) -> None:
    case = Case(chat, [call(5), call(0), "stop"])
    _, stored, place = await case.play()
    assert place is Place.READY
    seen: list[int] = []
    for segment, request in zip(stored.segments, case.requests, strict=True):
        seen += segment.observation.tolist()
        assert list(request.token_ids) == seen
        seen += segment.action.tolist()
        assert len(segment.logprobs) == len(segment.versions) == segment.n_act
    assert chat.decode(seen).count("<tool_response>") == 2
    assert np.all(np.concatenate([s.versions for s in stored.segments]) == case.version.version)


@pytest.mark.parametrize("fails", [False, True])
async def test_session__is_released_before_grading_and_on_every_other_way_out(chat: ChatFormat, fails: bool) -> None:
    order: list[str] = []

    class Graded(Counter):
        async def respond(self, episode: Episode, text: str) -> Done:
            if fails:
                raise RuntimeError("broken")
            return Done()

        async def reward(self, episode: Episode, sandbox: Sandbox) -> float:
            order.append("graded")
            return 1.0

    case = Case(chat, ["stop"], Graded())
    release = case.engine.release

    def released(session: str) -> None:
        order.append(session)
        release(session)

    case.engine.release = released
    _, stored, _ = await case.play()
    assert order == [str(stored.id), *([] if fails else ["graded"])]


async def test_outcome_classes__a_natural_end_is_graded(chat: ChatFormat) -> None:
    ending, stored, _ = await Case(chat, [call(0), "stop"]).play()
    assert (ending.termination, ending.outcome) == (Termination.TERMINATED, Outcome.GRADED)
    assert stored.reward is not None
    assert stored.reward.success is True


async def test_outcome_classes__a_spent_budget_is_a_truncation_without_reward(chat: ChatFormat) -> None:
    ending, stored, place = await Case(chat, [call(1), call(2), call(3)]).play()
    assert (ending.termination, ending.outcome) == (Termination.TRUNCATED_TURNS, Outcome.POLICY_ENDED)
    assert stored.reward is None
    assert stored.segments[-1].n_act == 0, "the state after the last turn is kept for the bootstrap"
    assert place is Place.READY


async def test_outcome_classes__a_parse_error_is_an_observation(chat: ChatFormat) -> None:
    ending, stored, _ = await Case(chat, ["<tool_call>{nonsense</tool_call>", call('"x"'), "stop"]).play()
    assert ending.termination is Termination.TERMINATED
    assert "error" in stored.segments[1].observation_text
    assert "error" in stored.segments[2].observation_text


async def test_outcome_classes__a_dead_sandbox_is_infrastructure_and_never_a_reward(chat: ChatFormat) -> None:
    ending, stored, place = await Case(chat, [call(1)], BrokenBox()).play()
    assert (ending.termination, ending.outcome) == (Termination.FAILED, Outcome.INFRASTRUCTURE)
    assert "c0ffee" in (ending.error or "")
    assert stored.reward is None
    assert place is Place.DROPPED


class Undertaker(Counter):
    """Must not be asked for a reward where the episode ran."""

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        raise AssertionError("graded here")


async def test_graded_elsewhere__the_end_waits_with_all_that_its_grading_needs(chat: ChatFormat) -> None:
    case = Case(chat, [call(0), "stop"], Undertaker())
    case.grades = False
    ending, stored, place = await case.play()
    assert (ending.outcome, ending.reward, place) == (Outcome.GRADED, None, Place.GRADE_JOB)
    (job,) = case.store.claim_grades(case.run.id, worker="g", n=1, lease_s=60)
    episode = unpack(job.evidence, job.task, stored.seed, stored.termination)
    assert (episode.task, episode.state.number, episode.ended) == (job.task, 0, Termination.TERMINATED)
    assert [turn.text for turn in episode.turns] == [call(0), "stop"]
    assert [message.role for message in episode.messages] == ["user", "assistant", "tool", "assistant"]
    assert await Counter().reward(episode, None) == Reward(1.0, True)


async def test_graded_elsewhere__a_spent_budget_still_needs_no_verdict(chat: ChatFormat) -> None:
    case = Case(chat, [call(1), call(2), call(3)], Undertaker())
    case.grades = False
    ending, _, place = await case.play()
    assert (ending.outcome, ending.evidence, place) == (Outcome.POLICY_ENDED, None, Place.READY)


async def test_graded_elsewhere__a_state_that_can_t_be_carried_fails_the_episode_by_name(chat: ChatFormat) -> None:
    class Odd(Undertaker):
        async def finish(self, episode: Episode) -> None:
            episode.state.handle = object()

    case = Case(chat, ["stop"], Odd())
    case.grades = False
    ending, _, place = await case.play()
    assert (ending.outcome, place) == (Outcome.INFRASTRUCTURE, Place.DROPPED)
    assert "episode.state.handle holds a builtins.object" in (ending.error or "")


class Nodes(Counter):
    """What is said before a call is a unit of its own; a count of 0 belongs to the unit before."""

    max_turn_tokens = 100

    async def step(self, episode: Episode, text: str) -> Step:
        if "<tool_call>" in text:
            episode.mark_units(0, text.index("<tool_call>"))
        return await super().step(episode, text)

    @tool(side_effects=False)
    async def count(self, episode: Episode, number: int) -> str:
        """Say a number."""
        if not number:
            episode.mark_units()
        return f"ok {number}"


async def test_units_of_credit__are_stored_as_the_environment_marked_them(chat: ChatFormat) -> None:
    ending, stored, _ = await Case(chat, ["count to 3 " + call(3), call(0), "stop"], Nodes()).play()
    assert ending.termination is Termination.TERMINATED, ending
    first, second, last = stored.segments
    assert first.unit_starts is not None
    begin, other = np.flatnonzero(first.unit_starts)
    assert begin == 0
    assert chat.decode(first.action[:other].tolist()) == "count to 3 "
    assert second.unit_starts is not None
    assert not second.unit_starts.any()
    assert last.unit_starts is None
    assert build_batch([stored], max_context=1000).trajectories[0].n_units == 3


class Paying(Counter):
    """Its tool is not declared free of side effects; afterwards the sandbox dies, the engine stops or the worker does."""

    sandbox = SandboxSpec()
    gate: asyncio.Event | None = None

    @tool
    async def count(self, episode: Episode, number: int) -> str:
        """Pay, then fail or hang."""
        if self.gate is None:
            await episode.sandbox.exec("true")
        else:
            self.gate.set()
            await asyncio.Event().wait()
        return "never"


@pytest.mark.parametrize(("environment", "again"), [(BrokenBox(), True), (Paying(), False)])
async def test_no_unasked_repetition__of_an_episode_that_failed(
    chat: ChatFormat, environment: Environment, again: bool
) -> None:
    ending, _, _ = await Case(chat, [call(1)], environment).play()
    assert ending.outcome is Outcome.INFRASTRUCTURE
    assert ending.retryable is again


async def test_no_unasked_repetition__of_an_episode_that_the_worker_left(chat: ChatFormat) -> None:
    environment = Paying()
    environment.gate = asyncio.Event()
    case = Case(chat, [call(1)], environment)
    playing = asyncio.create_task(case.play())
    await environment.gate.wait()
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    assert case.runner is not None
    assert len(case.runner.unrepeatable) == 1


async def test_stop_that_meets_the_completion__comes_too_late(chat: ChatFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(chat, ["stop"])
    complete, loop, storing, stored = case.store.complete, asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def slow(*given: Any) -> Place:
        loop.call_soon_threadsafe(storing.set)
        stored.wait()
        return complete(*given)

    monkeypatch.setattr(case.store, "complete", slow)
    playing = asyncio.create_task(case.play())
    await storing.wait()
    playing.cancel()
    await asyncio.sleep(0)
    stored.set()
    ending, _, place = await playing
    assert (ending.outcome, place) == (Outcome.GRADED, Place.READY)


async def test_outcome_classes__a_spent_wall_clock_is_never_graded(chat: ChatFormat) -> None:
    environment = Counter()
    environment.grades_truncated = True
    environment.max_seconds = 1e-6
    ending, stored, _ = await Case(chat, [call(0), "stop"], environment).play()
    assert (ending.termination, ending.outcome) == (Termination.TRUNCATED_TIME, Outcome.POLICY_ENDED)
    assert stored.reward is None


async def test_truncated_call__is_never_executed(chat: ChatFormat) -> None:
    environment = Counter()
    environment.max_turn_tokens = 5
    ending, stored, _ = await Case(chat, [call(1)], environment).play()
    assert ending.termination is Termination.TRUNCATED_TURN_TOKENS
    assert stored.segments[0].n_act == 5
    assert stored.segments[0].tool_calls == ()


async def test_token_budget__ends_with_its_own_value(chat: ChatFormat) -> None:
    _, whole, _ = await Case(chat, [call(0), "stop"]).play()
    for limit, termination in ((whole.n_tokens, Termination.TERMINATED), (whole.n_tokens - 1, Termination.TRUNCATED_TOKENS)):
        environment = Counter()
        environment.max_tokens = limit
        ending, stored, _ = await Case(chat, [call(0), "stop"], environment).play()
        assert ending.termination is termination
        assert stored.n_tokens <= limit


def limited(**limits: float) -> Counter:
    environment = Counter()
    for name, value in limits.items():
        setattr(environment, name, value)
    return environment


UNCOUNTED: dict[str, float] = {"max_turn_tokens": 10**9, "max_tokens": 10**9}


@pytest.mark.parametrize(
    ("limits", "max_context", "turns", "termination"),
    [
        ({"max_turns": 1}, 400, [call(1)], Termination.TRUNCATED_TURNS),
        ({"max_turn_tokens": 3}, 400, [call(1)], Termination.TRUNCATED_TURN_TOKENS),
        ({"max_tokens": 25}, 400, ["endless"], Termination.TRUNCATED_TOKENS),
        ({}, 25, ["endless"], Termination.TRUNCATED_CONTEXT),
        ({"max_tokens": 1}, 400, [], Termination.TRUNCATED_TOKENS),
        ({}, 1, [], Termination.TRUNCATED_CONTEXT),
        ({"max_seconds": 0.0}, 400, [], Termination.TRUNCATED_TIME),
        ({"max_seconds": 0.1, **UNCOUNTED}, 10**9, ["endless"], Termination.TRUNCATED_TIME),
        ({"max_turn_seconds": 0.1, **UNCOUNTED}, 10**9, ["endless"], Termination.TRUNCATED_TURN_TIME),
        ({"max_turn_seconds": 600.0, "max_seconds": 0.1, **UNCOUNTED}, 10**9, ["endless"], Termination.TRUNCATED_TIME),
    ],
)
async def test_budgets__each_has_its_own_value(
    chat: ChatFormat, limits: dict[str, float], max_context: int, turns: list[str], termination: Termination
) -> None:
    ending, stored, _ = await Case(chat, turns, limited(**limits), max_context).play()
    assert (ending.termination, ending.outcome) == (termination, Outcome.POLICY_ENDED)
    assert stored.reward is None
    assert all(not segment.tool_results for segment in stored.segments) or termination is Termination.TRUNCATED_TURNS


async def test_turn_time__what_was_sampled_is_kept_and_no_call_of_it_is_made(chat: ChatFormat) -> None:
    ending, stored, _ = await Case(chat, [call(1), "endless"], limited(max_turn_seconds=0.1, **UNCOUNTED), 10**9).play()
    first, second = stored.segments
    assert ending.termination is Termination.TRUNCATED_TURN_TIME
    assert (first.finish_reason, len(first.tool_results)) == (FinishReason.STOP, 1)
    assert (second.finish_reason, second.tool_calls) == (FinishReason.ABORT, ())
    assert second.n_act > 0
    assert second.action.tolist() == list(range(100, 100 + second.n_act)), "in the order in which it was sampled"
    assert len(second.logprobs) == len(second.versions) == second.n_act
    _check_end(stored)


async def test_turn_time__slow_calls_end_the_episode_after_their_results(chat: ChatFormat) -> None:
    class Slow(Counter):
        max_turn_seconds = 0.05

        @tool(side_effects=False)
        async def count(self, episode: Episode, number: int) -> str:
            """Take long."""
            await asyncio.sleep(0.06)
            return "counted"

    ending, stored, _ = await Case(chat, [call(1), "stop"], Slow()).play()
    assert (ending.termination, ending.outcome) == (Termination.TRUNCATED_TURN_TIME, Outcome.POLICY_ENDED)
    assert stored.segments[0].tool_results[0].text == "counted"
    assert (stored.segments[-1].n_act, stored.n_turns) == (0, 1), "the state after it is there to bootstrap from"
    _check_end(stored)


async def test_done__wins_over_every_budget_that_it_spends(chat: ChatFormat) -> None:
    _, whole, _ = await Case(chat, [call(0), "stop"]).play()
    for limits, max_context in (({"max_turns": 2}, 400), ({"max_tokens": whole.n_tokens}, 400), ({}, whole.n_tokens)):
        ending, _, _ = await Case(chat, [call(0), "stop"], limited(**limits), max_context).play()
        assert (ending.termination, ending.outcome) == (Termination.TERMINATED, Outcome.GRADED)


async def test_finish_reason__is_asked_before_the_text_is_parsed(chat: ChatFormat) -> None:
    broken = '<tool_call>{"na'
    environment = limited(max_turn_tokens=len(chat.encode_action(broken)) - 1)
    ending, stored, _ = await Case(chat, [broken], environment).play()
    assert ending.termination is Termination.TRUNCATED_TURN_TOKENS
    assert stored.segments[0].action_text == broken
    assert (stored.segments[0].tool_calls, len(stored.segments)) == ((), 1)


async def test_graded_truncation__keeps_the_state_that_tells_it_from_a_natural_end(chat: ChatFormat) -> None:
    environment = limited(max_turns=1)
    environment.grades_truncated = True
    ending, stored, _ = await Case(chat, [call(1)], environment).play()
    assert (ending.termination, ending.outcome) == (Termination.TRUNCATED_TURNS, Outcome.GRADED)
    assert [segment.n_act > 0 for segment in stored.segments] == [True, False]


async def test_engine_whose_text_is_another__fails_one_episode(chat: ChatFormat) -> None:
    case = Case(chat, ["stop"])
    sound = case.engine.generate

    async def lossy(request: GenerateRequest) -> Generation:
        return replace(await sound(request), text="<tool_call>stop")

    case.engine.generate = lossy  # type: ignore[method-assign]
    ending, stored, place = await case.play()
    assert (ending.outcome, place) == (Outcome.INFRASTRUCTURE, Place.DROPPED)
    assert (ending.error or "").startswith("WrongAnswer")
    assert stored.segments == []


THINKING = (
    "{%- for m in messages -%}{%- set said = m.content.split('</think>')[-1].strip() if not loop.last else m.content -%}"
    "{{ '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


@pytest.mark.parametrize(("follow", "contexts"), [(False, [0, 0, 0]), (True, [0, 1, 2])])
async def test_template_that_strips_reasoning__each_sampled_token_is_stored_once(
    chat: ChatFormat, tmp_path: Path, follow: bool, contexts: list[int]
) -> None:
    build_tokenizer(["<think>count</think>", call(1), "stop"] * 20, TokenizerPlan(scaffold=("<think>", "</think>")), tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": THINKING}))
    chat = ChatFormat(tmp_path, follow=follow)
    turns = [f"<think>one {call(9)}</think>{call(0)}", f"<think>two</think>{call(0)}", "<think>three</think>stop"]
    case = Case(chat, turns)
    ending, stored, _ = await case.play()
    assert ending.termination is Termination.TERMINATED, "reasoning is no part of the answer"
    assert [segment.context for segment in stored.segments] == contexts
    assert sum(segment.n_act for segment in stored.segments) == sum(len(chat.encode_action(turn)) for turn in turns)
    assert [len(segment.tool_calls) for segment in stored.segments] == [1, 1, 0], "a call inside of reasoning is not made"
    last = chat.decode(case.requests[-1].token_ids)
    assert ("one" in last) is not follow


async def test_seeds__differ_between_turns_and_repeat_with_the_episode(chat: ChatFormat) -> None:
    first, second = Case(chat, [call(0), "stop"]), Case(chat, [call(0), "stop"])
    await asyncio.gather(first.play(), second.play())
    seeds = [request.seed for request in first.requests]
    assert len(set(seeds)) == 2
    assert seeds == [request.seed for request in second.requests]
