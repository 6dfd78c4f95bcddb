"""Which Docker daemon the tests use, and one of their own that they may end."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

START = Path(__file__).parents[3] / "scripts" / "start-docker.sh"


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


class Daemon:
    """A private daemon, on a bridge of its own where the machine can make one; ``no_bridge`` says why it has none."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="agentrl-daemon-", dir="/tmp"))
        self.url = f"unix://{self.folder}/docker.sock"
        self.bridge = f"agentrl-{secrets.token_hex(3)}"
        self.address = f"10.{secrets.randbelow(55) + 200}.{secrets.randbelow(256)}.1"
        """Of this host on the bridge."""
        self.no_bridge = self._make_bridge()

    def start(self) -> None:
        try:
            self._start()
        except subprocess.CalledProcessError as error:
            if self.no_bridge:
                raise
            self.no_bridge = f"a Docker daemon does not start on a bridge: {error.stderr.decode(errors='replace')[-500:]}"
            self._start()

    def kill(self) -> None:
        pid = int((self.folder / "docker.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        give_up = time.monotonic() + 60
        while alive(pid):
            assert time.monotonic() < give_up, "the daemon did not end"
            time.sleep(0.05)

    def remove(self) -> None:
        os.kill(int((self.folder / "exec/containerd/containerd.pid").read_text()), signal.SIGTERM)
        subprocess.run(["umount", "--lazy", self.folder / "data"], capture_output=True)  # containerd takes its time to end
        subprocess.Popen(["rm", "-rf", self.folder])  # some ten thousand files; nobody waits for that
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True)

    def _start(self) -> None:
        bridge = "none" if self.no_bridge else self.bridge
        environment = {**os.environ, "AGENTRL_DOCKER_BRIDGE": bridge}
        subprocess.run([START, self.folder], check=True, capture_output=True, env=environment)

    def _make_bridge(self) -> str:
        pair = f"v{secrets.token_hex(3)}"  # as the daemon makes one for each container
        for command in (
            f"link add {pair}a type veth peer name {pair}b",
            f"link delete {pair}a",
            f"link add {self.bridge} type bridge",
            f"addr add {self.address}/24 dev {self.bridge}",
            f"link set {self.bridge} up",
        ):
            try:
                subprocess.run(["ip", *command.split()], check=True, capture_output=True)
            except FileNotFoundError:
                return "no bridge can be made here: there is no command ip (iproute2)"
            except subprocess.CalledProcessError as error:
                return f"no bridge can be made here: ip {command}: {error.stderr.decode(errors='replace').strip()}"
        return ""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False
