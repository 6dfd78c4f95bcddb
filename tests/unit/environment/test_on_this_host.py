"""An environment is tried with what a run would take here, and what was taken is given back."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.environment import Environment, Episode, Message, Task, tool, tool_call
from agentrl.environment.demonstrate import play
from agentrl.environment.on_this_host import pool_for, provider_for
from agentrl.errors import NotReadyError, UsageError
from sandboxes import choose
from sandboxes.contract import SandboxSpec, SandboxUnavailable
from sandboxes.local import UnsafeLocal


class Shell(Environment):
    sandbox = SandboxSpec()

    def messages(self, task: Task) -> list[Message]:
        return [Message("user", "go")]

    @tool(side_effects=False)
    async def python(self, episode: Episode, code: str) -> str:
        """Run code."""
        return (await episode.sandbox.run_python(code)).text

    async def reward(self, episode: Episode, sandbox: object) -> bool:
        return episode.turns[0].results[0].text == "42\n"


class Plain(Environment):
    """Needs none."""


async def chosen(preference: str | None, unsafe_local: bool) -> Any:
    if preference == "dokcer":
        raise ValueError("unknown sandbox provider 'dokcer'")
    if preference == "docker":
        raise SandboxUnavailable("no sandbox: no daemon")
    return UnsafeLocal(), "local: for this test"


async def test_pool_for__plays_an_environment_with_a_sandbox_and_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "choose", chosen)
    turns = [tool_call("python", code="print(6 * 7)"), "done"]
    async with pool_for(Shell()) as pool:
        assert pool is not None
        played = await play(Shell(), Task("one", {}, "train"), lambda episode: turns[episode.n_turns], pool)
        assert pool.metrics()["acquires"] == 1
    assert played.reward is not None
    assert played.reward.success is True
    with pytest.raises(SandboxUnavailable):
        async with pool.acquire(SandboxSpec(), timeout=1.0):
            raise AssertionError("a pool that was closed")


async def test_environment_without_a_sandbox__asks_for_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(choose, "choose")
    assert (await provider_for(Plain()))[0] is None
    async with pool_for(Plain()) as pool:
        assert pool is None


@pytest.mark.parametrize(("preference", "error"), [("dokcer", UsageError), ("docker", NotReadyError)])
async def test_provider_that_is_not_known_or_not_there__has_its_own_exit_code(
    preference: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "choose", chosen)
    with pytest.raises(error):
        await provider_for(Shell(), preference)
