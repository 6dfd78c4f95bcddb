"""Which Docker daemon the tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def podman_url() -> str:
    """Podman's socket to test against; skips where none is named."""
    url = os.environ.get("AGENTRL_TEST_PODMAN")
    if not url:
        pytest.skip("AGENTRL_TEST_PODMAN names no socket; start one with scripts/start-podman.sh")
    return url


def docker_url() -> str:
    """The daemon to test against; skips where there is none."""
    url = os.environ.get("AGENTRL_TEST_DOCKER") or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if url.startswith("unix://") and not Path(url.removeprefix("unix://")).is_socket():
        pytest.skip(f"no Docker daemon at {url}; start one with scripts/start-docker.sh")
    return url
