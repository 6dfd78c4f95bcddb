"""The pages about one trajectory: its turns, its tokens, two of them side by side, and exact bytes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from agentrl.config.stored import from_row, model_folder
from agentrl.errors import UsageError
from agentrl.store.evidence import last_training
from agentrl.store.reader import Reader
from agentrl.store.retention import removed_by_retention
from agentrl.types import Segment, StoredTrajectory
from agentrl.view.asking import Asked
from agentrl.view.pages import NotFound, Page
from agentrl.view.timeline import life, turn_spans
from agentrl.view.tokens import PAGE, sums, tokenizer_of, tokens
from agentrl.view.trajectory_json import trajectory_record
from agentrl.view.turns import exact_bytes, turns

_TURNS = "select * from segment_debug where trajectory = {id}::uuid order by seg limit 1000"
_NEIGHBOURS = """
  select (select id from agentrl.trajectory where run = t.run and id < t.id and root is null order by id desc limit 1),
         (select id from agentrl.trajectory where run = t.run and id > t.id and root is null order by id limit 1)
  from agentrl.trajectory t where t.id = %s
"""


def trajectory(asked: Asked, text: str) -> Page:
    """Turn by turn, with its verdicts, its moves and its neighbours in the run."""
    stored = find(asked.reader, text)
    row = _line(asked, stored)
    verdicts = asked.rows("select * from reward where trajectory = {id}::uuid order by id desc limit 50", 50, id=str(stored.id))
    moves = asked.rows("select * from event where trajectory = {id}::uuid order by id limit 500", 500, id=str(stored.id))
    asked.mention(_TURNS, id=str(stored.id))
    data = {
        "trajectory": trajectory_record(stored, moves, tokens=False), "line": row, "verdicts": verdicts,
    }  # fmt: skip
    extra = {
        "stored": stored, "turns": turns(stored), "spans": turn_spans(stored), "life": life(moves), "moves": moves,
        "neighbours": _neighbours(asked.reader, row), "sums": sums(stored, last_training(asked.reader, stored.id)),
    }  # fmt: skip
    return Page("trajectory.html.jinja", f"trajectory {stored.id}", data, extra)


def token_page(asked: Asked, text: str, start: int) -> Page:
    """Token by token from position ``start`` on."""
    stored = find(asked.reader, text)
    training = last_training(asked.reader, stored.id)
    row = _line(asked, stored)
    shown = tokens(stored, training, _tokenizer(asked.reader, row["run_name"]), start)
    asked.mention(_TURNS, id=str(stored.id))
    data = {
        "trajectory": stored.id, "from": start, "tokens": shown, "sums": sums(stored, training),
        "trained_by": None if training is None else {"run": training.run, "step": training.step},
    }  # fmt: skip
    extra = {
        "stored": stored,
        "line": row,
        "page_size": PAGE,
        "start": start,
        "has_text": any(token.text is not None for token in shown),
    }
    return Page("tokens.html.jinja", f"tokens of {stored.id}", data, extra)


def comparison(asked: Asked, first: str, second: str) -> Page:
    """Two trajectories side by side, turn by turn."""
    both = [find(asked.reader, text) for text in (first, second)]
    lines = [_line(asked, stored) for stored in both]
    sides = [turns(stored) for stored in both]
    longest = max(map(len, sides))
    pairs = [[side[i] if i < len(side) else None for side in sides] for i in range(longest)]
    data = {"trajectories": [trajectory_record(stored, [], tokens=False) for stored in both], "lines": lines}
    return Page("comparison.html.jinja", "two trajectories", data, {"both": both, "pairs": pairs})


def part(reader: Reader, text: str, index: int, name: str) -> bytes:
    """The exact bytes of a part of a turn. `NotFound` without it."""
    stored = find(reader, text)
    segment: Segment | None = next((s for s in stored.segments if s.index == index), None)
    if segment is None:
        raise NotFound(f"Trajectory {stored.id} has no segment {index}.")
    try:
        return exact_bytes(segment, name)
    except KeyError:
        raise NotFound(f"Segment {index} of trajectory {stored.id} has no part {name!r}.") from None


def find(reader: Reader, text: str) -> StoredTrajectory:
    """The trajectory of an address. `NotFound` says whether it was removed or never there."""
    try:
        identity = UUID(text)
    except ValueError:
        raise NotFound(f"'{text}' is not a trajectory id (a UUID such as 0192f0c1-...).") from None
    stored = reader.trajectory(identity)
    if stored is None:
        raise NotFound(removed_by_retention(reader, identity) or f"There is no trajectory {identity} in this store.")
    return stored


def _line(asked: Asked, stored: StoredTrajectory) -> dict[str, Any]:
    """Its line in the list; of a sub-agent that of the episode it is a part of."""
    found = asked.rows(
        """
        select v.* from trajectory t join v_trajectories v on v.run = t.run and v.trajectory = coalesce(t.root, t.id)
        where t.id = {id}::uuid limit 1
        """,
        1,
        id=str(stored.id),
    )
    if not found:
        raise NotFound(f"Trajectory {stored.id} was removed while it was being read.")
    return found[0]


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
