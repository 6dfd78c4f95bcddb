"""The pages hang together: every link leads somewhere, and the table of contents leads to every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("environments/*/*.md")])
CONTENTS = ROOT / "docs" / "README.md"


def prose(page: Path) -> str:
    """Without code."""
    return re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def links(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", prose(page))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links__lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in links(page):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_contents__lead_to_every_page() -> None:
    listed = {(CONTENTS.parent / target).resolve() for target, _ in links(CONTENTS)}
    assert set(CONTENTS.parent.glob("**/*.md")) - {CONTENTS} == listed


def test_readme__fits_a_screen_and_leads_to_the_contents() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text(encoding="utf-8").splitlines()) < 70
    assert ("docs/README.md", "") in links(readme)
