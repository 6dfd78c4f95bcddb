"""Names of environments: an installed one (``code_agent``), ``module:Class``, or ``path/to/file.py:Class``."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from agentrl.environment.base import Environment
from agentrl.environment.options import checked_options
from agentrl.environment.sub_agents import check_sub_agents
from agentrl.errors import UsageError
from agentrl.types import Json

GROUP = "agentrl.environments"
"""Entry point group under which packages offer environments."""


def installed() -> dict[str, str]:
    """Name and ``module:Class`` of every environment that an installed distribution offers, sorted by name."""
    return {name: point.value for name, point in sorted(_points().items())}


def load(name: str, options: Mapping[str, Json] | None = None) -> Environment:
    """A new object of the named environment with these options; `UsageError` names what is missing and the nearest match."""
    cls = resolve(name)
    arguments, plain = checked_options(cls, name, options or {})
    with _user_code(name, f"{cls.__qualname__}({', '.join(arguments)}) can't be made"):
        environment = cls(**arguments)
    environment.options = plain
    check_sub_agents(environment)
    return environment


def resolve(name: str) -> type[Environment]:
    """The class behind a name; `UsageError` names what is missing and the nearest match."""
    target, _, attribute = name.rpartition(":")
    if not target:
        point = _points().get(name)
        if point is None:
            raise UsageError(
                f"no environment {name!r}{_nearest(name, _points())}; installed: {', '.join(installed()) or 'none'}. "
                "Others are named module:Class or path/to/file.py:Class"
            )
        return _environment_in(_imported(point.module, name), point.attr, name)
    module = _module_of_file(Path(target), name) if target.endswith(".py") else _imported(target, name)
    return _environment_in(module, attribute, name)


def source_hash(environment: Environment) -> str:
    """SHA-256 over options and the sources of the environment's class and its bases outside the library, for cache keys.

    A class defined in a package counts with every Python file of that package, an option that names a file with its content.
    """
    digest = hashlib.sha256(f"{environment.name}\0{environment.version}\0".encode())
    for key, value in sorted(environment.options.items()):
        digest.update(f"{key}={value!r}\0".encode())
        if isinstance(value, str) and Path(value).is_file():
            with open(value, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    for cls in type(environment).__mro__:
        if cls is object or cls is Environment:
            continue
        for path in _sources(cls):
            digest.update(f"{cls.__module__}:{cls.__qualname__}\0{path.name}\0".encode() + path.read_bytes() + b"\0")
    for name, child in sorted(environment.sub_agents.items()):
        digest.update(f"{name}\0{source_hash(child)}\0".encode())
    return digest.hexdigest()


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


@contextmanager
def _user_code(name: str, what: str) -> Iterator[None]:
    """The boundary to the top level of a user's module and to a constructor, which may raise anything."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"environment {name!r}: {what}: {type(error).__name__}: {error}") from error


def _imported(module: str, name: str) -> ModuleType:
    with _user_code(name, f"module {module!r} can't be imported (for a file, write path/to/file.py:Class)"):
        return importlib.import_module(module)


def _module_of_file(path: Path, name: str) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        near = _nearest(path.name, (other.name for other in path.parent.glob("*.py"))) if path.parent.is_dir() else ""
        raise UsageError(f"environment {name!r}: no file {path}{near}")
    # The path is in the module's name, so that two files of the same name are two modules.
    module_name = f"agentrl_environment_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        with _user_code(name, f"{path} can't be loaded"):
            spec.loader.exec_module(module)
    except UsageError:
        del sys.modules[module_name]
        raise
    return module


def _environment_in(module: ModuleType, attribute: str, name: str) -> type[Environment]:
    found = getattr(module, attribute, None)
    if isinstance(found, type) and issubclass(found, Environment):
        return found
    offered = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    ]
    where = module.__file__ or module.__name__
    if found is None:
        raise UsageError(
            f"environment {name!r}: no {attribute!r} in {where}{_nearest(attribute, offered)}; "
            f"environments there: {', '.join(offered) or 'none'}"
        )
    raise UsageError(f"environment {name!r}: {attribute!r} in {where} is not a subclass of agentrl.environment.Environment")


def _nearest(word: str, candidates: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _sources(cls: type) -> list[Path]:
    module = sys.modules[cls.__module__]
    try:
        source = inspect.getsourcefile(cls)
    except TypeError:
        source = None
    if source is None:
        raise UsageError(f"{cls.__module__}:{cls.__qualname__} has no source file: define environments in a file")
    path = Path(source)
    return sorted(path.parent.rglob("*.py")) if hasattr(module, "__path__") else [path]
