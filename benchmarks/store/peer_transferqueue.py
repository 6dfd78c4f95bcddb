"""A child with TransferQueue: Ray actors hold the data in memory, nothing is durable."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.report import timed
from benchmarks.store.payload import trajectory
from benchmarks.store.peer_trinity import dense

_PARTITION = "train"
_LOGICAL_CPUS = 16
"""With as few as this machine may have, its actors wait for each other for ever."""


class TransferQueue:
    def __init__(self, number: int, n: int) -> None:
        import torch

        self.ray = importlib.import_module("ray")
        self.ray.init(num_cpus=_LOGICAL_CPUS, include_dashboard=False, object_store_memory=300 * 2**20)
        self.queue = importlib.import_module("transfer_queue")
        self.queue.init()
        self.keys = [f"trajectory-{seed}" for seed in range(n)]
        self.fields = []
        for seed in range(n):
            segments = trajectory(seed)
            ids, logprobs, mask = dense(segments)
            text = "".join(s.observation_text + s.action_text for s in segments)
            arrays = {"ids": torch.from_numpy(ids), "logprobs": torch.from_numpy(logprobs), "mask": torch.from_numpy(mask)}
            self.fields.append({**arrays, "text": text})

    def write(self) -> dict[str, float]:
        def work() -> None:
            for key, fields in zip(self.keys, self.fields, strict=True):
                self.queue.kv_put(key=key, partition_id=_PARTITION, fields=fields, tag={"version": 0})

        return asdict(timed(work))

    def read(self) -> dict[str, float]:
        """Get all, then clear them, which is the acknowledgement."""

        def work() -> None:
            found = self.queue.kv_batch_get(keys=self.keys, partition_id=_PARTITION)
            assert len(found["ids"].unbind()) == len(self.keys)
            self.queue.kv_clear(keys=self.keys, partition_id=_PARTITION)

        return asdict(timed(work))

    def close(self) -> None:
        self.queue.close()
        self.ray.shutdown()


def commands(**setup: Any) -> Mapping[str, Callable[..., Any]]:
    setup.pop("url")
    queue = TransferQueue(**setup)
    return {name: getattr(queue, name) for name in ("write", "read", "close")}
