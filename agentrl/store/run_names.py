"""What may name a run: names are part of paths, of SQL that people type and of command lines."""

from __future__ import annotations

import re

from agentrl.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run_name(name: str) -> None:
    """`UsageError` for a name that a new run can't have."""
    if not _NAME.fullmatch(name) or name == "latest":
        raise UsageError(
            f"{name!r:.120} can't name a run: use up to 100 letters, digits, '.', '_' and '-', a letter or digit first; "
            "'latest' means the newest run."
        )
