"""The modules of `sandboxes.agent` as one program text, for ``python3 -u -I -c TEXT``.

No file has to be delivered: the text works in read-only images, over remote daemons and on any Python from 3.9 on. The agent
compiles it once and hands code, not text, to the interpreters that it starts (`sandboxes.agent.program`).
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

_PROGRAM = """
import marshal
SOURCES = {sources!r}
LOADER = {loader!r}
CODES = {{
    name: marshal.dumps(compile(text, name.replace(".", "/") + ".py", "exec", dont_inherit=True))
    for name, text in SOURCES.items()
}}
exec(LOADER)
"""
_LOADER = """
import marshal, sys
from importlib.machinery import ModuleSpec
class Bundle:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in CODES:
            return ModuleSpec(name, Bundle, is_package=name in ("sandboxes", "sandboxes.agent"))
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        exec(marshal.loads(CODES[module.__name__]), module.__dict__)
sys.meta_path.insert(0, Bundle)
from sandboxes.agent.entry import enter
enter(CODES, LOADER)
"""


@cache
def program() -> str:
    """The program text."""
    sources = {"sandboxes": ""}
    for file in resources.files("sandboxes.agent").iterdir():
        if file.name.endswith(".py"):
            name = "sandboxes.agent" if file.name == "__init__.py" else f"sandboxes.agent.{file.name[:-3]}"
            sources[name] = file.read_text()
    return _PROGRAM.format(sources=dict(sorted(sources.items())), loader=_LOADER)


@cache
def digest() -> str:
    """Identity of the program, part of what a sandbox is made from."""
    return hashlib.sha256(program().encode()).hexdigest()
