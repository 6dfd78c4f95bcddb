"""Lets megatron-core 0.16.1 run on a machine without CUDA.

megatron-core names the device in literals (``device="cuda"``), asks `torch.cuda.current_device` and compares `Tensor.type()`
with CUDA type names. Inside `megatron_device()` these mean the CPU; outside nothing is changed, and with CUDA present the
context does nothing at all. While `Tensor.backward` runs torch suspends function modes, so a device literal inside a backward
would not be caught; none is met with the attention of this package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_TENSOR_TYPE = torch.Tensor.type
_MEGATRON_FILES = os.path.join("", "megatron", "core", "")


class _CudaMeansCpu(TorchFunctionMode):
    """Reads ``device="cuda"`` as the CPU, and answers megatron-core's ``Tensor.type()`` with the CUDA name it expects."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        elif "device" in kwargs and not isinstance(kwargs["device"], int) and str(kwargs["device"]).startswith("cuda"):
            kwargs["device"] = "cpu"
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
    current_device = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    try:
        with _CudaMeansCpu():
            yield
    finally:
        torch.cuda.current_device = current_device


def training_device() -> torch.device:
    """The device that this process trains on."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
