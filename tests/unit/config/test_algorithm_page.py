"""The page on algorithms names every preset with its source and every choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.algorithm import option_choices
from agentrl.config.presets import PRESETS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "algorithms.md").read_text()
PRESET_ROWS = PAGE.split("## Presets")[1].split("## ")[0].splitlines()


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_page__has_the_presets_source(name: str) -> None:
    (row,) = [line for line in PRESET_ROWS if line.startswith(f"| `{name}`")]
    assert row.endswith(f"| {PRESETS[name].source} |")


@pytest.mark.parametrize("setting", ["loss", "advantage", "aggregation", "kl.controller"])
def test_page__names_every_choice(setting: str) -> None:
    assert [choice for choice in option_choices()[setting] if f"`{choice}`" not in PAGE] == []
