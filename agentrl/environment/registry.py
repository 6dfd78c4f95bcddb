"""Names of environments: an installed one (``code_agent``), ``module:Class``, ``path/to/file.py:Class``, or ``./folder``."""

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
from agentrl.environment.code_places import raised_at
from agentrl.environment.declaration import check_declaration
from agentrl.environment.folders import offered_by, the_only
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
    check_declaration(environment)
    check_sub_agents(environment)
    for agent in environment.all_agents().values():
        check_declaration(agent)
    return environment


def resolve(name: str) -> type[Environment]:
    """The class behind a name; `UsageError` names what is missing and the nearest match."""
    target, _, attribute = name.rpartition(":")
    if target:
        module = _module_of_file(Path(target), name) if target.endswith(".py") else _imported(target, name)
        return _environment_in(module, attribute, name)
    if point := _points().get(name):
        return _environment_in(_imported(point.module, name), point.attr, name)
    if "/" in name or name.endswith(".py"):
        return _only_one_at(Path(name).expanduser().resolve(), name)
    here = f"; the folder of that name is ./{name}, or install it: pip install -e ./{name}" if Path(name).is_dir() else ""
    raise UsageError(
        f"no environment {name!r}{here or _nearest(name, _points())}; installed: {', '.join(installed()) or 'none'}. "
        "Others are named module:Class, path/to/file.py:Class or ./folder"
    )


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
        # A syntax error says its place itself.
        place = "" if isinstance(error, SyntaxError) else raised_at(error)
        raise UsageError(f"environment {name!r}: {what}: {type(error).__name__}: {error}{place}") from error


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


def _only_one_at(path: Path, name: str) -> type[Environment]:
    """The environment of a file that has one, of a package's folder, or of a folder whose pyproject.toml offers one."""
    if path.is_dir() and (path / "pyproject.toml").is_file():
        target = the_only(offered_by(path, GROUP, name), f"{path / 'pyproject.toml'} offers", name)
        for folder in (path, path / "src"):
            if folder.is_dir() and str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
        module, _, attribute = target.partition(":")
        return _environment_in(_imported(module, name), attribute, name)
    file = path / "__init__.py" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise UsageError(f"environment {name!r}: {path} has neither a pyproject.toml nor an __init__.py")
    module_of_file = _module_of_file(file, name)
    there = [key for key in _offered(module_of_file) if vars(module_of_file)[key].__module__ == module_of_file.__name__]
    return _environment_in(module_of_file, the_only(there, f"{file} defines", name), name)


def _offered(module: ModuleType) -> list[str]:
    return [
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    ]


def _environment_in(module: ModuleType, attribute: str, name: str) -> type[Environment]:
    found = getattr(module, attribute, None)
    if isinstance(found, type) and issubclass(found, Environment):
        return found
    offered = _offered(module)
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
