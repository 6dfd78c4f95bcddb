"""Task directories of both formats are read as they are; what can't be honoured is refused with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.load import resolve
from agentrl.environment.base import checked_tasks
from agentrl.errors import NotReadyError, UsageError
from agentrl.launch import plan
from environments.terminal_agent import SHIPPED, TerminalAgentLarge
from environments.terminal_agent.directory import read_task, task_directories
from environments.terminal_agent.places import Mapping
from sandboxes.contract import SandboxSpec

TOML = 'version = "1.0"\n[verifier]\ntimeout_sec = 30.0\nenv = { MODE = "strict" }\n[environment]\nenv = { LANG = "C" }\n'
YAML = """\
# A comment
instruction: |-
  Fix /app/run.sh, which is broken.
difficulty: easy
parser_name: pytest
max_agent_timeout_sec: 900.0
max_test_timeout_sec: 45.0
run_tests_in_same_shell: false
"""


def harbor(folder: Path, toml: str = TOML) -> Path:
    for name, text in {
        "task.toml": toml,
        "instruction.md": "Write /app/out.txt. Tests are in /tests; look at http://host/app and /application.\n",
        "environment/start.txt": "from /app\n",
        "tests/test.sh": "#!/bin/bash\npython3 /tests/check.py && echo 1 > /logs/verifier/reward.txt\n",
        "tests/check.py": "open('/app/out.txt')\n",
        "solution/solve.sh": "#!/bin/sh\ncp /solution/gold.txt /app/out.txt\n",
        "solution/gold.txt": "gold\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def terminal_bench(folder: Path, yaml: str = YAML) -> Path:
    for name, text in {
        "task.yaml": yaml,
        "run-tests.sh": "#!/bin/bash\npytest $TEST_DIR/test_outputs.py -rA\n",
        "tests/test_outputs.py": "def test(): assert open('/app/run.sh')\n",
        "solution.sh": "echo ok > /app/run.sh\n",
        "docker-compose.yaml": "services:\n  client:\n    build: .\n",
        "Dockerfile": "FROM python:3.12\nWORKDIR /app\nCOPY run.sh .\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_harbor_task__is_read_with_its_paths_moved(tmp_path: Path) -> None:
    task = read_task(harbor(tmp_path))
    assert task.instruction == (
        "Write /workspace/out.txt. Tests are in /tmp/tests; look at http://host/app and /application.\n"
    )
    assert task.tests["test.sh"].endswith(b"python3 /tmp/tests/check.py && echo 1 > /tmp/logs/verifier/reward.txt\n")
    assert task.tests["check.py"] == b"open('/workspace/out.txt')\n"
    assert task.start == {"start.txt": b"from /workspace\n"}
    assert task.solution["solve.sh"].endswith(b"cp /tmp/solution/gold.txt /workspace/out.txt\n")
    assert (task.image, task.test_timeout_s) == (None, 30.0)
    assert (task.environment, task.test_environment) == ({"LANG": "C"}, {"MODE": "strict"})


def test_harbor_task_with_an_image__starts_from_its_working_directory(tmp_path: Path) -> None:
    task = read_task(harbor(tmp_path, TOML + 'docker_image = "someone/some-task:1"\n'))
    assert (task.image, task.image_workdir, task.start) == ("someone/some-task:1", "/app", {})


def test_dockerfile__names_an_image_and_the_working_directory(tmp_path: Path) -> None:
    folder = harbor(tmp_path / "Some-Task")
    (folder / "environment" / "Dockerfile").write_text("FROM debian\nWORKDIR /srv/data\nRUN true\n")
    (folder / "instruction.md").write_text("See /srv/data/x and /app/y.")
    task = read_task(folder)
    assert (task.image, task.image_workdir) == ("terminal-agent/some-task", "/srv/data")
    assert task.instruction == "See /workspace/x and /app/y."


def test_terminal_bench_task__is_read(tmp_path: Path) -> None:
    task = read_task(terminal_bench(tmp_path / "fix-run"))
    assert task.instruction == "Fix /workspace/run.sh, which is broken."
    assert (task.image, task.image_workdir) == ("terminal-agent/fix-run", "/app")
    assert (task.test_script, task.test_timeout_s, task.verdict_by_exit_code) == ("run-tests.sh", 45.0, True)
    assert sorted(task.tests) == ["run-tests.sh", "test_outputs.py"]
    assert task.solution == {"solution.sh": b"echo ok > /workspace/run.sh\n"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('[environment]\nos = "windows"\n', "environment.os = windows"),
        ("[environment]\ngpus = 1\n", "environment.gpus"),
        ('[[environment.mcp_servers]]\nname = "x"\n', "mcp_servers"),
        ('[environment.healthcheck]\ncommand = "true"\n', "healthcheck"),
        ('[[steps]]\nname = "one"\n', "steps"),
        ('[agent]\nuser = "root"\n', "agent.user"),
        ('[verifier.environment]\ndocker_image = "x"\n', "verifier.environment"),
        ('[[verifier.collect]]\ncommand = "x"\n', "verifier.collect"),
        ('[environment]\nenv = { KEY = "${OPENAI_API_KEY}" }\n', "environment.env.KEY"),
        ("[environment\n", "can't be read"),
    ],
)
def test_harbor_task_that_asks_for_more__is_refused(more: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="task.toml.*" + said.replace("[", r"\[")):
        read_task(harbor(tmp_path, f'version = "1.0"\n{more}'))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("task.yaml", YAML.replace("pytest", "swebench"), "parser_name = swebench"),
        ("task.yaml", YAML.replace("same_shell: false", "same_shell: true"), "run_tests_in_same_shell"),
        ("task.yaml", "difficulty: easy\n", "has no instruction"),
        ("task.yaml", "a: [", "can't be read"),
        ("docker-compose.yaml", "services:\n  client: {}\n  database: {}\n", "several services"),
    ],
)
def test_terminal_bench_task_that_asks_for_more__is_refused(name: str, text: str, said: str, tmp_path: Path) -> None:
    folder = terminal_bench(tmp_path)
    (folder / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        read_task(folder)


@pytest.mark.parametrize("missing", ["instruction.md", "tests/test.sh"])
def test_missing_file__is_named(missing: str, tmp_path: Path) -> None:
    (harbor(tmp_path) / missing).unlink()
    with pytest.raises(UsageError, match=missing.rsplit("/")[-1]):
        read_task(tmp_path)


def test_binary_files__are_carried_unchanged(tmp_path: Path) -> None:
    (harbor(tmp_path) / "tests" / "image.png").write_bytes(b"\x89PNG /app \xff")
    assert read_task(tmp_path).tests["image.png"] == b"\x89PNG /app \xff"


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("/app", "/workspace"),
        ("cd /app/src && ls /tests/", "cd /workspace/src && ls /tmp/tests/"),
        ("'/app' \"/app\" `/app`,(/app);/app:/logs.", None),
        ("/app.txt /apps /my/app ./app a/app ~/app ${X}/app $(pwd)/tests //app", "same"),
        ("/oracle/solution.sh", "/tmp/solution/solution.sh"),
    ],
)
def test_paths__are_moved_where_they_are_paths(text: str, moved: str | None) -> None:
    got = Mapping("/app").text(text)
    if moved is None:
        assert got == "'/workspace' \"/workspace\" `/workspace`,(/workspace);/workspace:/tmp/logs."
    else:
        assert got == (text if moved == "same" else moved)


def test_folder_of_tasks__becomes_an_environment(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        harbor(tmp_path / name)
    (tmp_path / "notes").mkdir()
    environment = TerminalAgentLarge(tasks=tmp_path)
    train, heldout = (checked_tasks(environment, split, 0, 9) for split in ("train", "heldout"))
    assert {task.id for task in [*train, *heldout]} == {"one", "two", "three"}
    assert len(heldout) == 1
    assert environment.sandbox is not None
    assert environment.sandbox.image == TerminalAgentLarge().sandbox.image  # type: ignore[union-attr]
    assert environment.grade_timeout_s > 30.0


def test_tasks_with_several_images__each_runs_in_its_own(tmp_path: Path) -> None:
    harbor(tmp_path / "plain")
    harbor(tmp_path / "a", TOML + 'docker_image = "image-a"\n')
    harbor(tmp_path / "b", TOML + 'docker_image = "image-b"\n')
    every = TerminalAgentLarge(tasks=tmp_path)
    tasks = [task for split in ("train", "heldout") for task in every.tasks(split, 0, 9)]
    base = SandboxSpec().image
    assert {task.id: every.sandbox_for(task).image for task in tasks} == {"plain": base, "a": "image-a", "b": "image-b"}
    assert {every.sandbox_for(task).workspace_mb for task in tasks} == {512}
    with pytest.raises(UsageError, match=r"No task in .* has the image 'image-c'; they have '', 'image-a', 'image-b'"):
        TerminalAgentLarge(tasks=tmp_path, image="image-c")
    chosen = TerminalAgentLarge(tasks=tmp_path, image="image-b", network=True)
    assert [task.id for task in chosen.tasks("train", 0, 9)] == ["b"]
    spec = chosen.sandbox_for(chosen.tasks("train", 0, 1)[0])
    assert (spec.image, spec.network) == ("image-b", True)
    assert [task.id for task in TerminalAgentLarge(tasks=tmp_path, image="").tasks("train", 0, 9)] == ["plain"]


def test_episodes_with_an_open_network__are_never_run_again(tmp_path: Path) -> None:
    harbor(tmp_path / "plain")
    assert TerminalAgentLarge(tasks=tmp_path).is_repeatable
    assert not TerminalAgentLarge(tasks=tmp_path, network=True).is_repeatable


def test_folders_without_tasks__are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no task"):
        task_directories(tmp_path)
    with pytest.raises(UsageError, match="no folder of tasks"):
        task_directories(tmp_path / "missing")


def test_shipped_tasks__bring_solutions_and_run_anywhere() -> None:
    for path in task_directories(SHIPPED):
        task = read_task(path)
        assert task.solution
        assert task.image is None


def test_image__is_refused_by_a_provider_that_has_none(tmp_path: Path) -> None:
    harbor(tmp_path / "a", TOML + 'docker_image = "someone/some-task:1"\n')
    harbor(tmp_path / "b", TOML + 'docker_image = "someone/some-task:1"\n')
    flags = {"sandbox.provider": "bubblewrap"}
    config = resolve(environment="terminal_agent_large", preset=None, file=None, flags=flags, overrides=[])
    with pytest.raises(NotReadyError, match=r"bubblewrap has no image 'someone/some-task:1'"):
        plan._sandbox(config.config, TerminalAgentLarge(tasks=tmp_path))
