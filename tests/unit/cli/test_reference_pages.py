"""The pages of settings and commands say what the code says: a new option is a visible change."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "reference_pages.py"


def test_reference_pages__are_what_the_code_says() -> None:
    spec = importlib.util.spec_from_file_location("reference_pages", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for file, page in script.PAGES.items():
        assert page() == (script.FOLDER / file).read_text(encoding="utf-8"), "run: python scripts/reference_pages.py"
