"""A shell in a sandbox and a task to do with it. The tests run elsewhere, over the files that the agent leaves."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from agentrl.environment import Done, Environment, Episode, Message, Policy, Reward, Task, TokenizerHints, tool, tool_call
from agentrl.errors import UsageError
from agentrl.types import Termination
from environments.splits import HELDOUT_SHARE, check_split
from environments.terminal_agent import directory, generated, grading, state, teacher
from environments.terminal_agent.places import WORKDIR
from environments.terminal_agent.task import TerminalTask
from sandboxes.contract import Sandbox, SandboxSpec

SHIPPED = Path(__file__).parent / "tasks"


class TerminalAgent(Environment):
    """One or two text filters over a file. Reward 1 when the tests pass, less 0.05 for each turn over two, else 0."""

    sandbox = SandboxSpec(memory_mb=256, pids=64, env={"LC_ALL": "C"})
    max_turns = 4
    max_turn_tokens = 48
    max_tokens = 150
    grade_timeout_s = 90.0
    grades_truncated = True
    strict_calls = True
    free_turns = 2
    turn_cost = 0.05
    command_timeout_s = 10.0
    """Limit of one command."""
    shell = "sh"
    tokenizer_hints: TokenizerHints | None = TokenizerHints(
        split=r"\d|, then |: | \| |red|blue|oak|elm|tin| > out.txt|cat ",
        scaffold=(
            '<tool_call>{"name": "bash", "arguments": {"command": "cat ',
            ' > out.txt"}}</tool_call>',
            " write to out.txt: ",
        ),
    )

    def tasks(self, split: str, seed: int, n: int) -> list[Task]:
        check_split(split)
        return list(itertools.islice(self.generate(split, seed), n))

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        """Tasks of ``split``."""
        return generated.generate(split, seed)

    def terminal_task(self, task: Task) -> TerminalTask:
        """What ``task`` is made of."""
        return generated.terminal_task(task)

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", task.payload["instruction"])]

    async def setup(self, episode: Episode) -> None:
        episode.state.ready = False
        episode.state.archive = None
        episode.state.tampered = False

    @tool(side_effects=False)
    async def bash(self, episode: Episode, command: str) -> str:
        """Run a shell command in the working directory. Each command is a new shell."""
        await self._prepare(episode)
        environment = self.terminal_task(episode.task).environment
        result = await episode.sandbox.exec(
            [self.shell, "-c", command], timeout=self.command_timeout_s, max_output=1 << 20, env=environment
        )
        text = (result.stdout + result.stderr).decode("utf-8", "replace")
        if result.timed_out:
            return f"{text}\nerror: stopped after {self.command_timeout_s:g} s".strip()
        if result.truncated:
            text += f"\n... cut: {result.total_stdout + result.total_stderr} bytes were printed"
        text = text.rstrip()
        return text if result.exit_code == 0 else f"{text}\nexit code {result.exit_code}".strip()

    async def respond(self, episode: Episode, text: str) -> Message | Done:
        """Only "done" ends the episode: were any other text accepted, garbage after the right command would be rewarded."""
        return Done() if text.strip() == "done" else Message("tool", self.wrong_call("say done, or call bash"))

    async def finish(self, episode: Episode) -> None:
        if self.earns(episode) and episode.state.ready:
            episode.state.archive = await state.leave(episode.sandbox)
            episode.state.tampered = await state.wrote_verdicts(episode.sandbox)

    def earns(self, episode: Episode) -> bool:
        """Whether the end of the episode may be rewarded at all."""
        return episode.ended is Termination.TERMINATED

    async def reward(self, episode: Episode, sandbox: Sandbox) -> Reward:
        if not self.earns(episode) or not episode.state.ready:
            return self._refused("nothing was done" if self.earns(episode) else "the episode did not end by itself")
        if episode.state.tampered:
            return self._refused("tampered: files where only tests write")
        if episode.state.archive is None:
            return self._refused(f"the working directory has outgrown {state.MAX_MB} MB")
        verdict = await grading.run_tests(self.terminal_task(episode.task), episode.state.archive, sandbox)
        extra = max(0, episode.n_turns - self.free_turns)
        value = max(0.0, verdict.value - self.turn_cost * extra) if verdict.value > 0 else verdict.value
        return Reward(value, verdict.value >= 1, self.name, self.version, verdict.detail)

    def demonstrator(self, rng: random.Random, task: Task) -> Policy:
        return teacher.Teacher(rng, task)

    def gold(self, task: Task) -> list[str]:
        return teacher.solution(task)

    async def _prepare(self, episode: Episode) -> None:
        if episode.state.ready:
            return
        task = self.terminal_task(episode.task)
        if task.image_workdir is not None:
            await state.start_from_image(episode.sandbox, task.image_workdir)
        for name, data in task.start.items():
            await episode.sandbox.write_file(f"{WORKDIR}/{name}", data)
        episode.state.ready = True

    def _refused(self, why: str) -> Reward:
        return Reward(0.0, False, self.name, self.version, {"failure": why})


class TerminalAgentLarge(TerminalAgent):
    """For real models: the task directories in ``tasks``, in Harbor's or Terminal-Bench's format. Reward: the tests' verdict.

    Each task runs in its own image; one without an image runs on any provider. ``image`` chooses those that have it, and ""
    those that have none.
    ``network`` opens the network, which only Docker and Podman can.
    """

    max_turns = 50
    max_turn_tokens = 4096
    max_tokens = 65_536
    max_seconds = 3600.0
    tool_timeout_s = 660.0
    strict_calls = False
    grades_truncated = True
    turn_cost = 0.0
    command_timeout_s = 600.0
    shell = "bash"
    tokenizer_hints = None
    # Nobody wrote demonstrations of a user's tasks.
    demonstrator = Environment.demonstrator

    def __init__(
        self, tasks: Path = SHIPPED, image: str | None = None, network: bool = False, memory_mb: int = 2048, cpus: float = 1.0
    ) -> None:
        read = {path.name: directory.read_task(path) for path in directory.task_directories(tasks)}
        images = sorted({task.image or "" for task in read.values()})
        if image is not None and image not in images:
            raise UsageError(f"No task in {tasks} has the image {image!r}; they have {', '.join(map(repr, images))}.")
        self._read = {name: task for name, task in read.items() if image is None or (task.image or "") == image}
        self._heldout = heldout_names(self._read)
        self.sandbox = SandboxSpec(memory_mb=memory_mb, pids=256, cpus=cpus, workspace_mb=512, tmp_mb=512, network=network)
        self.network = network
        self.grade_timeout_s = max(task.test_timeout_s for task in self._read.values()) + 2 * state.TIMEOUT_S

    def sandbox_for(self, task: Task) -> SandboxSpec:
        assert self.sandbox is not None
        image = self._read[task.id].image
        return self.sandbox if image is None else replace(self.sandbox, image=image)

    def generate(self, split: str, seed: int) -> Iterator[Task]:
        names = sorted(name for name in self._read if (name in self._heldout) == (split == "heldout"))
        random.Random(f"terminal_agent/{seed}").shuffle(names)
        return (Task(name, {"instruction": self._read[name].instruction}, split) for name in names)

    @property
    def is_repeatable(self) -> bool:
        return not self.network

    async def setup(self, episode: Episode) -> None:
        await super().setup(episode)
        # What a command does to the world beyond an open network, no second run undoes.
        episode.retryable = episode.retryable and not self.network

    def terminal_task(self, task: Task) -> TerminalTask:
        return self._read[task.id]

    def messages(self, task: Task) -> list[Message]:
        instruction = (
            f"Do the task with the bash tool. You are in {WORKDIR}, without root's rights. "
            "Say that you are done, without a call, when it is finished."
        )
        return [Message("system", instruction), Message("user", task.payload["instruction"])]

    async def respond(self, episode: Episode, text: str) -> Done:
        return Done()

    def earns(self, episode: Episode) -> bool:
        """Tests judge what was done in time, as both formats have it."""
        return episode.ended is not None and not episode.ended.is_error()

    def gold(self, task: Task) -> list[str]:
        terminal_task = self._read[task.id]
        if not terminal_task.solution:
            raise UsageError(f"Task {task.id!r} brings no solution.")
        return [tool_call("bash", command=terminal_task.gold_command()), "The task is done."]


def heldout_names(names: Iterable[str]) -> frozenset[str]:
    """A fifth of the tasks, chosen by a hash of their names, and at least one of several."""
    ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    return frozenset(ranked[: max(round(HELDOUT_SHARE * len(ranked)), int(len(ranked) > 1))])
