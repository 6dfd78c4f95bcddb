"""Forgetting what retention left behind, so that a store that trains forever does not grow forever.

Retention removes trajectories and keeps the whole ledger. After a time nobody asks any more how a removed trajectory moved and
what it was given: then its moves and verdicts go, with groups and loads of weights as old. Invariants:

- What still exists keeps all its rows, and so do evaluations: their scores are read from verdicts.
- Conservation holds: consumed, dropped, evaluated and imported keep a row for each trajectory.
- A dry run does the same and takes it back, so its numbers are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

from agentrl.store.postgres_connection import PostgresConnection


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Rows that a call of `vacuum` deleted from one run."""

    moves: int
    verdicts: int
    groups: int
    loads: int

    @property
    def total(self) -> int:
        return sum(getattr(self, f.name) for f in fields(self))


class _TakeBack(Exception):
    """Ends the transaction of a dry run."""


def vacuum(store: PostgresConnection, run: int, older_than: timedelta, dry_run: bool = False) -> Forgotten:
    """Delete, in one transaction, what belonged to trajectories that retention removed more than ``older_than`` ago."""
    forgotten: Forgotten | None = None
    try:
        with store.transaction() as connection:
            row = connection.execute(
                "select moves, verdicts, groups, loads from agentrl.vacuum_v1(%s, now() - %s)", (run, older_than)
            ).fetchone()
            assert row is not None
            forgotten = Forgotten(*row)
            if dry_run:
                raise _TakeBack
    except _TakeBack:
        pass
    assert forgotten is not None
    return forgotten
