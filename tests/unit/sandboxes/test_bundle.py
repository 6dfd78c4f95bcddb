"""What is delivered into sandboxes: one text, small enough for an argument, for old Pythons and the standard library alone."""

from __future__ import annotations

import ast
import sys
from importlib import resources

from sandboxes import bundle

MODULES = [file for file in resources.files("sandboxes.agent").iterdir() if file.name.endswith(".py")]


def test_program__fits_one_argument() -> None:
    assert len(bundle.program().encode()) < 128 * 1024 - 1
    compile(bundle.program(), "program", "exec")


def test_modules__parse_on_python_3_9() -> None:
    for file in MODULES:
        ast.parse(file.read_text(), file.name, feature_version=(3, 9))


def test_modules__import_the_standard_library_and_each_other() -> None:
    assert MODULES
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("sandboxes.agent"), (file.name, name)
