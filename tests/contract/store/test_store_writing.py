"""Segments: answers, idempotence, any bytes, versions, and the count at completion."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from store_bench import PostgresWorld, World, graded, segment

from agentrl.errors import BadValue, Fenced, IllegalMove, IncompleteTrajectory, SegmentConflict, SegmentGap, UnknownVersion
from agentrl.store.codec import end_parameters, segment_parameters
from agentrl.store.postgres_episodes import COMPLETE, WRITE_SEGMENT
from agentrl.types import (
    EpisodeEnd,
    FinishReason,
    Outcome,
    Place,
    Reward,
    Segment,
    Termination,
    Timings,
    ToolCall,
    ToolResult,
)

HOSTILE = [
    "",
    "W\x00s\x00l\x00",
    "lone \ud800 surrogate",
    "\\u0000 spelt out",
    "\\\\u0000",
    "日本 \U0001f600 \r\n\t\x1b[31m",
    "'; drop schema agentrl; --",
    "%s %(x)s :name",
]


def equal(a: Segment, b: Segment) -> bool:
    """Same content, arrays compared by dtype and bits."""
    arrays = ("observation", "action", "logprobs", "versions")
    if any(getattr(a, n).dtype != getattr(b, n).dtype or getattr(a, n).tobytes() != getattr(b, n).tobytes() for n in arrays):
        return False
    for one, other in ((a.loss_mask, b.loss_mask), (a.unit_starts, b.unit_starts)):
        if (one is None) != (other is None) or (one is not None and other is not None and (one != other).any()):
            return False
    blank = dict.fromkeys(arrays, np.zeros(0)) | {"loss_mask": None, "unit_starts": None}
    return repr(replace(a, **blank)) == repr(replace(b, **blank))


def test_segment_round_trip__bit_exact(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    full = segment(
        0,
        n=4,
        logprobs=np.array([-0.0, -1e-45, -3.4028235e38, -0.1], np.float32),
        loss_mask=np.array([1, 0, 1, 1], np.uint8),
        unit_starts=np.array([0, 0, 1, 0], np.uint8),
        context=2,
        finish_reason=FinishReason.LENGTH,
        action_raw=b"\x00\xff\xfe",
        tool_calls=(ToolCall("a", {"x": [1, {"y": None}]}), ToolCall("b", None, "not JSON")),
        tool_results=(ToolResult("a", "text", False, 0.25, b"\x80raw"), ToolResult("b", "", True)),
        reward=0.5,
        timings=Timings(0.1, 0.2, 0.3),
        compacted=({"role": "user", "content": "so far \N{SNOWMAN}"}, {"role": "tool", "content": "7", "name": "a"}),
    )
    last = Segment(1, np.array([7], np.int32), *(np.zeros(0, t) for t in (np.int32, np.float32, np.int32)))
    assert world.store.write_segment(episode, full)
    assert world.store.write_segment(episode, last)
    read = world.store.trajectory(episode.trajectory)
    assert equal(read.segments[0], full)
    assert equal(read.segments[1], last)
    assert (read.n_tokens, read.n_turns) == (9, 1)
    assert read.seed == episode.seed
    assert read.lineage.sampling.temperature == 1.0


def test_segment_answers__duplicate_conflict_gap_fenced(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    assert world.store.write_segment(episode, segment(0)) is True
    assert world.store.write_segment(episode, segment(1)) is True
    assert world.store.write_segment(episode, segment(0)) is False
    with pytest.raises(SegmentConflict) as changed:
        world.store.write_segment(episode, segment(0, observation_text="changed"))
    with pytest.raises(SegmentConflict):
        world.store.write_segment(episode, segment(1, reward=0.5))
    with pytest.raises(SegmentGap) as gap:
        world.store.write_segment(episode, segment(5))
    assert gap.value.next_seg == 2
    with pytest.raises(Fenced) as fenced:
        world.store.write_segment(replace(episode, fence=episode.fence + 1), segment(2))
    said = ((changed, 0, "another body"), (gap, 5, "but segment 2 is missing"), (fenced, 2, f"under fence {episode.fence + 1}"))
    for error, index, expected in said:
        for part in (f"segment {index}", f"trajectory {episode.trajectory}", bench.spec.name, expected):
            assert part in error.value.args[0]
    assert len(world.store.trajectory(episode.trajectory).segments) == 2


def test_late_duplicate__does_not_set_next_seg_back(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    for i in range(5):
        world.store.write_segment(episode, segment(i))
    assert world.store.write_segment(episode, segment(1)) is False
    assert world.store.write_segment(episode, segment(5)) is True
    assert world.store.complete(episode, graded(6)) is Place.READY


@pytest.mark.parametrize("text", HOSTILE)
def test_any_bytes(world: World, text: str) -> None:
    """Whatever the model or a tool prints is stored, shown and read back exactly."""
    bench = world.bench()
    (episode,) = bench.open(1)
    turn = segment(
        0,
        observation_text=text,
        action_text=text,
        action_raw=text.encode("utf-8", "surrogatepass"),
        tool_calls=(ToolCall(text, {text: text, "n": [text]}, text),),
        tool_results=(ToolResult("t", text, raw=b"\xff\x00" + text.encode("utf-8", "surrogatepass")),),
    )
    assert world.store.write_segment(episode, turn)
    assert world.store.write_segment(episode, turn) is False
    assert equal(world.store.trajectory(episode.trajectory).segments[0], turn)
    error = EpisodeEnd(1, Termination.FAILED, Outcome.INFRASTRUCTURE, error=text)
    assert world.store.complete(episode, error) is Place.DROPPED


def test_any_bytes_numbers_json_does_not_know__kept(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    turn = segment(0, tool_calls=(ToolCall("t", {"x": math.inf, "y": [10**300, -math.inf]}),))
    world.store.write_segment(episode, turn)
    assert equal(world.store.trajectory(episode.trajectory).segments[0], turn)


def test_any_bytes_five_megabytes__kept(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    turn = segment(0, observation_text="x\x00" * 2_500_000)
    world.store.write_segment(episode, turn)
    assert world.store.trajectory(episode.trajectory).segments[0].observation_text == turn.observation_text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"logprobs": np.array([-1, np.nan, 0], np.float32)}, "logprobs"),
        ({"logprobs": np.array([-1, -np.inf, 0], np.float32)}, "logprobs"),
        ({"logprobs": np.zeros(2, np.float32)}, "logprobs"),
        ({"versions": np.zeros(4, np.int32)}, "versions"),
        ({"loss_mask": np.zeros(4, np.uint8)}, "loss_mask"),
        ({"unit_starts": np.zeros(4, np.uint8)}, "unit_starts"),
        ({"reward": math.nan}, "reward"),
        ({"action": np.zeros((3, 1), np.int32)}, "action"),
        ({"observation": np.zeros(3, np.float64)}, "observation"),
    ],
)
def test_segment_bad_value__named_and_nothing_stored(world: World, changes: dict[str, Any], field: str) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    with pytest.raises(BadValue, match=field):
        world.store.write_segment(episode, segment(0, **changes))
    assert world.store.write_segment(episode, segment(0)) is True


def test_version_truth(world: World) -> None:
    """A token's version must have a row; staged and failed names are valid, unknown ones are not."""
    bench = world.bench(lag_bound=4)
    (episode,) = bench.open(1)
    with pytest.raises(UnknownVersion):
        world.store.write_segment(episode, segment(0, version=1))
    staged = world.store.stage_version(bench.run, bench.fence, parent=0, updates=0, uri="w2", checksum="c").version
    mixed = segment(0, n=3, versions=np.array([0, staged, staged], np.int32))
    assert world.store.write_segment(episode, mixed)
    world.store.fail_version(bench.run, bench.fence, staged)
    assert world.store.write_segment(episode, segment(1, version=staged))
    with pytest.raises(UnknownVersion):
        world.store.write_segment(episode, segment(2, n=2, versions=np.array([staged, staged + 1], np.int32)))
    assert world.store.complete(episode, graded(2)) is Place.READY
    read = world.store.trajectory(episode.trajectory)
    assert read.segments[0].versions.tolist() == [0, staged, staged]
    assert read.segments[1].versions.tolist() == [staged] * 3


def test_completion_count__must_be_what_is_stored(world: World) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment(0))
    with pytest.raises(IncompleteTrajectory) as missing:
        world.store.complete(episode, graded(3))
    assert missing.value.next_seg == 1
    assert bench.place(Place.LIVE) == 1
    world.store.write_segment(episode, segment(1))
    world.store.write_segment(episode, segment(2))
    assert world.store.complete(episode, graded(3)) is Place.READY


def test_exactly_once_effect(world: World) -> None:
    """Delivery may repeat, the effect may not; another body under the same key is an error."""
    bench = world.bench()
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment(0))
    assert world.store.complete(episode, graded(1, 1.0)) is Place.READY
    assert world.store.complete(episode, graded(1, 1.0)) is Place.READY
    with pytest.raises(IllegalMove):
        world.store.complete(episode, EpisodeEnd(1, Termination.TRUNCATED_TURNS, Outcome.POLICY_ENDED))
    with pytest.raises(Fenced):
        world.store.write_segment(episode, segment(1))
    assert bench.place(Place.READY) == 1
    claim = bench.claim(1, 1)
    assert world.store.complete(episode, graded(1, 1.0)) is Place.READY, "the first result, wherever it is by now"
    bench.commit(claim.items)
    assert bench.commit(claim.items, step=1).repeated
    assert bench.place(Place.CONSUMED) == 1
    bench.check()


@pytest.mark.parametrize(
    ("end", "field"),
    [
        (EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED, Reward(math.nan)), "reward.value"),
        (EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED, Reward(1.0, detail={"a": [math.inf]})), r"reward.detail.a\[0\]"),
        (EpisodeEnd(1, Termination.TERMINATED, Outcome.GRADED, Reward(1.0, detail={"a": "\x00"})), "reward.detail.a"),
        (EpisodeEnd(1, Termination.TERMINATED, Outcome.POLICY_ENDED, Reward(1.0)), "end.reward"),
        (EpisodeEnd(1, Termination.TERMINATED, Outcome.INFRASTRUCTURE), "end.outcome"),
        (EpisodeEnd(1, Termination.FAILED, Outcome.GRADED, Reward(0.0)), "end.outcome"),
    ],
)
def test_completion_bad_value__named_and_episode_stays(world: World, end: EpisodeEnd, field: str) -> None:
    bench = world.bench()
    (episode,) = bench.open(1)
    world.store.write_segment(episode, segment(0))
    with pytest.raises(BadValue, match=field):
        world.store.complete(episode, end)
    assert bench.place(Place.LIVE) == 1


@pytest.mark.parametrize("raw", [None, b"\x00raw"])
def test_calls_made_together__are_one_transaction(postgres: PostgresWorld, raw: bytes | None) -> None:
    bench = postgres.bench()
    (episode,) = bench.open(1)
    key = (episode.trajectory, episode.fence)
    turns = [segment(i, tool_results=(ToolResult("t", "text", raw=raw),)) for i in range(3)]
    calls = [(WRITE_SEGMENT, (*key, *segment_parameters(s))) for s in turns]
    with pytest.raises(IncompleteTrajectory):
        postgres.store.together([*calls, (COMPLETE, (*key, *end_parameters(graded(4))))])
    assert postgres.store.trajectory(episode.trajectory).segments == []
    done = postgres.store.together([*calls, calls[0], (COMPLETE, (*key, *end_parameters(graded(3))))])
    assert done == [True, True, True, False, "ready"]
    assert [s.tool_results[0].raw for s in postgres.store.trajectory(episode.trajectory).segments] == [raw] * 3
