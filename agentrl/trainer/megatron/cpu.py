"""Lets megatron-core 0.16.1 run on a machine without CUDA.

megatron-core names the device in literals (``device="cuda"``), asks `torch.cuda.current_device`, calls `Tensor.cuda`, waits for
the device, keeps its random state and compares `Tensor.type()` with CUDA type names. Inside `megatron_device()` these
mean the CPU; outside nothing is changed, and with CUDA present the context does nothing at all. While `Tensor.backward` runs
torch suspends function modes, so a device literal inside a backward would not be caught; none is met with the attention of this
package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from megatron.core.tensor_parallel import random as megatron_random
from torch.overrides import TorchFunctionMode

_TENSOR_TYPE = torch.Tensor.type
_TENSOR_CUDA = torch.Tensor.cuda
_MEGATRON_FILES = os.path.join("", "megatron", "core", "")


_STAND_INS: Sequence[tuple[Any, str, Callable[..., Any]]] = (
    (torch.cuda, "current_device", lambda: torch.device("cpu")),
    (torch.cuda, "synchronize", lambda *unused, **also_unused: None),
    (megatron_random, "_get_cuda_rng_state", lambda *unused, **also_unused: torch.get_rng_state()),
    (megatron_random, "_set_cuda_rng_state", lambda state, *unused, **also_unused: torch.set_rng_state(state)),
)
"""Where, what, and what it means on the CPU."""


class _CudaMeansCpu(TorchFunctionMode):
    """Reads ``device="cuda"`` as the CPU, and answers megatron-core's ``Tensor.type()`` with the CUDA name it expects."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        elif "device" in kwargs and not isinstance(kwargs["device"], int) and str(kwargs["device"]).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is _TENSOR_CUDA:
            return args[0]
        result = func(*args, **kwargs)
        if func is _TENSOR_TYPE and isinstance(result, str) and _MEGATRON_FILES in sys._getframe(1).f_code.co_filename:
            return result.replace("torch.", "torch.cuda.", 1)
        return result


@contextmanager
def megatron_device() -> Iterator[None]:
    """Wrap every call into megatron-core with it. Nests; costs microseconds per torch call."""
    if torch.cuda.is_available():
        yield
        return
    with ExitStack() as stack:
        for owner, name, stand_in in _STAND_INS:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, stand_in)
        stack.enter_context(_CudaMeansCpu())
        yield


def training_device() -> torch.device:
    """The device that this process trains on."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
