"""A model with its optimizer to and from a folder of megatron's sharded files, written at one layout and read at another.

Everything is copied first, then a thread writes it while training goes on. megatron-core 0.16.1 would fork writers out of this
process, with its lease and database threads, and start another one to collect their results; the queues handed to it here make
that a matter of one thread.

Adam's moments are stored under the names of their weights, whichever optimizer holds them, so that a checkpoint of sharded
optimizers is read by a whole one and the other way round (megatron's own formats differ, and its distributed optimizer can't
read its files back without Transformer Engine or Apex).
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, make_sharded_optimizer_tensor
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer

from agentrl.trainer.megatron.cpu import megatron_device
from agentrl.trainer.megatron.moments import MOMENTS, put_moments, take_moments


@dataclass
class Writing:
    """Files that a thread of every rank is writing into ``folder``. `finish` must be called on all ranks."""

    folder: Path
    _request: AsyncRequest
    _buckets: list[Any]
    _transforms: list[Any]
    _results: queue.Queue[Any]
    _hashes: dict[str, str] = field(default_factory=dict)
    _thread: Thread | None = None

    def start(self) -> None:
        self._thread = Thread(target=self._write, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def written(self) -> bool:
        """Whether this rank's files are on disk (or writing them failed, which `finish` raises)."""
        return self._thread is None or not self._thread.is_alive()

    def finish(self) -> Mapping[str, str]:
        """Wait for all ranks; sha256 of every file by its name in the folder, on every rank. Raises what a write raised."""
        if self._thread is not None:
            self._thread.join()
        with megatron_device(), _quiet():
            for complete in self._request.finalize_fns:
                complete()
        ranks = dist.get_world_size()
        everyone = [self._hashes] * ranks
        if ranks > 1:
            dist.all_gather_object(everyone, self._hashes)
        hashes = {name: digest for own in everyone for name, digest in own.items()}
        if dist.get_rank() == 0:  # what no thread wrote: megatron's description of the whole
            hashes |= {path.name: file_hash(path) for path in self.folder.iterdir() if path.name not in hashes}
        found = [hashes]
        if ranks > 1:
            dist.broadcast_object_list(found, src=0)
        return found[0]

    def _write(self) -> None:
        local: queue.Queue[Any] = queue.Queue()
        count: queue.Queue[int] = queue.Queue()
        results: dict[int, Any] = {}
        for number, bucket in enumerate(self._buckets):
            count.put(number)
            filesystem_async.FileSystemWriterAsync.write_preloaded_data(self._transforms, number, bucket, local, count, True)
            _, outcome = local.get()
            if isinstance(outcome, Exception):
                self._results.put(outcome)
                return
            results[number] = outcome
            self._hashes[bucket[1]] = file_hash(Path(bucket[0]))
        self._results.put(results)


def start_writing(module: GPTModel, optimizer: MegatronOptimizer, folder: Path) -> Writing:
    """Copy the state and write it in the background. All ranks call it, with a folder that is empty or does not exist yet."""
    results: queue.Queue[Any] = queue.Queue()
    filesystem_async._results_queue = results
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
    if dist.get_world_size() > 1:
        dist.barrier()
    with megatron_device(), _quiet():
        state = _sharded(module, optimizer)
        request = dist_checkpointing.save(
            state, str(folder), TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1), async_sharded_save=True
        )
        buckets, transforms = (request.async_fn_args[1], request.async_fn.args[0]) if request.async_fn else ([], [])
        # On the CPU nothing has been copied yet, and the next update would change what is being written.
        copies = [
            (path, name, (plain, [(item, t.to("cpu", copy=True)) for item, t in tensors]))
            for path, name, (plain, tensors) in buckets
        ]
    writing = Writing(folder, request, copies, transforms, results)
    writing.start()
    return writing


def read(module: GPTModel, optimizer: MegatronOptimizer, folder: Path) -> None:
    """Load what `start_writing` wrote, into any layout of the same model. Raises megatron's `CheckpointingException`."""
    with megatron_device(), _quiet(), torch.no_grad():
        state = dist_checkpointing.load(_sharded(module, optimizer), str(folder))
        module.load_state_dict(state["module"])
        put_moments(module, optimizer, state["adam"], int(state["step"]))


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sharded(module: GPTModel, optimizer: MegatronOptimizer) -> dict[str, Any]:
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    weights = module.sharded_state_dict(metadata={"dp_cp_group": group})
    moments, step = take_moments(module, optimizer)
    of_parameter = get_param_id_to_sharded_param_map(weights, (own.parameter for own in moments.values()))
    adam = {
        kind: {
            name: make_sharded_optimizer_tensor(of_parameter[number], getattr(own, kind), f"adam.{kind}")
            for number, (name, own) in enumerate(moments.items())
        }
        for kind in MOMENTS
    }
    return {"module": weights, "adam": adam, "step": step}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
