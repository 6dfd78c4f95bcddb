"""Every provider passes the public self-check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandboxes.contract import Provider, Sandbox
from sandboxes.self_check import CHECK_SPEC, PROVIDER_CHECKS, SANDBOX_CHECKS, ProviderCheck, SandboxCheck, applies

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("check", SANDBOX_CHECKS, ids=lambda check: check.__name__)
async def test_sandbox(check: SandboxCheck, provider: Provider, sandbox: Sandbox) -> None:
    if not applies(check, provider.capabilities):
        pytest.skip("the provider claims no such limit on this machine")
    await check(sandbox)


@pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=lambda check: check.__name__)
async def test_provider(check: ProviderCheck, provider: Provider) -> None:
    await check(provider, CHECK_SPEC)


OWN = """
from sandboxes.local import UnsafeLocal
class Forgetful(UnsafeLocal):
    async def digest(self, spec):
        self.calls = getattr(self, "calls", 0) + 1
        return str(self.calls)
"""


async def test_check_of_ones_own_provider__names_what_fails_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    command = [sys.executable, "-m", "agentrl.cli.main", "sandbox", "check", "--provider", f"{tmp_path}/mine.py:Forgetful"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert ran.returncode == 1, ran.stdout + ran.stderr
    failed = [line for line in ran.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1
    assert "the_digest_is_stable: expected: one digest; seen: '1'" in failed[0]
    assert ran.stdout.count("\nok ") > 15
    assert ran.stdout.endswith("1 failed\n")
