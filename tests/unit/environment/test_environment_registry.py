"""Names of environments, and what a wrong name says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.environment import registry
from agentrl.environment.registry import installed, load, resolve, source_hash
from agentrl.environment.scaffold import write_package
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
        ("{folder}/puzzles.py", ["puzzles.py defines Puzzle, NeedsPath: name the class after a colon"]),
        ("{folder}/puzzle.py", ["no file", "did you mean 'puzzles.py'?"]),
        ("{folder}", ["has neither a pyproject.toml nor an __init__.py"]),
    ],
)
def test_wrong_name__says_what_is_missing_and_what_is_near(name: str, parts: list[str], file: Path) -> None:
    with pytest.raises(UsageError) as raised:
        resolve(name.format(folder=file.parent))
    for part in parts:
        assert part in str(raised.value)
    assert raised.value.exit_code == 2


def test_folder_of_a_package__its_only_class_is_found(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("VERSION = '7'")
    init = tmp_path / "__init__.py"
    init.write_text("from .parts import VERSION\n" + SOURCE.split("class NeedsPath")[0].replace('"4"', "VERSION"))
    assert resolve(str(tmp_path)).version == resolve(str(init)).version == "7"
    init.write_text("from agentrl.environment import Environment\n")
    (tmp_path / "other").mkdir()
    other = init.rename(tmp_path / "other" / "__init__.py")
    with pytest.raises(UsageError, match=r"__init__\.py defines no environment: name the class after a colon"):
        resolve(str(other))


def test_folder_that_is_not_installed__its_entry_point_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_package("never_installed", tmp_path)
    folder = tmp_path / "never_installed"
    assert resolve(str(folder)).name == "never_installed"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"the folder of that name is \./never_installed, or install it: pip install -e"):
        resolve("never_installed")
    project = folder / "pyproject.toml"
    for text, said in ((project.read_text().split("[project.entry-points")[0], "offers none"), ("[", "can't be read")):
        project.write_text(text)
        with pytest.raises(UsageError, match=said):
            resolve("./never_installed")


@pytest.mark.parametrize("source", ["1/0", "def", "import no_such_module_here"])
def test_file_that_fails_to_load__is_named_with_the_cause(source: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    for _ in range(2):  # a half-loaded module must not be found the second time
        with pytest.raises(UsageError, match=r"broken\.py can't be loaded: \w+Error"):
            resolve(f"{path}:Puzzle")


SHOP = """\
from pathlib import Path
from typing import Literal

from agentrl.environment import Environment

class Shop(Environment):
    def __init__(self, data: Path | None = None, *, size: Literal["small", "large"] = "small", share: float = 0.5):
        if share > 1:
            raise ValueError("share is a fraction")
        self.data, self.size, self.share = data, size, share
"""


@pytest.fixture
def shop(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SHOP)
    return f"{tmp_path / 'shop.py'}:Shop"


def test_options__are_the_typed_parameters_of_the_constructor(
    shop: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = load(shop, {"data": "rows.jsonl", "share": "0.25"})
    assert vars(environment).items() >= {"data": tmp_path / "rows.jsonl", "size": "small", "share": 0.25}.items()
    assert environment.options == {"data": str(tmp_path / "rows.jsonl"), "share": 0.25}
    assert load(shop).options == {}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dta": "x"}, r"has no option 'dta' \(did you mean 'data'\?\); options: data, size, share"),
        ({"size": "huge"}, "environment_options: size: Input should be 'small' or 'large'"),
        ({"share": [1]}, "environment_options: share: Input should be a valid number"),
        ({"share": 2.0}, "can't be made: ValueError: share is a fraction"),
    ],
)
def test_option_that_does_not_fit__refused(shop: str, options: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        load(shop, options)


def test_option_of_an_environment_without_any__refused(file: Path) -> None:
    with pytest.raises(UsageError, match="has no option 'a'; options: none"):
        load(f"{file}:Puzzle", {"a": 1})


def test_source_hash__changes_with_options_and_with_the_file_they_name(shop: str, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("{}")
    hashes = [source_hash(load(shop)), source_hash(load(shop, {"share": 0.1})), source_hash(load(shop, {"data": str(data)}))]
    data.write_text("{ }")
    hashes.append(source_hash(load(shop, {"data": str(data)})))
    assert len(set(hashes)) == 4


def test_class_that_needs_arguments__is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match=r"NeedsPath' needs environment_options.path=\.\.\."):
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
