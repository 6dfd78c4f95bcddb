"""The modules of `sandboxes.agent` as one program text, for ``python3 -u -I -c TEXT``.

No file has to be delivered: the text works in read-only images, over remote daemons and on any Python from 3.9 on. Modules
are compiled when they are imported, so each role pays for what it uses.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

_LOADER = """
import sys
from importlib.machinery import ModuleSpec
SOURCES = {sources!r}
class Bundle:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in SOURCES:
            return ModuleSpec(name, Bundle, is_package=name in ("sandboxes", "sandboxes.agent"))
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        name = module.__name__
        exec(compile(SOURCES[name], name.replace(".", "/") + ".py", "exec"), module.__dict__)
sys.meta_path.insert(0, Bundle)
from sandboxes.agent.entry import enter
with open("/proc/self/cmdline", "rb") as file:
    arguments = file.read().decode().split("\\0")
enter(arguments[arguments.index("-c") + 1])
"""


@cache
def program() -> str:
    """The program text."""
    sources = {"sandboxes": ""}
    for file in resources.files("sandboxes.agent").iterdir():
        if file.name.endswith(".py"):
            name = "sandboxes.agent" if file.name == "__init__.py" else f"sandboxes.agent.{file.name[:-3]}"
            sources[name] = file.read_text()
    return _LOADER.replace("{sources!r}", repr(dict(sorted(sources.items()))))


@cache
def digest() -> str:
    """Identity of the program, part of what a sandbox is made from."""
    return hashlib.sha256(program().encode()).hexdigest()
