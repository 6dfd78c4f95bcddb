"""``python -m sandboxes.self_check --provider bubblewrap``: the checks where nothing but this package is installed."""

from __future__ import annotations

import argparse
import asyncio
import sys

from sandboxes.choose import ORDER, choose
from sandboxes.self_check import run_checks


async def _main(arguments: argparse.Namespace) -> int:
    provider, reason = await choose(arguments.provider, unsafe_local=arguments.unsafe_local)
    print(reason)
    return 1 if await run_checks(provider) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Check a sandbox provider against the specification.")
    parser.add_argument("--provider", help=f"{', '.join(ORDER)}, or module:Class (default: the first that works here)")
    parser.add_argument("--unsafe-local", action="store_true", help="check the provider without isolation")
    sys.exit(asyncio.run(_main(parser.parse_args())))
