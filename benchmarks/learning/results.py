"""The results file: a JSON object a line, one for each finished run, known by the arguments that it was made with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Results:
    """Appends to ``path`` and knows what is there. `ValueError` names a line that is none of ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                self._rows[tuple(row["arguments"])] = row
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{path}, line {number} is not a result of this benchmark: {line!r:.100}") from None

    def find(self, arguments: Sequence[str]) -> dict[str, Any] | None:
        """The row of the run that was made with ``arguments``."""
        return self._rows.get(tuple(arguments))

    def add(self, arguments: Sequence[str], row: dict[str, Any]) -> None:
        self._rows[tuple(arguments)] = row = {"arguments": list(arguments), **row}
        with self.path.open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
