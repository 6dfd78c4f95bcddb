"""Checks of output."""

from __future__ import annotations

from sandboxes.contract import ExecResult, Sandbox
from sandboxes.self_check.expectations import expect, python


async def output_is_any_bytes(sandbox: Sandbox) -> None:
    result = await python(sandbox, "import os\nos.write(1, bytes(range(256)) * 40)\nos.write(2, b'\\x96\\xff\\x00')")
    expect(result.stdout == bytes(range(256)) * 40 and result.stderr == b"\x96\xff\x00", "the same bytes", result)
    expect("\ufffd" in ExecResult(0, b"\xff", b"").text, "undecodable bytes replaced in the text")


async def output_is_bounded_with_exact_totals(sandbox: Sandbox) -> None:
    for size in (9_999, 10_000, 10_001, 5_000_000):
        result = await sandbox.run_python(f"import sys\nsys.stdout.write('a' + 'x' * {size - 2} + 'z')", max_output=10_000)
        expect(result.total_stdout == size, f"a total of {size}", result.total_stdout)
        expect(result.truncated == (size > 10_000), "a truncation flag", result.truncated)
        expect(result.stdout[:1] + result.stdout[-1:] == b"az", "both ends", result.stdout[-50:])
        expect(len(result.stdout) <= 10_064, "bounded output", len(result.stdout))
        if size > 10_000:
            expect(b"%d bytes omitted" % (size - 10_000) in result.stdout, "a mark that counts", result.stdout[4990:5060])


async def a_flood_of_output_stays_outside_of_memory(sandbox: Sandbox) -> None:
    flood = "import os\nblock = b'x' * 65536\nfor _ in range(3200):\n    os.write(1, block)\nos.write(2, b'end')"
    result = await sandbox.run_python(flood, timeout=60)
    expect(result.total_stdout == 3200 * 65536 and result.stderr == b"end", "200 MB counted", result.total_stdout)
    expect(len(result.stdout) < 70_000, "64 kB kept", len(result.stdout))
