"""A shell and tests that run elsewhere: what is carried over, what a verdict is, and what an agent can't do to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Message, tool_call
from agentrl.environment.demonstrate import Demonstration, play
from agentrl.errors import EnvironmentFault
from agentrl.types import Termination
from environments.terminal_agent import TerminalAgent, TerminalAgentLarge, generated, grading, heldout_names, state
from environments.terminal_agent.task import TerminalTask
from sandboxes.contract import Sandbox, SandboxSpec
from sandboxes.pool import Pool

ENV = TerminalAgent()
TASK = next(task for task in ENV.tasks("train", 1, 50) if [name for name, _ in generated.steps_of(task)] == ["sort"])
GOLD, DONE = ENV.gold(TASK)
SPEC = SandboxSpec(memory_mb=256, pids=64)


def bash(command: str) -> str:
    return tool_call("bash", command=command)


async def script(pool: Pool, *texts: str) -> Demonstration:
    return await play(ENV, TASK, lambda episode: texts[episode.n_turns], pool)


def observations(played: Demonstration) -> list[str]:
    return [entry.content for entry in played.entries[1:] if isinstance(entry, Message)]


def earned(played: Demonstration) -> tuple[float, bool | None]:
    assert played.reward is not None
    return played.reward.value, played.reward.success


async def test_turns_over_two__cost_a_twentieth_each(isolated: Pool) -> None:
    played = await script(isolated, bash(f"cat {TASK.payload['file']}"), GOLD, DONE)
    assert observations(played)[0] == TASK.payload["content"].rstrip()
    assert earned(played) == (0.95, True)


async def test_only_done__ends_the_small_size(isolated: Pool) -> None:
    played = await script(isolated, GOLD, "finished", "done")
    assert observations(played)[1].startswith("error: say done")
    assert earned(played) == (0.95, True)


async def test_out_of_turns__earns_nothing_though_the_result_is_right(isolated: Pool) -> None:
    played = await script(isolated, GOLD, GOLD, GOLD, GOLD)
    assert played.termination is Termination.TRUNCATED_TURNS
    assert earned(played) == (0.0, False)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("echo hello; echo there >&2", "hello\nthere"),
        ("exit 3", "exit code 3"),
        ("nonsense-command", "exit code 127"),
        ("pwd", "/workspace"),
        ("id -u", "1000"),
        ("touch /etc/x", "exit code 1"),
        ("printf '\\377'", "\N{REPLACEMENT CHARACTER}"),
        ("true", "(no output)"),
    ],
)
async def test_command__shows_output_and_exit_code(command: str, shown: str, isolated: Pool) -> None:
    (text,) = observations(await script(isolated, bash(command), "done"))
    assert text == shown or text.endswith(shown)


async def test_command_without_end__is_stopped_and_the_next_one_works(isolated: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TerminalAgent, "command_timeout_s", 0.5)
    played = await script(isolated, bash("sleep 600 & sleep 600"), GOLD, "done")
    assert observations(played)[0] == "error: stopped after 0.5 s"
    assert earned(played) == (0.95, True)


EXPECTED = "/tmp/tests/expected.txt"
CHEATS = {
    "prints passed": "echo PASSED; echo 1",
    "copies its input": f"cat {TASK.payload['file']} > out.txt",
    "links to what is expected": f"ln -s {EXPECTED} out.txt",
    "links through a directory": "ln -s /tmp/tests t; ln -s t/expected.txt out.txt",
    "links through parents": "ln -s /usr u; ln -s u/../tmp/tests/expected.txt out.txt",
    "links to the verdict": "ln -s /tmp/logs/verifier/reward.txt out.txt",
    "makes a directory": "mkdir out.txt",
    "makes a pipe": "mkfifo out.txt",
    "leaves a process that writes later": "(sleep 1; sort *.txt > out.txt) > /dev/null 2>&1 &",
    "shadows cmp": "printf '#!/bin/sh\\nexit 0\\n' > cmp; chmod +x cmp",
}


@pytest.mark.parametrize("command", CHEATS.values(), ids=CHEATS)
async def test_cheat__is_rejected(command: str, isolated: Pool) -> None:
    assert earned(await script(isolated, bash(command), "done")) == (0.0, False)
    assert earned(await script(isolated, GOLD, "done")) == (1.0, True), "honest work is graded afterwards"


@pytest.mark.parametrize("place", ["/tmp/logs/verifier/reward.txt", "/tmp/logs/verifier/reward.json", "/tmp/logs/x"])
async def test_planted_verdict__is_told_and_earns_nothing(place: str, isolated: Pool) -> None:
    plant = bash(f"mkdir -p /tmp/logs/verifier; echo 1 > {place}")
    played = await script(isolated, plant, "done")
    assert earned(played) == (0.0, False)
    played = await script(isolated, plant, GOLD, "done")
    assert played.reward is not None
    assert earned(played) == (0.0, False)
    assert "tampered" in played.reward.detail["failure"]


async def test_tests__are_absent_while_the_agent_acts(isolated: Pool) -> None:
    find = bash("ls /tmp /tests /logs /solution 2>/dev/null; grep -rl expected /workspace /tmp 2>/dev/null")
    assert observations(await script(isolated, GOLD, find, "done"))[1] == "/tmp:\nexit code 1"


async def carried(pool: Pool, command: str, look: str) -> tuple[str, int]:
    async with pool.acquire(SPEC) as box:
        assert (await box.exec(command)).exit_code == 0
        archive = await state.leave(box)
    assert archive is not None
    async with pool.acquire(SPEC) as box:
        dropped = await state.arrive(box, archive)
        return (await box.exec(look)).text, dropped


async def test_state__keeps_files_directories_modes_and_times(isolated: Pool) -> None:
    make = (
        "mkdir -p a/b empty; echo x > a/b/c; chmod 750 a/b/c; touch -d '2020-01-02 03:04:05 UTC' a/b/c; printf '\\0\\377' > bin"
    )
    text, _ = await carried(isolated, make, "stat -c '%a %Y' a/b/c; ls -d empty; od -An -tx1 bin")
    assert text == "750 1577934245\nempty\n 00 ff\n"


async def test_state__keeps_links_inside_and_into_the_system_and_drops_others(isolated: Pool) -> None:
    make = (
        "echo x > f; ln -s f inside; ln -s /usr/bin/env system; ln -s /tmp/tests/t outside; ln -s /proc/1/environ p; ln f hard"
    )
    text, dropped = await carried(isolated, make, "readlink inside system; cat inside hard; ls")
    assert text == "f\n/usr/bin/env\nx\nx\nf\nhard\ninside\nsystem\n"
    assert dropped == 2


async def test_state__survives_odd_names_and_files(isolated: Pool) -> None:
    names = "touch \"$(printf 'a\\377b')\" \"$(printf 'new\\nline')\" -- '-rf'"
    make = f"{names}; mkfifo pipe; touch closed; chmod 000 closed; mkdir no; chmod 000 no"
    text, _ = await carried(isolated, make, "ls | od -c | head -3 | wc -l; test -f ./-rf && echo there")
    assert text.endswith("there\n")


async def test_state_that_has_outgrown_its_limit__earns_nothing(isolated: Pool) -> None:
    big = bash("head -c 17000000 /dev/urandom > big")
    played = await script(isolated, GOLD, big, "done")
    assert earned(played) == (0.0, False)
    assert played.reward is not None
    assert "outgrown" in played.reward.detail["failure"]


async def verdict(pool: Pool, script_text: str, *, more: dict[str, bytes] | None = None, **changes: Any) -> grading.Verdict:
    task = TerminalTask("", {"test.sh": script_text.encode(), **(more or {})}, "test.sh", **changes)
    async with pool.acquire(SPEC) as box:
        archive = await _made(box)
    async with pool.acquire(SPEC) as box:
        return await grading.run_tests(task, archive, box)


async def _made(box: Sandbox) -> bytes:
    """What a hostile agent leaves: things that stand in for the test runner's own."""
    for name in ("json.py", "sitecustomize.py", "usercustomize.py", "unittest.py", "conftest.py", "pathlib.py"):
        await box.write_file(f"/workspace/{name}", b"import os; os._exit(0)")
    archive = await state.leave(box)
    assert archive is not None
    return archive


REWARD = "/tmp/logs/verifier/reward"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"echo 1 > {REWARD}.txt", 1.0),
        (f"echo 0.25 > {REWARD}.txt", 0.25),
        (f"""echo '{{"reward": 0.5, "seconds": 3}}' > {REWARD}.json""", 0.5),
        (f"""echo '{{"accuracy": 1}}' > {REWARD}.json""", 1.0),
        (f"echo 0 > {REWARD}.txt; exit 1", 0.0),
        (f"""python3 -c 'import json, unittest, pathlib; print(1)' > {REWARD}.txt""", 1.0),
        (f"test $(pwd) = /workspace && test $TEST_DIR = /tmp/tests && echo 1 > {REWARD}.txt", 1.0),
    ],
)
async def test_verdict__is_what_the_tests_wrote(text: str, value: float, isolated: Pool) -> None:
    assert (await verdict(isolated, f"#!/bin/sh\n{text}\n")).value == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo oops; exit 7", r"no verdict \(exit code 7\): oops"),
        ("echo PASSED", "no verdict"),
        (f"echo 1 > {REWARD}.txt; echo 1 > {REWARD}.json", "two verdicts"),
        (f"echo yes > {REWARD}.txt", "is no number"),
        (f"echo nan > {REWARD}.txt", "is nan"),
        (f"echo '[1]' > {REWARD}.json", "is no number"),
        (f"""echo '{{"a": 1, "b": 0}}' > {REWARD}.json""", "several rewards"),
        (f"ln -s /etc/passwd {REWARD}.txt", "can't be read"),
        (f"mkdir {REWARD}.txt", "can't be read"),
        ("kill -9 $$", "no verdict"),
    ],
)
async def test_tests_without_one_verdict__give_none(text: str, said: str, isolated: Pool) -> None:
    with pytest.raises(EnvironmentFault, match=said):
        await verdict(isolated, f"#!/bin/sh\n{text}\n")


async def test_tests_that_never_end__are_a_failure_of_the_policy(isolated: Pool) -> None:
    found = await verdict(isolated, f"echo 1 > {REWARD}.txt; sleep 60", test_timeout_s=0.5)
    assert found.value == 0.0
    assert "did not end" in found.detail["failure"]


@pytest.mark.parametrize(
    ("printed", "code", "value"),
    [
        ("==== 3 passed in 0.12s ====", 0, 1.0),
        ("==== 1 failed, 2 passed in 0.12s ====", 1, 0.0),
        ("==== 3 passed in 0.12s ====", 1, 0.0),
        ("==== 2 passed, 1 error in 0.12s ====", 0, 0.0),
        ("==== 1 passed in 0.1s ====\n==== 1 failed in 0.1s ====", 0, 0.0),
    ],
)
async def test_older_format__needs_summary_and_exit_code(printed: str, code: int, value: float, isolated: Pool) -> None:
    text = "\n".join(f"echo '{line}'" for line in printed.splitlines())
    assert (await verdict(isolated, f"{text}\nexit {code}\n", verdict_by_exit_code=True)).value == value


async def test_older_format_without_summary__gives_no_verdict(isolated: Pool) -> None:
    with pytest.raises(EnvironmentFault, match="without pytest's summary"):
        await verdict(isolated, "exit 0\n", verdict_by_exit_code=True)


async def test_half_done_shipped_task__fails(isolated: Pool) -> None:
    environment = TerminalAgentLarge()
    for task in [*environment.tasks("train", 0, 9), *environment.tasks("heldout", 0, 9)]:
        for command in ("true", "touch top.txt merged.log errors.json", "printf 'print(2)' > median.py"):
            turns = [bash(command), "All done."]
            played = await play(environment, task, lambda episode, turns=turns: turns[episode.n_turns], isolated)
            assert earned(played) == (0.0, False), (task.id, command)


def test_heldout__is_a_fifth_of_the_tasks_and_never_none() -> None:
    names = [f"task-{i}" for i in range(50)]
    assert len(heldout_names(names)) == 10
    assert heldout_names(reversed(names)) == heldout_names(names)
    assert len(heldout_names(["a", "b"])) == 1
    assert heldout_names(["a"]) == frozenset()


def test_expected_output__is_what_the_pipeline_prints(tmp_path: Path) -> None:
    import os
    import subprocess

    for task in ENV.tasks("train", 3, 60):
        (tmp_path / task.payload["file"]).write_text(task.payload["content"])
        command = generated.command(task.payload["file"], generated.steps_of(task))
        subprocess.run(command, shell=True, cwd=tmp_path, check=True, env={**os.environ, "LC_ALL": "C"})
        assert (tmp_path / "out.txt").read_text() == task.payload["expected"], command


async def test_without_isolation__there_is_no_verdict(pool: Any) -> None:
    with pytest.raises(EnvironmentFault, match="without isolation"):
        await play(ENV, TASK, lambda episode: (GOLD, DONE)[episode.n_turns], pool.pool)
