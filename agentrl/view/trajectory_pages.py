"""The pages about one trajectory: its turns, its tokens, two of them side by side, and exact bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any
from uuid import UUID

from agentrl.config.stored import from_row, model_folder
from agentrl.errors import UsageError
from agentrl.store.evidence import last_training
from agentrl.store.reader import Reader
from agentrl.store.retention import removed_by_retention
from agentrl.types import Segment, StoredTrajectory
from agentrl.view.asking import Asked
from agentrl.view.page import NotFound, Page
from agentrl.view.timeline import life, turn_spans
from agentrl.view.tokens import PAGE, sums, tokenizer_of, tokens
from agentrl.view.trajectory_json import trajectory_record
from agentrl.view.turns import PAGE as TURNS
from agentrl.view.turns import exact_bytes, turns, versions_of

_TURNS = "select * from segment_debug where trajectory = {id}::uuid order by seg limit 10000"
_NUMBERS = """
  select d.run, d.branch, d.step, f4(d.logprobs) as logprobs, f4(d."values") as "values", f4(d.advantages) as advantages,
         f4(d.returns) as returns
  from trained d where d.trajectory = {id}::uuid order by d.run, d.branch limit 100
"""
_NEIGHBOURS = """
  select (select id from agentrl.trajectory where run = t.run and id < t.id and root is null order by id desc limit 1),
         (select id from agentrl.trajectory where run = t.run and id > t.id and root is null order by id limit 1)
  from agentrl.trajectory t where t.id = %s
"""


def trajectory(asked: Asked, text: str, start: int) -> Page:
    """Turn by turn from segment ``start`` on, with its verdicts, its moves and its neighbours in the run."""
    found = find(asked, text)
    stored, identity = found.stored, str(found.stored.id)
    verdicts = asked.rows("select * from reward where trajectory = {id}::uuid order by id desc limit {limit}", 50, id=identity)
    moves = asked.rows(
        """
        select e.at, r.name as run, e.from_place, e.to_place, e.why, e.actor, e.fence
        from event e join run r on r.id = e.run where e.trajectory = {id}::uuid order by e.id limit {limit}
        """,
        500,
        id=identity,
    )
    asked.mention(_TURNS, id=identity)
    data = {"trajectory": trajectory_record(stored, moves, tokens=False), "line": found.line, "verdicts": verdicts}
    own = [move for move in moves if move["run"] == found.line["run_name"]]
    extra = {
        "found": found, "stored": stored, "turns": turns(stored, found.members, start), "start": start, "page_size": TURNS,
        "spans": turn_spans(stored), "life": life(own), "moves": moves,
        "neighbours": _neighbours(asked.reader, found.line), "sums": sums(stored, last_training(asked.reader, stored.id)),
    }  # fmt: skip
    return Page("trajectory.html.jinja", f"trajectory {stored.id}", data, extra)


def token_page(asked: Asked, text: str, start: int) -> Page:
    """Token by token from position ``start`` on."""
    found = find(asked, text)
    stored = found.stored
    training = last_training(asked.reader, stored.id)
    tokenizer = _tokenizer(asked.reader, found.line["run_name"])
    shown = tokens(stored, training, tokenizer, start)
    asked.mention(_TURNS, id=str(stored.id))
    asked.mention(_NUMBERS, id=str(stored.id))
    data = {
        "trajectory": stored.id, "from": start, "tokens": shown, "sums": sums(stored, training),
        "trained_by": None if training is None else {"run": training.run, "step": training.step},
    }  # fmt: skip
    extra = {
        "stored": stored, "line": found.line, "page_size": PAGE, "start": start, "has_text": tokenizer is not None,
    }  # fmt: skip
    return Page("tokens.html.jinja", f"tokens of {stored.id}", data, extra)


def comparison(asked: Asked, first: str, second: str) -> Page:
    """The first turns of two trajectories side by side."""
    both = [find(asked, text) for text in (first, second)]
    sides = [turns(found.stored, found.members) for found in both]
    pairs = list(zip_longest(*sides))
    records = [trajectory_record(found.stored, [], tokens=False) for found in both]
    data = {"trajectories": records, "lines": [found.line for found in both]}
    return Page("comparison.html.jinja", "two trajectories", data, {"both": both, "pairs": pairs})


def part(asked: Asked, text: str, index: int, name: str) -> tuple[str, bytes]:
    """The exact bytes of a part of a turn, and a file name for them. `NotFound` without it."""
    stored = find(asked, text).stored
    segment: Segment | None = next((s for s in stored.segments if s.index == index), None)
    if segment is None:
        raise NotFound(f"Trajectory {stored.id} has no segment {index}.")
    try:
        return f"{stored.id}-{index}-{name}.bin", exact_bytes(segment, name)
    except KeyError:
        raise NotFound(f"Segment {index} of trajectory {stored.id} has no part {name!r}.") from None


@dataclass(frozen=True, slots=True)
class Found:
    """``line``: that of the list; of a sub-agent that of its episode. ``members``: all sub-agents of that episode."""

    stored: StoredTrajectory
    line: dict[str, Any]
    members: Sequence[StoredTrajectory]

    @property
    def versions(self) -> str:
        return versions_of(self.stored.segments)


def find(asked: Asked, text: str) -> Found:
    """The trajectory of an address. `NotFound` says whether it was removed or never there."""
    try:
        identity = UUID(text)
    except ValueError:
        raise NotFound(f"'{text}' is not a trajectory id (a UUID such as 0192f0c1-...).") from None
    stored = asked.reader.trajectory(identity)
    lines = asked.rows(
        """
        select v.* from trajectory t join v_trajectories v on v.run = t.run and v.trajectory = coalesce(t.root, t.id)
        where t.id = {id}::uuid limit {limit}
        """,
        1,
        id=str(identity),
    )
    if stored is None or not lines:
        removed = removed_by_retention(asked.reader, identity)
        raise NotFound(removed or f"There is no trajectory {identity} in this store.")
    root = stored if stored.parent is None else asked.reader.trajectory(lines[0]["trajectory"])
    return Found(stored, lines[0], () if root is None else root.sub_agents)


def _neighbours(reader: Reader, row: dict[str, Any]) -> tuple[UUID | None, UUID | None]:
    """The trajectories of the run before and after it."""
    ((before, after),) = reader.rows(_NEIGHBOURS, (row["trajectory"],))
    return before, after


def _tokenizer(reader: Reader, run: str) -> Any:
    found = reader.find_run(run)
    if found is None:
        return None
    try:
        return tokenizer_of(model_folder(*from_row(found.spec.config)))
    except UsageError:  # the run was imported, or made by another version: its ids are shown alone
        return None
