"""An environment that rewrites the history: each context is stored, replayed and trained once, after what was read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from test_continued_episode import Continued
from test_episode_runner import Case, Counter, call, chat  # noqa: F401

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.environment import Episode, Message, Task
from agentrl.environment.demonstrate import play
from agentrl.errors import TokenDrift
from agentrl.replay.prefixes import check_prefixes
from agentrl.tokens.chat_format import ChatFormat
from agentrl.trainer.batch import build_batch
from agentrl.trainer.credit import Values, assign_credit
from agentrl.trainer.warm_start import demonstration_rows
from agentrl.types import Outcome, StoredTrajectory


class Forgetful(Counter):
    """Keeps the task and the newest observation from the second turn on."""

    max_turns = 4
    max_tokens = 2000

    async def compact(self, episode: Episode) -> Sequence[Message] | None:
        if episode.n_turns % 2:
            return None
        summary = Message("user", f"earlier: {episode.n_turns} turns <|im_end|>\0")
        return [*self.messages(episode.task), summary, episode.messages[-1]]


TURNS = [call(5), call(6), call(7), "stop"]


@pytest.fixture
async def played(chat: ChatFormat) -> tuple[Case, StoredTrajectory]:  # noqa: F811
    case = Case(chat, TURNS, Forgetful(), max_context=600)
    ending, stored, _ = await case.play()
    assert ending.outcome is Outcome.GRADED
    return case, stored


async def test_compaction__opens_a_context_with_the_environments_messages(played: tuple[Case, StoredTrajectory]) -> None:
    case, stored = played
    assert [segment.context for segment in stored.segments] == [0, 0, 1, 1]
    assert case.runner is not None
    assert case.runner.metrics()["compacted_contexts"] == 1
    third = stored.segments[2]
    assert third.compacted is not None
    assert [message["content"] for message in third.compacted] == [
        "count to 0", "earlier: 2 turns <|im_end|>\N{REPLACEMENT CHARACTER}", "ok 6",
    ]  # fmt: skip
    said = Message("user", third.compacted[1]["content"])
    messages = [Message("user", "count to 0"), said, Message("tool", "ok 6", name="count")]
    assert third.observation.tolist() == case.chat.prompt(messages, case.environment.tool_schemas())
    assert all(segment.compacted is None for segment in stored.segments if segment is not third)


async def test_each_context__is_trained_once_after_what_the_engine_read(played: tuple[Case, StoredTrajectory]) -> None:
    case, stored = played
    (trajectory,) = build_batch([stored], max_context=600).trajectories
    prefixes = [
        context.tokens[: int(at)].tolist()
        for context in trajectory.contexts
        for at in context.positions
        if int(at) - 1 not in context.positions.tolist()
    ]
    assert prefixes == [list(request.token_ids) for request in case.requests]
    assert trajectory.n_actions == sum(segment.n_act for segment in stored.segments)
    assert trajectory.turn_id.unique_consecutive().tolist() == [0, 1, 2, 3]


async def test_turn_advantages__run_over_the_contexts_in_the_order_of_turns(played: tuple[Case, StoredTrajectory]) -> None:
    _, stored = played
    whole = replace(stored, segments=[replace(segment, context=0) for segment in stored.segments])
    settings = AlgorithmConfig(advantage="turn_gae", gamma=0.9, gae_lambda=0.8)
    advantages = []
    for one in (stored, whole):
        batch = build_batch([one], max_context=2000)
        values = [Values(torch.linspace(0.1, 0.4, t.n_actions), 0.0) for t in batch.trajectories]
        advantages.append(assign_credit(batch, values, settings).advantages[0])
    ends = build_batch([stored], max_context=2000).trajectories[0].turn_id
    last = ends >= 2
    assert torch.equal(advantages[0][last], advantages[1][last])
    # Across the seam nothing is discounted: the turns before it are nearer to the reward than in one context.
    assert bool((advantages[0][~last] != advantages[1][~last]).all())


async def test_replay__writes_the_contexts_again(played: tuple[Case, StoredTrajectory]) -> None:
    case, stored = played
    prompt = case.environment.messages(Task("count/0", {"to": 0}))
    assert check_prefixes(stored, case.chat, case.environment, prompt) == 4
    other = tuple({**message, "content": "another"} for message in stored.segments[2].compacted or ())
    lie = replace(stored.segments[2], compacted=other)
    forged = replace(stored, segments=[*stored.segments[:2], lie, stored.segments[3]])
    with pytest.raises(TokenDrift, match="segment 2"):
        check_prefixes(forged, case.chat, case.environment, prompt)
    hidden = replace(stored, segments=[*stored.segments[:2], replace(lie, compacted=None), stored.segments[3]])
    with pytest.raises(TokenDrift, match="segment 2"):
        check_prefixes(hidden, case.chat, case.environment, prompt)


async def test_continued__compacts_again_and_samples_only_what_is_new(chat: ChatFormat) -> None:  # noqa: F811
    case = Continued(chat, TURNS[:3], Forgetful())
    case.engine.info = replace(case.engine.info, max_context=600)
    first = await case.begin()
    ending = await case.go_on(TURNS[3:]).run(await case.open())
    assert ending.outcome is Outcome.GRADED
    stored = case.store.trajectory(first.trajectory)
    assert stored is not None
    assert [segment.context for segment in stored.segments] == [0, 0, 1, 1]
    seen = [i for s in stored.segments[2:] for i in (*s.observation.tolist(), *s.action.tolist())]
    assert list(case.requests[-1].token_ids) == seen[: -stored.segments[-1].n_act]


class Wrong(Counter):
    max_turns = 4

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def compact(self, episode: Episode) -> Sequence[Message] | None:
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize("answer", ["text", [], [Message("assistant", "I")], [1], 7])
async def test_wrong_compaction__is_a_fault_of_the_environment(chat: ChatFormat, answer: object) -> None:  # noqa: F811
    ending, stored, _ = await Case(chat, TURNS, Wrong(answer)).play()
    assert ending.outcome is Outcome.INFRASTRUCTURE
    assert "compact() must return" in (ending.error or "")
    assert stored.reward is None


class Sized(Counter):
    max_turns = 4
    max_tokens = 2000
    seen: list[tuple[int, int]]

    async def compact(self, episode: Episode) -> Sequence[Message] | None:
        self.seen.append((episode.context_tokens, episode.max_context))
        return None


async def test_environment__sees_how_full_the_context_is(chat: ChatFormat) -> None:  # noqa: F811
    environment = Sized()
    environment.seen = []
    case = Case(chat, TURNS[2:], environment, max_context=600)
    await case.play()
    (request, _) = case.requests
    assert environment.seen == [(len(request.token_ids) + len(chat.encode_action(TURNS[2])), 600)]


def test_demonstration__has_a_row_a_context(chat: ChatFormat) -> None:  # noqa: F811
    environment = Forgetful()
    task = environment.tasks("train", 0, 1)[0]
    shown = asyncio.run(play(environment, task, lambda episode: TURNS[episode.n_turns]))
    assert [sum(isinstance(entry, str) for entry in context) for context in shown.contexts] == [2, 2]
    rows = demonstration_rows(chat, shown, 600)
    assert [len(row.positions) for row in rows] == [
        sum(len(chat.encode_action(turn)) for turn in turns) for turns in (TURNS[:2], TURNS[2:])
    ]
