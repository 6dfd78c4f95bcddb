"""How checks say what they expect."""

from __future__ import annotations

from sandboxes.contract import ExecResult, Sandbox


class CheckFailed(AssertionError):
    """A provider does not do what it must."""


def expect(condition: object, what: str, seen: object = None) -> None:
    """`CheckFailed` saying what was expected and what was seen instead."""
    if not condition:
        raise CheckFailed(f"expected: {what}; seen: {seen!r:.1500}")


async def python(sandbox: Sandbox, code: str, *, timeout: float = 30.0) -> ExecResult:
    """Run code that must succeed."""
    result = await sandbox.run_python(code, timeout=timeout)
    expect(result.exit_code == 0, f"code that ends well: {code:.200}", result)
    return result


async def processes(sandbox: Sandbox) -> int:
    """How many processes a command sees beside itself and its shell."""
    result = await python(sandbox, "import os\nprint(sum(n.isdigit() for n in os.listdir('/proc')))")
    return int(result.text)
