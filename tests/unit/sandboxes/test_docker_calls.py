"""What the provider does while the daemon is slow; the daemon is played here."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest
import requests

from sandboxes.contract import SandboxSpec, SandboxUnavailable
from sandboxes.docker import Docker
from sandboxes.engine import Daemon
from sandboxes.ownership import OWNER_LABEL

KNOWN = SandboxSpec(image="known")


class SlowDaemon:
    """Pulls end when ``pulled`` is set; a creation is never answered, and done only by `catch_up`."""

    def __init__(self) -> None:
        self.pulled = threading.Event()
        self.pulls = 0
        self.asked: list[dict[str, Any]] = []
        self.containers: dict[str, dict[str, Any]] = {}
        self.answers = threading.Event()
        self.answers.set()
        self.images = SimpleNamespace(get=self._get, pull=self._pull)
        self.api = SimpleNamespace(
            create_host_config=lambda **options: options,
            create_container=self._create,
            remove_container=self._remove,
            containers=lambda **options: list(self.containers.values()),
        )

    def catch_up(self) -> None:
        for asked in self.asked:
            name = asked["name"]
            self.containers[name] = {"Id": name, "Names": [f"/{name}"], "Labels": asked["labels"]}

    def _get(self, name: str) -> SimpleNamespace:
        if name.startswith("slow"):
            raise docker.errors.ImageNotFound(name)
        return SimpleNamespace(id=f"sha256:{name}")

    def _pull(self, name: str, tag: str) -> SimpleNamespace:
        self.pulls += 1
        assert self.pulled.wait(60)
        return SimpleNamespace(id=f"sha256:{name}")

    def _create(self, **options: Any) -> None:
        self.asked.append(options)
        assert self.answers.wait(60)
        raise requests.ReadTimeout("no answer")

    def _remove(self, container: str, **options: Any) -> None:
        if self.containers.pop(container, None) is None:
            raise docker.errors.NotFound(container, SimpleNamespace(status_code=404))  # type: ignore[arg-type]


def provider_of(daemon: SlowDaemon, threads: int = 2) -> Docker:
    return Docker("docker", Daemon(daemon, "unix:///played", "1", False), ThreadPoolExecutor(threads))  # type: ignore[arg-type]


async def test_pull__never_holds_up_a_start_or_a_removal() -> None:
    daemon = SlowDaemon()
    provider = provider_of(daemon)
    await provider.digest(KNOWN)
    pulling = [asyncio.ensure_future(provider.digest(SandboxSpec(image=f"slow{number}"))) for number in range(50)]
    try:
        while not daemon.pulls:
            await asyncio.sleep(0)
        creating = asyncio.ensure_future(provider.create(KNOWN))
        await asyncio.wait([creating], timeout=10)
        assert isinstance(creating.exception(), SandboxUnavailable), "the daemon was asked, and said no"
    finally:
        daemon.pulled.set()
        await asyncio.gather(*pulling)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_container_made_after_its_creation_was_given_up__is_swept(cancelled: bool) -> None:
    daemon = SlowDaemon()
    provider = provider_of(daemon)
    daemon.answers.clear()
    creating = asyncio.ensure_future(provider.create(KNOWN))
    while not daemon.asked:
        await asyncio.sleep(0)
    if cancelled:
        creating.cancel()
        await asyncio.sleep(0)
    daemon.answers.set()
    with pytest.raises(asyncio.CancelledError if cancelled else SandboxUnavailable):
        await creating
    assert await provider.sweep() == 0, "it is not there yet"
    daemon.catch_up()
    other = {"Id": "other", "Names": ["/other"], "Labels": daemon.asked[0]["labels"]}
    daemon.containers["other"] = other
    assert OWNER_LABEL in other["Labels"]
    assert await provider.sweep() == 1
    assert list(daemon.containers) == ["other"], "one that is in use stays"
