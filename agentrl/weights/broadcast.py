"""Weights over a process group: rank 0 is the trainer, all others are ranks of engines in other processes.

The group stands beside the trainer's own default group. Engines that use PyTorch join with the same address, name and backend.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def free_port(host: str) -> int:
    """A port on which nothing listens at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def own_address(peer: str, port: int) -> str:
    """The address under which a process on ``peer`` reaches this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, port))  # chooses a route; a datagram socket sends nothing
        return str(probe.getsockname()[0])


class BroadcastGroup:
    """A group of ``world_size`` ranks in which this process is rank 0."""

    def __init__(self, name: str, backend: str, world_size: int) -> None:
        self.name, self.backend, self.world_size = name, backend, world_size
        self._group: dist.ProcessGroup | None = None

    def join(self, host: str, port: int, timeout_s: float) -> None:
        """Blocks until all ranks have joined at ``host:port``, where this process listens."""
        timeout = timedelta(seconds=timeout_s)
        store, _, _ = next(c10d.rendezvous(f"tcp://{host}:{port}", 0, self.world_size, timeout=timeout))
        store.set_timeout(timeout)
        # Public calls would make it a part of the default group, which belongs to the trainer's ranks alone.
        group, _ = c10d._new_process_group_helper(
            self.world_size, 0, [], c10d.Backend(self.backend), c10d.PrefixStore(self.name, store),
            group_name=c10d.GroupName(self.name), timeout=timeout,
        )  # fmt: skip
        c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(self.world_size)}
        self._group = group

    def send(self, tensors: Iterable[torch.Tensor]) -> None:
        """Each tensor to all other ranks, in this order; returns when the last one is out."""
        assert self._group is not None, "join first"
        device = "cuda" if self.backend == "nccl" else "cpu"
        for tensor in tensors:
            dist.broadcast(tensor.detach().to(device).contiguous(), src=0, group=self._group)
        if device == "cuda":
            torch.cuda.synchronize()

    def leave(self) -> None:
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None
