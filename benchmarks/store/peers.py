"""Client CPU of writing and reading 32,000-token trajectories: the store against Trinity-RFT's SQL storage and TransferQueue.

All work on the same server, one process each, a round of one after a round of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.report import Row, Sample, at_most, interleaved
from benchmarks.store.context import Context
from benchmarks.store.floor import create_floor
from benchmarks.store.processes import Child, ChildFailed, children
from benchmarks.store.server import database

INSTALL = "pip install --no-deps -r benchmarks/store/requirements-peers.txt"
Times = dict[str, Sample]
THIRD = 0.333


def measure(context: Context) -> list[Row]:
    n = context.size(16, 2)
    missing: list[Row] = []
    with ExitStack() as stack:
        url, peer_url = (stack.enter_context(database(context.server)) for _ in range(2))
        create_floor(url)
        (own,) = stack.enter_context(children(1, "own", url=url, n=n))
        variants = {f"own {what}": command(own, what) for what in ("copy", "write", "turns", "together", "read")}
        for peer in ("trinity", "transferqueue"):
            child = Child(f"peer_{peer}", context.peers_python, number=0, url=peer_url, n=n)
            stack.callback(child.close)
            try:
                child.receive()
            except ChildFailed as e:
                missing.append(Row(f"client CPU against {peer}", "not measured", f"{peer} can't run here ({e}): {INSTALL}"))
            else:
                variants |= {f"{peer} {what}": command(child, what) for what in ("write", "read")}
        for run in variants.values():
            run()  # connections, prepared statements, lazy imports
        best = interleaved(context.size(9, 1), variants)
    return [*rows({name: Sample(s.wall / n, s.cpu / n) for name, s in best.items()}), *missing]


def command(child: Child, what: str) -> Callable[[], Sample]:
    return lambda: Sample(**child.ask(what))


def rows(best: Times) -> list[Row]:
    made = [
        Row("client CPU a trajectory: write, one commit", cpu(best["own write"]), f"floor, raw COPY: {cpu(best['own copy'])}",
            best["own write"].cpu / best["own copy"].cpu),
    ]  # fmt: skip
    if "trinity write" in best:
        made += against_trinity(best)
    if "transferqueue read" in best:
        made += against_transferqueue(best)
    return made


def against_trinity(best: Times) -> list[Row]:
    write, turns, together, read = (best[f"own {what}"] for what in ("write", "turns", "together", "read"))
    peer, peer_read = best["trinity write"], best["trinity read"]
    name = "Trinity-RFT SQL"
    return [
        at_most("the same", cpu(write), f"{name}: {cpu(peer)}", write.cpu / peer.cpu, THIRD),
        at_most("claim, tensors and acknowledge", cpu(read), f"{name} read: {cpu(peer_read)}", read.cpu / peer_read.cpu, 1),
        Row("write with one commit, and read", cpu(write, read), f"{name}: {cpu(peer, peer_read)}",
            (write.cpu + read.cpu) / (peer.cpu + peer_read.cpu)),
        at_most("write turn by turn, all episodes at once", cpu(together), f"{name}, 1 commit: {cpu(peer)}",
                together.cpu / peer.cpu, 1),
        at_most("write turn by turn, one episode after another: 31 commits", cpu(turns), f"{name}, 1 commit: {cpu(peer)}",
                turns.cpu / peer.cpu, 1),
    ]  # fmt: skip


def against_transferqueue(best: Times) -> list[Row]:
    read, peer = best["own read"], best["transferqueue read"]
    write, peer_write = best["own write"], best["transferqueue write"]
    return [
        Row(
            "claim, tensors and acknowledge",
            cpu(read),
            f"TransferQueue get and clear, in memory: {cpu(peer)}",
            read.cpu / peer.cpu,
        ),
        Row("write, one commit", cpu(write), f"TransferQueue put, in memory: {cpu(peer_write)}", write.cpu / peer_write.cpu),
    ]


def cpu(*samples: Sample) -> str:
    """Client CPU, and wall time behind it."""
    return f"{1e3 * sum(s.cpu for s in samples):.2f} ms (wall {1e3 * sum(s.wall for s in samples):.1f})"
