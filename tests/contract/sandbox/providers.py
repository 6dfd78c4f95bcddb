"""The providers that the tests run on, by name."""

from __future__ import annotations

import pytest

from sandboxes.bubblewrap import Bubblewrap
from sandboxes.contract import Provider
from sandboxes.docker import Docker
from sandboxes.local import UnsafeLocal
from tests.contract.sandbox.daemon import docker_url, podman_url

ISOLATED = ["bubblewrap", pytest.param("docker", marks=pytest.mark.docker), pytest.param("podman", marks=pytest.mark.docker)]
"""As parameters of a fixture."""

ALL = ["local", *ISOLATED]
"""The unsafe one, too: nothing that attacks may run on it."""


async def provider_called(name: str) -> Provider:
    """Skips where there is no daemon for it."""
    if name == "docker":
        return await Docker.connect(url=docker_url())
    if name == "podman":
        return await Docker.connect("podman", podman_url())
    return UnsafeLocal() if name == "local" else Bubblewrap()
