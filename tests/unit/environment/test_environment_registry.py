"""Names of environments, and what a wrong name says."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.environment import registry
from agentrl.environment.registry import installed, load, resolve, source_hash
from agentrl.errors import UsageError
from environments.code_agent import CodeAgent

SOURCE = """\
from agentrl.environment import Environment

LIMIT = 3

class Puzzle(Environment):
    version = "4"

class NeedsPath(Environment):
    def __init__(self, path):
        self.path = path
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "puzzles.py"
    path.write_text(SOURCE)
    return path


def test_installed_name__found_by_entry_point() -> None:
    assert installed()["code_agent"] == "environments.code_agent:CodeAgent"
    assert isinstance(load("code_agent"), CodeAgent)


def test_module_and_class__found() -> None:
    assert resolve("environments.code_agent:CodeAgent") is CodeAgent


def test_file_and_class__found_and_loaded_once(file: Path) -> None:
    cls = resolve(f"{file}:Puzzle")
    assert cls.version == "4"
    assert resolve(f"{file}:Puzzle") is cls


def test_files_of_the_same_name__are_two_modules(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "puzzles.py"
    other.parent.mkdir()
    other.write_text(SOURCE.replace('"4"', '"5"'))
    assert (resolve(f"{file}:Puzzle").version, resolve(f"{other}:Puzzle").version) == ("4", "5")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("code_agnet", ["no environment 'code_agnet'", "did you mean 'code_agent'?", "path/to/file.py:Class"]),
        ("zzz", ["no environment 'zzz'", "installed: ", "code_agent"]),
        ("", ["no environment ''"]),
        ("environments.code_agent:CodeAgnt", ["did you mean 'CodeAgent'?"]),
        ("environments.code_agent:Task", ["'Task' in", "not a subclass"]),
        ("environments.code_agnt:CodeAgent", ["'environments.code_agnt' can't be imported", "path/to/file.py:Class"]),
        ("{folder}/puzzle.py:Puzzle", ["no file", "did you mean 'puzzles.py'?"]),
        ("{folder}/none/puzzles.py:Puzzle", ["no file"]),
        ("{folder}/puzzles.py:Puzle", ["did you mean 'Puzzle'?", "environments there: Puzzle, NeedsPath"]),
        ("{folder}/puzzles.py:LIMIT", ["'LIMIT' in", "not a subclass"]),
    ],
)
def test_wrong_name__says_what_is_missing_and_what_is_near(name: str, parts: list[str], file: Path) -> None:
    with pytest.raises(UsageError) as raised:
        resolve(name.format(folder=file.parent))
    for part in parts:
        assert part in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("source", ["1/0", "def", "import no_such_module_here"])
def test_file_that_fails_to_load__is_named_with_the_cause(source: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    for _ in range(2):  # a half-loaded module must not be found the second time
        with pytest.raises(UsageError, match=r"broken\.py can't be loaded: \w+Error"):
            resolve(f"{path}:Puzzle")


def test_class_that_needs_arguments__is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match=r"NeedsPath\(\) can't be made: TypeError"):
        load(f"{file}:NeedsPath")


def test_source_hash__follows_the_source(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "puzzles.py"
    other.parent.mkdir()
    other.write_text(SOURCE + "\n# a change\n")
    first = source_hash(load(f"{file}:Puzzle"))
    assert first == source_hash(load(f"{file}:Puzzle"))
    assert first != source_hash(load(f"{other}:Puzzle"))


def test_source_hash_of_package__counts_every_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "puzzle_package"
    package.mkdir()
    (package / "__init__.py").write_text(SOURCE)
    (package / "data.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    puzzle = load("puzzle_package:Puzzle")
    before = source_hash(puzzle)
    (package / "data.py").write_text("X = 2\n")
    assert source_hash(puzzle) != before
    assert registry.GROUP == "agentrl.environments"
