"""The pages hang together: every link leads somewhere, and the table of contents leads to every page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from agentrl.cli.main import app
from agentrl.config.load import known_keys

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("environments/*/*.md")])
CONTENTS = ROOT / "docs" / "README.md"
COMMAND: Any = typer.main.get_command(app)


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


def code(page: Path) -> list[str]:
    """Code blocks and spans."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) + re.findall(r"^    (\S.*)$", text, re.M)
    return blocks + re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_named__exist(page: Path) -> None:
    keys = set(known_keys())
    sections = {key.rpartition(".")[0] for key in keys} - {""}
    dotted = {name for text in code(page) for name in re.findall(r"(?<![\w./-])([a-z_]+(?:\.[a-z_0-9]+)+)(?=$|[= ,)])", text)}
    files = {name for name in dotted if name.endswith(".json")}
    assert {name for name in dotted - keys - sections - files if name.split(".")[0] in sections} == set()


def options_of(words: list[str]) -> set[str]:
    """Those of the command that ``words`` begin with, which are taken off; `KeyError` names one that does not exist."""
    command: Any = COMMAND
    while words and hasattr(command, "commands") and words[0].islower() and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    return {opt for parameter in command.params for opt in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_named__exist_with_these_options(page: Path) -> None:
    for text in code(page):
        for line in re.findall(r"(?<![\w-])(?<!database )agentrl ([^`#|;()\n]+)", text.replace("\\\n", " ")):
            words = line.split()
            known = options_of(words)
            assert {word.partition("=")[0] for word in words if word.startswith("--")} - known == set(), line
