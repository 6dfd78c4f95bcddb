"""A second, small model: the segment writes of one trajectory.

Worker a writes; any message may arrive late or twice and any reply may be lost; the server may restart and lose commits that
were not flushed; the lease may lapse and worker b take over under a new fence, as with a parked episode. Where the store
retries a lapsed episode as a new trajectory b does not occur; the answers to a must be right either way.

SQL: `write_segment_v2` with `stored_before_v1`, `park_live_v1` and `serve_parked_v1`, and the count in `complete_v2`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from agentrl.store.model.search import Result

SEGMENTS = 3
FAULTS = 2


class SegmentInvariant(StrEnum):
    """Each value is the sentence that a configuration prints when the invariant is broken."""

    NO_HOLE = "a trajectory completed with a hole"
    ONE_WRITER = "segments of two workers mixed"
    FORWARD = "next_seg went back"
    NOT_STUCK = "a living worker with a valid fence can never complete"


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """The default is what the store does; see `agentrl.store.model.rules`."""

    next_seg: str = "grows"
    """``grows``: it never goes back; ``set``: each accepted write sets it to its own number plus one."""
    flushed: bool = True
    """A commit is on disk before its answer; False: asynchronous commits, which a restart may lose."""
    counted: bool = True
    """Completion compares the number of segments with what is stored."""
    new_fence: bool = True
    """Whoever continues an episode gets a fence of its own."""
    resent: bool = True
    """After a gap the worker sends again from ``next_seg``; it keeps its segments until the completion."""


class Row(NamedTuple):
    """The live row and its segments; each segment is the name of its writer."""

    fence: int = 1
    segments: tuple[str, ...] = ("",) * SEGMENTS
    next_seg: int = 0
    done: bool = False


class Message(NamedTuple):
    fence: int
    seg: int
    writer: str


class World(NamedTuple):
    """The row as committed and as flushed, the workers (None: not there), and all messages ever sent."""

    row: Row = Row()
    flushed: Row = Row()
    a: Sender | None = (1, 0)
    b: Sender | None = None
    sent: frozenset[Message] = frozenset()
    faults: int = FAULTS


Sender = tuple[int, int]
"""A worker's fence, and the segment that it sends next."""
Change = tuple[str, World, SegmentInvariant | None]


def write(row: Row, message: Message, rules: SegmentRules) -> tuple[Row, str]:
    """The store's answer to a segment, and the row after it."""
    if row.done or message.fence != row.fence:
        return row, "fenced"
    if message.seg > row.next_seg:
        return row, "gap"
    stored = row.segments[message.seg]
    after = max(row.next_seg, message.seg + 1) if rules.next_seg == "grows" else message.seg + 1
    if stored in ("", message.writer):
        segments = (*row.segments[: message.seg], message.writer, *row.segments[message.seg + 1 :])
        return row._replace(segments=segments, next_seg=after), "stored"
    return row, "conflict"


def _with(world: World, name: str, sender: Sender | None) -> World:
    return world._replace(a=sender) if name == "a" else world._replace(b=sender)


def _worker(world: World, rules: SegmentRules, name: str) -> Iterator[Change]:
    sender = world.a if name == "a" else world.b
    if sender is None:
        return
    fence, index = sender
    row = world.row
    if row.fence != fence or row.done:
        yield f"{name} is fenced out", _with(world, name, None), None
        return
    if index == SEGMENTS:
        yield _completion(world, rules, name, fence)
        return
    message = Message(fence, index, name)
    after, answer = write(row, message, rules)
    sent = world._replace(row=after, sent=world.sent | {message})
    yield f"{name} sends segment {index}, the reply is lost", sent, None
    if answer == "stored":
        yield f"{name} writes segment {index}", _with(sent, name, (fence, index + 1)), None
    elif answer == "gap" and rules.resent:
        yield f"{name} sends again from segment {row.next_seg}", _with(world, name, (fence, row.next_seg)), None
    else:
        yield f"{name} is answered: {answer}", world, SegmentInvariant.NOT_STUCK


def _completion(world: World, rules: SegmentRules, name: str, fence: int) -> Change:
    row = world.row
    if "" in row.segments and rules.counted:
        back = _with(world, name, (fence, min(row.next_seg, SEGMENTS - 1)))
        return f"{name} is refused its completion", back, None if rules.resent else SegmentInvariant.NOT_STUCK
    bad = SegmentInvariant.NO_HOLE if "" in row.segments else None
    if "ba" in "".join(row.segments):
        bad = SegmentInvariant.ONE_WRITER
    return f"{name} completes", _with(world._replace(row=row._replace(done=True)), name, None), bad


def _changes(world: World, rules: SegmentRules) -> Iterator[Change]:
    for name in "ab":
        yield from _worker(world, rules, name)
    row = world.row
    for message in world.sent:
        after, _ = write(row, message, rules)
        if after != row:
            bad = SegmentInvariant.FORWARD if after.next_seg < row.next_seg else None
            label = f"a late copy of segment {message.seg} of {message.writer} arrives"
            yield label, world._replace(row=after), bad
    if world.flushed != row:
        yield "the commits are flushed", world._replace(flushed=row), None
        if world.faults:
            lost = world._replace(row=world.flushed, faults=world.faults - 1)
            yield "the server restarts and loses what was not flushed", lost, None
    if world.faults and not row.done:
        fence = row.fence + rules.new_fence
        taken = world._replace(row=row._replace(fence=fence), b=(fence, row.next_seg), faults=world.faults - 1)
        yield "the lease lapses and b takes over", taken, None


def search_segments(rules: SegmentRules) -> Result:
    """Explore all orders of messages, losses and restarts."""
    first = World()
    came: dict[World, tuple[World, str] | None] = {first: None}
    todo, broken = deque([first]), dict[str, list[str]]()
    while todo:
        world = todo.popleft()
        for label, after, bad in _changes(world, rules):
            following = after._replace(flushed=after.row) if rules.flushed else after
            if bad and bad.value not in broken:
                broken[bad.value] = [*_labels(came, world), label]
            if following not in came:
                came[following] = (world, label)
                todo.append(following)
    return Result(len(came), broken)


def _labels(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    labels: list[str] = []
    step = came[world]
    while step is not None:
        world, label = step
        labels.insert(0, label)
        step = came[world]
    return labels
