"""An agent program that knows only OpenAI's client is trained through the gateway."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.command_line import CommandLine

EXAMPLE = Path(__file__).parents[2] / "examples" / "outside_agent.py"


def test_outside_agent__is_trained_on_its_own_episodes(learned: str, command_line: CommandLine) -> None:
    run = command_line.start(
        "train", "--env", "code_agent", "--name", "outside", "--seed", "11", "rollout.workers=0", "trainer.steps=2",
        "trainer.batch=8", "algorithm.critic.warmup_batches=1", "evaluation.episodes=4", "evaluation.every=0",
    )  # fmt: skip
    run.wait_for("agentrl gateway --run outside")
    gateway = command_line.start("gateway", "--run", "outside", "--port", "0")
    gateway.wait_for(r"http://\S+: POST")
    url = re.search(r"(http://\S+): POST", gateway.output)[1]
    agent = subprocess.run([sys.executable, str(EXAMPLE), url, "100"], capture_output=True, text=True, timeout=300, check=False)
    assert "the run is over after 16 episodes" in agent.stdout, agent.stdout + agent.stderr
    assert run.wait() == 0, run.output + command_line.errors()
    assert "conservation OK: created 16 = consumed 16" in run.output
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.wait() == 0, gateway.output
    rows = command_line.run(
        "db", "sql", "select distinct origin, sandbox from agentrl.trajectory t join agentrl.run r on r.id = t.run "
        "where r.name = 'outside' and purpose = 'train'", "--json",
    )  # fmt: skip
    assert json.loads(rows) == {"origin": "recorded", "sandbox": "outside"}
    assert command_line.run("gateway", "--run", "nothing", code=2).count("no run named") == 1
