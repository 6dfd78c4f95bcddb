"""A new environment as a package that works: ``agentrl env init NAME``."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

import jinja2

from agentrl.errors import UsageError

_TEMPLATES = Path(__file__).parent / "template"
_TAKEN = {*sys.stdlib_module_names, "agentrl", "environments", "sandboxes"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")


def write_package(name: str, parent: Path) -> list[Path]:
    """Write the package ``parent/name`` and return its files. `UsageError` for a name that can't be one, or that is taken."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in _TAKEN:
        raise UsageError(
            f"{name!r:.80} can't name an environment: use lower-case letters, digits and '_', a letter first, and no name of a "
            "module of Python or of this library."
        )
    folder = parent / name
    if folder.exists():
        raise UsageError(f"{folder} exists already; choose another name or remove it.")
    values = {"name": name, "class_name": "".join(part.capitalize() for part in name.split("_"))}
    files = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{name}/__init__.py": "environment.py",
        f"tests/test_{name}.py": "test_environment.py",
    }
    written = []
    try:
        for target, template in files.items():
            text = (_TEMPLATES / f"{template}.jinja").read_text()
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(jinja2.Template(text, keep_trailing_newline=True, undefined=jinja2.StrictUndefined).render(values))
            written.append(path)
    except OSError as error:
        raise UsageError(f"{folder} can't be written: {error}.") from None
    return written
