"""A full-text index over documents: SQLite's FTS5 in memory, ranked by BM25, titles counting more than texts.

Queries are words, never FTS5's own syntax: whatever the policy writes is quoted, so it can't fail and can't reach further.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.errors import UsageError

TITLE_WEIGHT = 10.0
MAX_WORDS = 32
"""Of a query; more are dropped."""
_WORD = re.compile(r"\w+")
_INSERT = "INSERT INTO document(title, text) VALUES (?, ?)"
_SEARCH = (
    "SELECT rowid, title, text, snippet(document, 1, '', '', ' ... ', ?) FROM document WHERE document MATCH ? "
    f"ORDER BY bm25(document, {TITLE_WEIGHT}, 1.0), rowid LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that matches: its number, title, whole text, and the part of it that matches best."""

    number: int
    title: str
    text: str
    snippet: str


class Index:
    """Built once, then only read. May be used from several threads."""

    def __init__(self, documents: Iterable[tuple[str, str]]) -> None:
        """``documents``: title and text of each; they are numbered from 1."""
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._database.execute("CREATE VIRTUAL TABLE document USING fts5(title, text, tokenize = 'porter unicode61')")
        except sqlite3.OperationalError as error:
            raise UsageError(f"This Python's SQLite has no full-text search (FTS5): {error}.") from None
        self._database.executemany(_INSERT, documents)
        self._database.commit()

    def search(self, query: str, limit: int, snippet_words: int = 24) -> list[Hit]:
        """The best ``limit`` documents that hold any of the words, best first; those with all of them come before others."""
        words = list(dict.fromkeys(_WORD.findall(query)))[:MAX_WORDS]
        if not words:
            return []
        quoted = [f'"{word}"' for word in words]
        hits = self._run(" AND ".join(quoted), limit, snippet_words)
        if len(hits) < limit and len(words) > 1:
            known = {hit.number for hit in hits}
            hits += [hit for hit in self._run(" OR ".join(quoted), limit, snippet_words) if hit.number not in known]
        return hits[:limit]

    def document(self, number: int) -> tuple[str, str] | None:
        """Title and text of a document, None when there is none of that number."""
        with self._lock:
            row = self._database.execute("SELECT title, text FROM document WHERE rowid = ?", (number,)).fetchone()
        return None if row is None else (row[0], row[1])

    def __len__(self) -> int:
        with self._lock:
            return int(self._database.execute("SELECT count(*) FROM document").fetchone()[0])

    def _run(self, query: str, limit: int, snippet_words: int) -> list[Hit]:
        with self._lock:
            return [Hit(*row) for row in self._database.execute(_SEARCH, (snippet_words, query, limit))]
