"""What a page asks of the store, kept so that people can copy it."""

from __future__ import annotations

from textwrap import dedent
from typing import Any, LiteralString

from psycopg.sql import SQL, Composable, Literal

from agentrl.errors import UsageError
from agentrl.monitor.terminal import visible
from agentrl.store.codec import clean_text
from agentrl.store.reader import Reader


class Asked:
    """The questions of one page. ``statements``: each as it was run, with its values in it."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.statements: list[str] = []

    def rows(self, statement: LiteralString, limit: int, **values: Any) -> list[dict[str, Any]]:
        """Rows of a statement with ``{name}`` where a value goes, ``{limit}`` among them."""
        return self.text(filled(dedent(statement).strip(), limit=limit, **values), limit)

    def mention(self, statement: LiteralString, **values: Any) -> None:
        """A statement that gives what the page shows in a form for people, where the page reads it in another one."""
        self.statements.append(filled(dedent(statement).strip(), **values))

    def text(self, statement: str, limit: int) -> list[dict[str, Any]]:
        """Rows of a whole statement."""
        self.statements.append(statement)
        return self.reader.ask(statement, limit).result.records()


def filled(statement: LiteralString, **values: Any) -> str:
    """The statement with its values as literals. `UsageError` for a text that no column can hold."""
    return SQL(statement).format(**{name: literal(value) for name, value in values.items()}).as_string(None)


def literal(value: Any) -> Composable:
    """A value as it stands in SQL, in characters that people see: shown and copied it is the same value."""
    if not isinstance(value, str):
        return Literal(value)
    if clean_text(value) != value:
        raise UsageError(f"{value!r:.80} holds characters that no stored text can have")
    if visible(value) == value:
        return Literal(value)
    escaped = "".join(c if visible(c) == c and c not in "\\'" else f"\\U{ord(c):08X}" for c in value)
    return SQL(f"E'{escaped}'")  # made here, of characters that end no literal
