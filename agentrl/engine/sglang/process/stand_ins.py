"""What SGLang imports from packages that only exist for GPUs, on a machine that has none.

SGLang 0.5.23 imports ``triton``, ``torchvision`` and ``sgl_kernel`` without asking, then computes with torch on the CPU. Here
those names answer with inert objects, one real function, and an error for every kernel that is actually called. An installed
package always comes first.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from typing import Any

ABSENT = ("triton", "torchvision", "sgl_kernel")
KERNELS = "sgl_kernel"
KERNEL_MODULES = (KERNELS, "sgl_kernel.mamba")
"""For other modules below `KERNELS` SGLang has fall-backs that rely on the ImportError."""


class Inert:
    """Answers calls, attributes, indices and ``|``; as a decorator it hands the function back."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorates else Inert()

    def __getitem__(self, key: Any) -> Inert:
        return self

    def __or__(self, other: Any) -> Inert:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)


class NoDriver:
    """Like triton's on a machine without a GPU."""

    @property
    def active(self) -> Any:
        raise RuntimeError("0 active drivers ([]). There should only be one.")


class AbsentModule(types.ModuleType):
    """Any attribute is there: a class by a capital letter, a refusing function in the kernels, else something inert."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self._make(name)
        setattr(self, name, made)
        return made

    def _make(self, name: str) -> Any:
        if self.__name__ in KERNEL_MODULES:
            qualified = f"{self.__name__}.{name}"

            def refuse(*args: Any, **kwargs: Any) -> Any:
                raise NotImplementedError(f"{qualified} needs SGLang's compiled kernels, which this machine does not have")

            return refuse
        return type(name, (Inert,), {}) if name[:1].isupper() else Inert()


class AbsentFinder(MetaPathFinder, Loader):
    """Comes last on the path, so it is asked only for what is not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root = name.partition(".")[0]
        if root not in ABSENT or (root == KERNELS and name not in KERNEL_MODULES):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        for name, value in _real(module.__name__).items():
            setattr(module, name, value)


def _real(module: str) -> dict[str, Any]:
    """What is used for its result, by module."""
    if module == "triton":
        return {
            "__version__": "3.0.0",
            "cdiv": lambda a, b: -(a // -b),
            "next_power_of_2": lambda n: 1 << max(n - 1, 0).bit_length(),
            "runtime": importlib.import_module("triton.runtime"),
        }
    if module == "triton.runtime":
        return {"driver": NoDriver()}
    if module == "torchvision":
        return {"__version__": "0.0.0"}
    if module == KERNELS:
        return {"assign_req_to_token_pool_cpu": assign_slots}
    return {}


def assign_slots(requests: Any, table: Any, starts: Any, ends: Any, slots: Any, width: int) -> None:
    """Row ``requests[i]`` of ``table`` gets the next slots at positions starts[i] to ends[i]."""
    taken = 0
    for row, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start


def install() -> None:
    """Once a process, before anything of SGLang is imported."""
    import torch.utils._triton  # noqa: F401 - torch must find out by itself that there is no triton
    import transformers.utils.import_utils as transformers_imports

    transformers_imports.is_torchvision_available = lambda *args, **kwargs: False
    sys.meta_path.append(AbsentFinder())
