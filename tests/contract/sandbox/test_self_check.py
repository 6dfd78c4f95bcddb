"""Every provider passes the public self-check."""

from __future__ import annotations

import pytest

from sandboxes.contract import Provider, Sandbox
from sandboxes.local import UnsafeLocal
from sandboxes.self_check import CHECK_SPEC, PROVIDER_CHECKS, SANDBOX_CHECKS, ProviderCheck, SandboxCheck, applies, run_checks

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("check", SANDBOX_CHECKS, ids=lambda check: check.__name__)
async def test_sandbox(check: SandboxCheck, provider: Provider, sandbox: Sandbox) -> None:
    if not applies(check, provider.capabilities):
        pytest.skip("the provider claims no such limit on this machine")
    await check(sandbox)


@pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=lambda check: check.__name__)
async def test_provider(check: ProviderCheck, provider: Provider) -> None:
    await check(provider, CHECK_SPEC)


async def test_unsafe_local_self_check__passes_what_it_claims() -> None:
    lines: list[str] = []
    failed = await run_checks(UnsafeLocal(), lines.append)
    assert failed == 0, "\n".join(lines)
