"""The example with sub-agents and compaction, trained for real: all members of an episode are stored, trained and replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CommandLine

EXAMPLE = Path(__file__).parents[2] / "examples" / "research_team.py"
SMALL = [
    "warm_start.demonstrations=200", "warm_start.steps=150", "trainer.steps=2", "trainer.batch=8", "rollout.concurrency=16",
    "evaluation.episodes=4", "evaluation.every=0", "algorithm.critic.warmup_batches=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def team(command_line: CommandLine) -> str:
    return command_line.run("train", "--env", f"{EXAMPLE}:ResearchTeam", "--name", "team", *SMALL)


def query(command_line: CommandLine, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in command_line.run("db", *arguments, "--json").splitlines() if line != "no rows"]


def test_run__trains_episodes_with_all_that_they_started(team: str, command_line: CommandLine) -> None:
    assert "gate passed" in team
    assert "conservation OK" in team
    (books,) = query(command_line, "query", "conservation", "--run", "team")
    assert books["consumed"] == 2 * 8
    children = query(command_line, "query", "sub_agents", "--run", "team", "--limit", "500")
    assert children
    assert {child["environment"] for child in children} == {"scout"}
    assert all(child["parent"] == child["root"] and not child["own_verdict"] for child in children)
    (counted,) = query(
        command_line,
        "sql",
        "select count(*) as trained, count(*) filter (where t.root is not null) as sub_agents,"
        " count(*) filter (where c.trajectory is null) as orphans from agentrl.trained d"
        " join agentrl.trajectory t on t.run = d.run and t.id = d.trajectory"
        " left join agentrl.consumed c on c.run = d.run and c.trajectory = coalesce(t.root, t.id) and c.step = d.step"
        " where d.run = agentrl.find_run_v1('team')",
    )
    assert counted["trained"] == 2 * 8 + counted["sub_agents"]
    assert counted["sub_agents"] > 0
    assert counted["orphans"] == 0


def test_show__lists_sub_agents_and_contexts(team: str, command_line: CommandLine) -> None:
    child = query(command_line, "query", "sub_agents", "--run", "team")[-1]
    shown = command_line.run("show", child["root"])
    assert f"sub-agent {child['trajectory']}  scout, " in shown
    assert re.search(r"context 1: the environment put 2 messages in the place of the history", shown)
    own = command_line.run("show", child["trajectory"])
    assert f"sub-agent scout, started in turn {child['parent_seg']} of {child['root']}" in own
    assert "You are a scout." in own


def test_replay_check__finds_no_lie_in_any_member(team: str, command_line: CommandLine) -> None:
    output = command_line.run("replay", "check", "team")
    assert "No lie was found." in output
    assert "not rendered" not in output
    n = len(query(command_line, "query", "sub_agents", "--run", "team", "--limit", "500"))
    assert f"{2 * 8 + 2 * 4 + n} trajectories" in output
