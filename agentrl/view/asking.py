"""What a page asks of the store, kept so that people can copy it."""

from __future__ import annotations

from textwrap import dedent
from typing import Any, LiteralString

from psycopg.sql import SQL, Literal

from agentrl.store.reader import Reader


class Asked:
    """The questions of one page. ``statements``: each as it was run, with its values in it."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.statements: list[str] = []

    def rows(self, statement: LiteralString, limit: int, **values: Any) -> list[dict[str, Any]]:
        """Rows of a statement with ``{name}`` where a value goes, at most ``limit``."""
        return self.text(filled(dedent(statement).strip(), **values), limit)

    def mention(self, statement: LiteralString, **values: Any) -> None:
        """A statement that gives what the page shows in a form for people, where the page reads it in another one."""
        self.statements.append(filled(statement, **values))

    def text(self, statement: str, limit: int) -> list[dict[str, Any]]:
        """Rows of a whole statement."""
        self.statements.append(statement)
        return self.reader.ask(statement, limit).result.records()


def filled(statement: LiteralString, **values: Any) -> str:
    """The statement with its values as literals."""
    return SQL(statement).format(**{name: Literal(value) for name, value in values.items()}).as_string(None)
