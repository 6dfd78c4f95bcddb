"""Each provider once a session, one shared sandbox of each, and a check after every test that nothing of it is left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from sandboxes.contract import Provider, Sandbox
from sandboxes.handle import Handle
from sandboxes.self_check import CHECK_SPEC
from tests.contract.sandbox.daemon import Daemon, docker_url
from tests.contract.sandbox.providers import ISOLATED, provider_called


@pytest_asyncio.fixture(loop_scope="session", scope="session", params=ISOLATED)
async def provider(request: pytest.FixtureRequest) -> Provider:
    return await provider_called(request.param)


class Shared:
    """The sandbox that the tests of one provider use in turn."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.sandbox: Sandbox | None = None

    async def get(self) -> Sandbox:
        if self.sandbox is None:
            self.sandbox = await self.provider.create(CHECK_SPEC)
        return self.sandbox

    async def drop(self) -> None:
        if self.sandbox is not None:
            await self.provider.destroy(self.sandbox)
            self.sandbox = None


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def shared(provider: Provider) -> AsyncIterator[Shared]:
    shared = Shared(provider)
    yield shared
    await shared.drop()


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(shared: Shared) -> AsyncIterator[Sandbox]:
    """A clean sandbox; after the test the next command must work and the next reset must be certain."""
    used = await shared.get()
    try:
        yield used
        victim = await used.run_python("import json, os\nprint(json.dumps([6 * 7, len(os.listdir('/proc/self/fd'))]))")
        assert victim.stdout == b"[42, 4]\n", victim
        assert isinstance(used, Handle)
        assert await used.reset() == [], "doubts"
    except BaseException:
        await shared.drop()
        raise


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """A Docker daemon that a test may end, as long as it starts it again."""
    docker_url()  # skips where there is no Docker to test with
    if os.geteuid() != 0:
        pytest.skip("a daemon needs root")
    daemon = Daemon()
    daemon.start()
    yield daemon
    daemon.kill()
    daemon.remove()
