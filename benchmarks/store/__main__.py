"""``python -m benchmarks.store [NAME ...] [--quick] [--url URL] [--peers-python PATH]``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.runner import given, module, report
from benchmarks.store.context import Context
from benchmarks.store.server import describe, server

MEASUREMENTS = {
    "writes": "fenced segment writes against raw COPY",
    "claims": "claim, read and acknowledge with 1,000 and 100,000 stored trajectories, and under a pinned transaction",
    "peers": "client CPU against Trinity-RFT and TransferQueue",
    "sizes": "stored bytes against two JSON layouts",
    "memory": "client memory for a 500,000-token trajectory",
    "many": "4,096 open episodes from 8 processes",
    "pages": "pages of the viewer over 100,000 stored trajectories",
    "saturation": "where one Postgres saturates",
}


def main(arguments: Sequence[str] | None = None) -> int:
    asked = given("store", MEASUREMENTS, arguments, peers=True, options=_options)
    with server(asked.url) as url:
        print(describe(url), flush=True)
        context = Context(url, asked.quick, asked.peers_python)
        return report(asked.names, lambda name: module("store", name).measure(context), asked.quick)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="a server on which a database may be created and dropped (default: a private server)")


if __name__ == "__main__":
    sys.exit(main())
