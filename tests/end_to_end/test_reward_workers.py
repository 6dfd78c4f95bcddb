"""Reward workers as processes of a run: they grade everything, one may die, and no verdict is lost or given twice."""

from __future__ import annotations

import json
import signal

from tests.command_line import CommandLine

SHORT = [
    "trainer.steps=6", "evaluation.episodes=32", "evaluation.every=0", "rollout.lease_s=6", "reward.lease_s=6",
    "reward.workers=1",
]  # fmt: skip


def rows(command_line: CommandLine, statement: str) -> list[dict]:
    output = command_line.run("db", "sql", statement, "--json")
    return [json.loads(line) for line in output.splitlines() if line != "no rows"]


def check(command_line: CommandLine, name: str, output: str) -> None:
    """Six steps were trained on verdicts of reward workers alone, one each."""
    assert "conservation OK" in output, output
    assert "n=32" in output
    of_run = f"run = agentrl.find_run_v1('{name}')"
    events = rows(
        command_line,
        f"select why, count(*) as n from agentrl.event where {of_run} and from_place = 'grade_job' group by why order by why",
    )
    assert {row["why"] for row in events} == {"graded"}
    (counted,) = rows(
        command_line,
        "select count(distinct c.trajectory) as trained, count(r.id) as verdicts from agentrl.consumed c"
        f" left join agentrl.reward r on r.run = c.run and r.trajectory = c.trajectory where c.{of_run}",
    )
    assert counted["trained"] == 6 * 64
    assert counted["verdicts"] <= counted["trained"], "cut-off episodes have none, no other has two"
    assert counted["verdicts"] > 0


def test_run__is_graded_by_its_reward_worker(learned: str, command_line: CommandLine) -> None:
    output = command_line.run("train", "--env", "code_agent", "--name", "apart", "--seed", "11", *SHORT)
    assert "1 reward worker, 64 episodes at once each" in output
    check(command_line, "apart", output)
    (actor,) = rows(
        command_line,
        "select distinct regexp_replace(actor, '.*:', '') as role from agentrl.event where why = 'graded'"
        " and run = agentrl.find_run_v1('apart')",
    )
    assert actor == {"role": "reward-0"}


def test_kill_9_of_the_reward_worker__loses_and_doubles_no_verdict(learned: str, command_line: CommandLine) -> None:
    running = command_line.start("train", "--env", "code_agent", "--name", "judgeless", "--seed", "11", *SHORT)
    running.wait_for(r" +2/6")
    (victim,) = [p for p in command_line.processes("judgeless") if "agentrl.cli.main reward " in " ".join(p.cmdline())]
    victim.send_signal(signal.SIGKILL)
    assert running.wait() == 0, running.output + command_line.errors()
    assert running.output.count("reward-0 ended with code -9; starting it again") == 1
    check(command_line, "judgeless", running.output)


def test_sub_agents__are_refused_with_the_way_out(command_line: CommandLine) -> None:
    from tests.end_to_end.test_sub_agents import EXAMPLE

    output = command_line.run("train", "--env", f"{EXAMPLE}:ResearchTeam", "reward.workers=1", "--dry-run", code=2)
    assert "leave out reward.workers=1" in " ".join(output.split())
