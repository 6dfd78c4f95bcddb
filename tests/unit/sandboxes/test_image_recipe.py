"""An image is known by its recipe."""

from __future__ import annotations

from pathlib import Path

from sandboxes.images import RECIPES, recipe_hash


def test_recipe_hash__changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x")
    first = recipe_hash(tmp_path)
    assert first == recipe_hash(tmp_path)
    (tmp_path / "extra").write_text("")
    second = recipe_hash(tmp_path)
    (tmp_path / "extra").write_text("y")
    assert len({first, second, recipe_hash(tmp_path)}) == 3


def test_base_recipe__takes_any_base_and_installs_nothing() -> None:
    recipe = (RECIPES / "base/Dockerfile").read_text()
    assert "ARG BASE=" in recipe
    assert "apt" not in recipe
