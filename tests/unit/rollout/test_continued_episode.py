"""An episode that lost its worker goes on from its last stored turn, with the ids that are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import numpy as np
import pytest
from test_episode_runner import Case, Counter, DeadPool, call, chat  # noqa: F401

from agentrl.environment import Episode, tool
from agentrl.rollout.episode import EpisodeRunner
from agentrl.store.contract import RunSpec
from agentrl.tokens.chat_format import ChatFormat
from agentrl.types import FinishReason, Opened, Outcome, PolicyVersion, Sampling, Segment, Termination


class Continued(Case):
    """Two workers, one after the other; the first stops when its script ends."""

    def __init__(self, chat: ChatFormat, turns: Sequence[str], environment: Counter | None = None) -> None:  # noqa: F811
        super().__init__(chat, turns, environment)
        spec = RunSpec("p", "counter", {}, "h", 0, lag_bound=1, batch_min=1, batch_max=1, resume_partial=True)
        self.run = self.store.create_run(spec, {"train": self.environment.tasks("train", 0, 4)})
        self.fence = self.store.start_trainer(self.run.id, owner="t", lease_s=60, checkpoint=None).fence
        self.publish(0, None)

    def publish(self, updates: int, parent: int | None) -> PolicyVersion:
        staged = self.store.stage_version(
            self.run.id, self.fence, parent=parent, updates=updates, uri=f"{updates} {parent}", checksum="c"
        )
        self.store.publish_version(self.run.id, self.fence, staged.version)
        return staged

    async def open(self) -> Opened:
        await self.engine.load(self.store.newest_version(self.run.id))
        (opened,) = self.store.open_episodes(
            self.run.id, worker="w", request=uuid4(), n=1, engine_version=self.engine.version, lineage=self.lineage
        ).episodes
        return opened

    async def begin(self) -> Opened:
        """The first worker runs out of script, which stops it, and leaves the episode."""
        opened = await self.open()
        runner = EpisodeRunner(self.environment, self.store, self.engine, self.chat, DeadPool(), Sampling())
        playing = asyncio.create_task(runner.run(opened))
        await asyncio.wait([playing])
        assert isinstance(playing.exception(), RuntimeError)  # StopIteration of the script
        assert self.store.park(opened)
        return opened

    def go_on(self, turns: Sequence[str]) -> EpisodeRunner:
        answers = iter(turns)
        self.engine._script = lambda request: (self.requests.append(request), self.chat.encode_action(next(answers)))[1]
        return EpisodeRunner(self.environment, self.store, self.engine, self.chat, DeadPool(), Sampling())


async def test_continued_is_the_same__stored_turns_are_not_sampled_again(chat: ChatFormat) -> None:  # noqa: F811
    case = Continued(chat, [call(0), call(5)])
    first = await case.begin()
    before = case.store.trajectory(first.trajectory).segments
    newer = case.publish(0, 0)
    sampled = len(case.requests)
    opened = await case.open()
    assert (opened.trajectory, opened.n_segments) == (first.trajectory, 2)
    ending = await case.go_on(["stop"]).run(opened)
    assert (ending.termination, ending.outcome) == (Termination.TERMINATED, Outcome.GRADED)
    stored = case.store.trajectory(first.trajectory)
    assert len(case.requests) == sampled + 1
    assert [s.action.tolist() for s in stored.segments[:2]] == [s.action.tolist() for s in before]
    assert [int(s.versions[0]) for s in stored.segments] == [0, 0, newer.version]
    seen = [i for s in stored.segments for i in (*s.observation.tolist(), *s.action.tolist())]
    assert list(case.requests[-1].token_ids) == seen[: -stored.segments[-1].n_act]
    assert stored.reward is not None


class Moody(Counter):
    """Its tool never answers twice alike."""

    calls = 0

    @tool(side_effects=False)
    async def count(self, episode: Episode, number: int) -> str:
        """Say a number."""
        type(self).calls += 1
        return f"call {self.calls}"


async def test_continued_is_the_same__else_the_seat_starts_again(chat: ChatFormat) -> None:  # noqa: F811
    case = Continued(chat, [call(0), call(5)], Moody())
    first = await case.begin()
    ending = await case.go_on([]).run(await case.open())
    assert ending.outcome is Outcome.INFRASTRUCTURE
    assert "segment 1: doing the stored calls again gave another observation" in (ending.error or "")
    again = await case.open()
    assert again.trajectory != first.trajectory
    assert (again.attempt, again.n_segments, again.task_index) == (2, 0, first.task_index)


async def test_worker_that_died_before_completing__is_completed_without_sampling(chat: ChatFormat) -> None:  # noqa: F811
    case = Continued(chat, [call(0), "stop"])
    opened = await case.open()
    runner = EpisodeRunner(case.environment, case.store, case.engine, chat, DeadPool(), Sampling())
    complete, case.store.complete = case.store.complete, None  # type: ignore[assignment,method-assign]
    with pytest.raises(TypeError):
        await runner.run(opened)
    case.store.complete = complete  # type: ignore[method-assign]
    assert case.store.park(opened)
    sampled = len(case.requests)
    ending = await case.go_on([]).run(await case.open())
    assert (ending.outcome, len(case.requests)) == (Outcome.GRADED, sampled)


async def test_worker_that_died_with_an_aborted_turn_stored__leaves_no_verdict(chat: ChatFormat) -> None:  # noqa: F811
    """Why the turn was cut died with the worker: it may have been a slow machine, so it is no truncation by the policy."""
    case = Continued(chat, [])
    case.environment.grades_truncated = True
    opened = await case.open()
    prompt = chat.prompt(case.environment.messages(opened.task), case.environment.tool_schemas())
    ids = chat.encode_action(call(0))[:3]
    cut = Segment(
        0, np.array(prompt, np.int32), np.array(ids, np.int32), np.full(3, -0.5, np.float32), np.zeros(3, np.int32),
        finish_reason=FinishReason.ABORT,
    )  # fmt: skip
    case.store.write_segment(opened, cut)
    assert case.store.park(opened)
    ending = await case.go_on([]).run(await case.open())
    assert (ending.termination, ending.outcome, ending.reward) == (Termination.ABORTED, Outcome.INFRASTRUCTURE, None)
