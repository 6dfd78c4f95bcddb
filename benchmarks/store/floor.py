"""The floor: a raw binary COPY of a segment's bytes into a table without keys, checks or fences."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import psycopg

from agentrl.types import Segment

_TABLE = "create table public.floor (ids bytea, logprobs bytea, observation_text text, action_text text)"
_LZ4 = "alter table public.floor " + ", ".join(
    f"alter {column} set compression lz4" for column in ("ids", "logprobs", "observation_text", "action_text")
)
_COPY = "copy public.floor from stdin (format binary)"


def create_floor(url: str) -> None:
    """The table, compressed as the store's is: lz4 where the server has it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLE)
        with suppress(psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidParameterValue):
            connection.execute(_LZ4)


def copy_segments(connection: psycopg.Connection, segments: Sequence[Segment]) -> None:
    """One row a segment, all in one commit. The connection is in autocommit mode."""
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(["bytea", "bytea", "text", "text"])
        for s in segments:
            ids = s.observation.tobytes() + s.action.tobytes()
            copy.write_row((ids, s.logprobs.tobytes(), s.observation_text, s.action_text))
