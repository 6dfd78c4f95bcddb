"""The benchmark's script works; how fast the store is, no test says."""

from __future__ import annotations

import pytest
from store_bench import Server

from benchmarks.store.__main__ import main


def test_quick_sizes__prints_the_table(embedded_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sizes", "pages", "--quick", "--url", embedded_server.url]) == 0
    said = capsys.readouterr().out
    assert "| measurement | value |" in said
    assert "JSONB of the same deltas" in said
    assert "| list, newest first, 1,024 stored |" in said
