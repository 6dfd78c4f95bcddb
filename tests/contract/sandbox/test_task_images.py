"""Task directories that bring a Dockerfile each: built, played and graded on a real daemon, every task in its own image."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.environment.base import checked_tasks
from agentrl.environment.boxes import specs_of
from agentrl.environment.demonstrate import play
from agentrl.environment.validation.episodes import script
from agentrl.rollout.main import digests
from environments.terminal_agent import TerminalAgentLarge
from sandboxes.docker import Docker
from sandboxes.pool import Pool
from tests.contract.sandbox.daemon import docker_url

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.docker]

NAMES = ("first-word", "second-word")
DOCKERFILE = """\
FROM agentrl-base
WORKDIR /app
RUN printf '#!/bin/sh\\necho {name}\\n' > /usr/local/bin/say && chmod 755 /usr/local/bin/say \\
 && mkdir -p deep && echo kept > deep/note && ln -s deep/note link
"""
TEST = """\
#!/bin/sh
mkdir -p /logs/verifier
[ "$(cat answer.txt)" = {name} ] && [ "$(cat link)" = kept ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""


def write_task(folder: Path) -> None:
    files = {
        "task.toml": "version = '1.0'\n",
        "instruction.md": f"Save in answer.txt what the program say says. Its task is {folder.name}.\n",
        "environment/Dockerfile": DOCKERFILE.format(name=folder.name),
        "tests/test.sh": TEST.format(name=folder.name),
        "solution/solve.sh": "say > answer.txt\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


async def test_each_task__runs_in_its_own_image_and_is_graded_there(tmp_path: Path) -> None:
    provider = await Docker.connect(url=docker_url())
    for name in NAMES:
        write_task(tmp_path / name)
        command = ["sandbox", "build", str(tmp_path / name / "environment"), "--tag", f"terminal-agent/{name}"]
        built = subprocess.run(
            [sys.executable, "-m", "agentrl.cli.main", *command],
            env={**os.environ, "DOCKER_HOST": docker_url()},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
        )
        assert built.returncode == 0, built.stderr
        assert built.stdout.startswith(f"terminal-agent/{name} sha256:")
    environment = TerminalAgentLarge(tasks=tmp_path)
    tasks = [task for split in ("train", "heldout") for task in checked_tasks(environment, split, 0, 9)]
    assert sorted(task.id for task in tasks) == list(NAMES)
    pool = Pool(provider, 2)
    for task in tasks:
        played = await play(environment, task, script(environment.gold(task)), pool)
        assert played.reward is not None
        assert played.reward.success, played
        cheat = await play(environment, task, script(["done"]), pool)
        assert cheat.reward is not None
        assert not cheat.reward.success
    await pool.close()
    seen = {await digests(provider, specs_of(environment, task).values()) for task in tasks}
    assert len(seen) == 2, "each trajectory is told from which image it came"
