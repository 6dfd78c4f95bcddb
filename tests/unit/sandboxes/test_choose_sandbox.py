"""The order of providers, and what people are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes import choose as choose_module
from sandboxes.choose import choose
from sandboxes.contract import Capabilities, Provider, Sandbox, SandboxSpec, SandboxUnavailable
from sandboxes.local import UnsafeLocal


class Stub:
    """A provider that starts, or says why not."""

    capabilities = Capabilities(True, True, True, True, True, True)

    def __init__(self, name: str, refusal: str | None) -> None:
        self.name = name
        self.refusal = refusal
        self.alive = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if self.refusal:
            raise SandboxUnavailable(self.refusal)
        self.alive += 1
        return object()  # type: ignore[return-value]

    async def destroy(self, sandbox: Sandbox) -> None:
        self.alive -= 1

    async def reset(self, sandbox: Sandbox) -> bool:
        return True

    async def digest(self, spec: SandboxSpec) -> str:
        return self.name

    async def sweep(self) -> int:
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Stub | str]:
    """What each provider is here: a stub, or why it can't be opened."""
    offered: dict[str, Stub | str] = dict.fromkeys(choose_module.ORDER, "not here")

    async def open_(name: str) -> tuple[Provider, str]:
        found = offered[name]
        if isinstance(found, str):
            raise SandboxUnavailable(found)
        return found, f"version 1 of {name}"

    monkeypatch.setattr(choose_module, "_open", open_)
    return offered


async def test_docker_is_there__is_taken(machine: dict[str, Stub | str]) -> None:
    machine["docker"], machine["bubblewrap"] = Stub("docker", None), Stub("bubblewrap", None)
    provider, reason = await choose()
    assert provider is machine["docker"]
    assert reason == "docker: version 1 of docker"


async def test_docker_answers_but_cannot_start__the_next_is_taken_and_both_are_told(machine: dict[str, Stub | str]) -> None:
    bubblewrap = Stub("bubblewrap", None)
    machine["docker"], machine["bubblewrap"] = Stub("docker", "no control groups"), bubblewrap
    provider, reason = await choose()
    assert provider is bubblewrap
    assert "docker: no control groups" in reason
    assert "podman: not here" in reason
    assert bubblewrap.alive == 0


async def test_nothing_is_there__says_what_to_install(machine: dict[str, Stub | str]) -> None:
    with pytest.raises(SandboxUnavailable, match=r"docker: not here.*podman: not here.*install-bubblewrap\.sh"):
        await choose()


async def test_preference__is_not_replaced(machine: dict[str, Stub | str]) -> None:
    machine["bubblewrap"] = Stub("bubblewrap", None)
    with pytest.raises(SandboxUnavailable, match="not here; without asking for docker, podman and bubblewrap are tried"):
        await choose("docker")
    with pytest.raises(ValueError, match="docker, podman, bubblewrap"):
        await choose("doker")


async def test_unsafe_local__only_when_asked_for(machine: dict[str, Stub | str]) -> None:
    provider, reason = await choose(unsafe_local=True)
    assert isinstance(provider, UnsafeLocal)
    assert "no isolation" in reason


OWN = """
from sandboxes.local import UnsafeLocal
async def make():
    return UnsafeLocal()
class Half:
    name = "half"
    async def create(self, spec): ...
def broken():
    raise RuntimeError("no credentials")
"""


async def test_own_provider__is_loaded_from_a_file_or_a_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    provider, reason = await choose(f"{tmp_path}/mine.py:make")
    assert isinstance(provider, UnsafeLocal)
    assert "asked for by name" in reason
    provider, _ = await choose("sandboxes.local:UnsafeLocal")
    assert isinstance(provider, UnsafeLocal)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("{}/mine.py:Half", "has no capabilities, reset, destroy, digest, sweep"),
        ("{}/mine.py:broken", "RuntimeError: no credentials"),
        ("{}/mine.py:missing", "missing"),
        ("{}/absent.py:X", "absent.py"),
        ("no_such_module:X", "no_such_module"),
    ],
)
async def test_own_provider_that_is_none__says_why(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    with pytest.raises(ValueError, match=told):
        await choose(name.format(tmp_path))
