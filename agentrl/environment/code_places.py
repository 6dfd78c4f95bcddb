"""File and line of an author's own code, for messages about what it did."""

from __future__ import annotations

import itertools
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import agentrl
import sandboxes

_CALLER = Path(__file__).with_name("boundary.py")
_LIBRARY = tuple(Path(str(package.__file__)).parent for package in (agentrl, sandboxes))
_STANDARD = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages")


def raised_at(error: BaseException) -> str:
    """`` (path/to/file.py:12)``: the innermost line of the author's code on the way to the error; empty when there is none.

    The first file outside this library is the author's, and so is what lies in its folder or below.
    """
    return _innermost([(Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)])


def running_at(frame: FrameType | None) -> str:
    """The same for a call that has not returned: where the author's code stands that `invoke` called on this stack."""
    frames = [(Path(inner.f_code.co_filename), line) for inner, line in traceback.walk_stack(frame)]
    called = list(itertools.takewhile(lambda place: place[0] != _CALLER, frames))
    return _innermost(called[::-1]) if len(called) < len(frames) else ""


def _innermost(frames: list[tuple[Path, int]]) -> str:
    others = [(path, line) for path, line in frames if path.is_absolute() and not _is_library(path)]
    if not others:
        return ""
    folder = others[0][0].parent
    return _shown(*[(path, line) for path, line in others if path.is_relative_to(folder)][-1])


def defined_at(function: Callable[..., Any]) -> str:
    """`` (path/to/file.py:12)``: where a method begins; empty for one of this library."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or _is_library(Path(code.co_filename)):
        return ""
    return _shown(Path(code.co_filename), code.co_firstlineno)


def _is_library(path: Path) -> bool:
    if any(path.is_relative_to(folder) for folder in _LIBRARY):
        return True
    return path.is_relative_to(_STANDARD) and not any(part in _INSTALLED for part in path.parts)


def _shown(path: Path, line: int) -> str:
    here = Path.cwd()
    return f" ({path.relative_to(here) if path.is_relative_to(here) else path}:{line})"
