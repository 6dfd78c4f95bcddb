"""Reads task directories of two formats as they are: Harbor's, and the older one of Terminal-Bench.

Harbor: ``task.toml``, ``instruction.md``, ``environment/``, ``tests/test.sh``, ``solution/solve.sh``.
Terminal-Bench: ``task.yaml`` with the instruction, ``Dockerfile``, ``run-tests.sh``, ``tests/``, ``solution.sh``.

What can't be honoured is refused with its reason when the tasks are read, never ignored.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import UsageError
from environments.terminal_agent.places import Mapping
from environments.terminal_agent.task import Files, TerminalTask

IMAGE_PREFIX = "terminal-agent/"
"""``docker build -t terminal-agent/NAME`` makes the image of a task that brings a Dockerfile."""
MAX_FILES_MB = 32
_DEFAULT_WORKDIR = "/app"
_WORKDIR_LINE = re.compile(r"^\s*WORKDIR\s+(\S+)", re.IGNORECASE | re.MULTILINE)


def task_directories(folder: Path) -> list[Path]:
    """The task directories in ``folder``, which may be one itself, sorted by name."""
    if not folder.is_dir():
        raise UsageError(f"There is no folder of tasks {folder}.")
    candidates = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    found = [path for path in candidates if (path / "task.toml").is_file() or (path / "task.yaml").is_file()]
    if not found:
        raise UsageError(f"The folder {folder} holds no task: no directory in it has a task.toml or a task.yaml.")
    return found


def read_task(directory: Path) -> TerminalTask:
    """The task in ``directory``; `UsageError` says what is missing or can't be honoured here."""
    return _read_harbor(directory) if (directory / "task.toml").is_file() else _read_terminal_bench(directory)


def _read_harbor(directory: Path) -> TerminalTask:
    file = directory / "task.toml"
    config = _parsed(file, tomllib.loads)
    section: Callable[[str], dict[str, Any]] = lambda name: dict(config.get(name) or {})  # noqa: E731
    environment, verifier = section("environment"), section("verifier")
    _refuse(file, {
        "[[steps]]": config.get("steps"),
        "environment.os = windows": environment.get("os") == "windows",
        "environment.gpus": environment.get("gpus"),
        "environment.tpu": environment.get("tpu"),
        "environment.mcp_servers": environment.get("mcp_servers"),
        "environment.healthcheck": environment.get("healthcheck"),
        "environment/docker-compose.yaml": (directory / "environment" / "docker-compose.yaml").exists(),
        "[verifier.environment]": verifier.get("environment"),
        "[[verifier.collect]]": verifier.get("collect"),
        "agent.user": section("agent").get("user"),
        "verifier.user": verifier.get("user"),
    })  # fmt: skip
    dockerfile = directory / "environment" / "Dockerfile"
    image = environment.get("docker_image") or (f"{IMAGE_PREFIX}{directory.name.lower()}" if dockerfile.is_file() else None)
    workdir = _workdir(dockerfile)
    mapping = Mapping(workdir)
    return TerminalTask(
        instruction=mapping.text(_text(directory / "instruction.md")),
        tests=_files(directory / "tests", mapping, "test.sh"),
        test_script="test.sh",
        solution=_files(directory / "solution", mapping) if (directory / "solution" / "solve.sh").is_file() else {},
        start={} if image else _files(directory / "environment", mapping),
        image=image,
        image_workdir=workdir if image else None,
        environment=_plain(file, "environment.env", environment.get("env")),
        test_environment=_plain(file, "verifier.env", verifier.get("env")),
        test_timeout_s=float(verifier.get("timeout_sec", 600.0)),
    )


def _read_terminal_bench(directory: Path) -> TerminalTask:
    file = directory / "task.yaml"
    config = _parsed(file, yaml.safe_load)
    if not isinstance(config.get("instruction"), str):
        raise UsageError(f"{file} has no instruction.")
    compose = directory / "docker-compose.yaml"
    services = list((_parsed(compose, yaml.safe_load).get("services") or {}) if compose.is_file() else {})
    _refuse(file, {
        f"parser_name = {config.get('parser_name')}": config.get("parser_name", "pytest") != "pytest",
        "run_tests_in_same_shell": config.get("run_tests_in_same_shell"),
        f"several services in docker-compose.yaml ({', '.join(services)})": len(services) > 1,
        "solution.yaml": (directory / "solution.yaml").exists(),
    })  # fmt: skip
    dockerfile = directory / "Dockerfile"
    workdir = _workdir(dockerfile)
    mapping = Mapping(workdir)
    tests = {**_files(directory / "tests", mapping), "run-tests.sh": mapping.file(_bytes(directory / "run-tests.sh"))}
    solution = directory / "solution.sh"
    return TerminalTask(
        instruction=mapping.text(config["instruction"]),
        tests=tests,
        test_script="run-tests.sh",
        solution={"solution.sh": mapping.file(solution.read_bytes())} if solution.is_file() else {},
        solution_script="solution.sh",
        image=f"{IMAGE_PREFIX}{directory.name.lower()}" if dockerfile.is_file() else None,
        image_workdir=workdir if dockerfile.is_file() else None,
        test_timeout_s=float(config.get("max_test_timeout_sec", 60.0)),
        verdict_by_exit_code=True,
    )


def _parsed(file: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        config = parse(_text(file))
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{file} can't be read: {' '.join(str(error).split())}.") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file} is no table of settings.")
    return config


def _refuse(file: Path, asked: dict[str, Any]) -> None:
    found = [name for name, present in asked.items() if present]
    if found:
        raise UsageError(f"{file} asks for what terminal_agent does not do: {', '.join(found)}.")


def _plain(file: Path, name: str, values: Any) -> dict[str, str]:
    variables = {str(key): str(value) for key, value in (values or {}).items()}
    # The host's variables hold credentials; a task must not pull them into a sandbox.
    _refuse(file, {f"{name}.{key} = {value}": "${" in value for key, value in variables.items()})
    return variables


def _workdir(dockerfile: Path) -> str:
    found = _WORKDIR_LINE.findall(_text(dockerfile)) if dockerfile.is_file() else []
    return found[-1] if found and found[-1].startswith("/") and found[-1] != "/" else _DEFAULT_WORKDIR


def _files(folder: Path, mapping: Mapping, required: str | None = None) -> Files:
    if required is not None:
        _bytes(folder / required)
    files = {str(path.relative_to(folder)): _bytes(path) for path in _walk(folder)}
    size = sum(map(len, files.values()))
    if size > MAX_FILES_MB << 20:
        raise UsageError(f"{folder} holds {size >> 20} MB; at most {MAX_FILES_MB} are uploaded.")
    return {name: mapping.file(data) for name, data in files.items()}


def _walk(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _text(file: Path) -> str:
    try:
        return _bytes(file).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{file} is no UTF-8 text.") from None


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from None
