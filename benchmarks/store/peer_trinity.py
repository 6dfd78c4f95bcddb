"""A child with Trinity-RFT's own SQL experience storage, called directly (its usual way adds a hop to a Ray actor).

Its package imports workflows, rewards and models that the storage does not use and that need a GPU stack: these are replaced by
empty modules, and so is ``datasets``.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from agentrl.types import Segment
from benchmarks.report import timed
from benchmarks.store.payload import trajectory

_EMPTY = ("datasets", "trinity.common.rewards", "trinity.common.workflows", "trinity.common.models")


class _EmptyModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for every name in `_EMPTY` and below."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == empty or name.startswith(f"{empty}.") for empty in _EMPTY):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Trinity:
    """One experience a trajectory: all ids, dense log-probs and action mask, and the texts as messages."""

    def __init__(self, number: int, url: str, n: int) -> None:
        os.environ.setdefault("TRINITY_LOG_LEVEL", "WARNING")
        sys.meta_path.insert(0, _Empty())
        config = importlib.import_module("trinity.common.config").StorageConfig(
            name="experience", storage_type="sql", path=url, schema_type="experience", batch_size=n
        )
        experience = importlib.import_module("trinity.common.experience")
        self.n = n
        self.experiences = [_experience(experience, seed, trajectory(seed)) for seed in range(n)]
        self.storage = importlib.import_module("trinity.buffer.storage.sql").SQLExperienceStorage(config)
        self.runner = asyncio.Runner()
        self.runner.run(self.storage.prepare())

    def write(self) -> dict[str, float]:
        """One commit each."""

        async def work() -> None:
            for one in self.experiences:
                await self.storage.write([one])

        return asdict(timed(lambda: self.runner.run(work())))

    def read(self) -> dict[str, float]:
        async def work() -> None:
            found = await self.storage.read(self.n)
            assert len(found) == self.n

        return asdict(timed(lambda: self.runner.run(work())))

    def close(self) -> None:
        self.runner.run(self.storage.engine.dispose())
        self.runner.close()


def _experience(module: Any, seed: int, segments: Sequence[Segment]) -> Any:
    import torch

    ids, logprobs, mask = dense(segments)
    first = segments[0].n_obs
    texts = [("user", s.observation_text) for s in segments], [("assistant", s.action_text) for s in segments]
    messages = [{"role": role, "content": text} for pair in zip(*texts, strict=True) for role, text in pair]
    return module.Experience(
        eid=module.EID(batch=0, task=seed, run=0),
        tokens=torch.from_numpy(ids),
        prompt_length=first,
        logprobs=torch.from_numpy(logprobs[first:]),
        action_mask=torch.from_numpy(mask[first:]),
        reward=1.0,
        messages=messages,
        info={"model_version": 0},
    )


def dense(segments: Sequence[Segment]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, log-probs (0 where nothing was sampled) and action mask over all tokens."""
    ids = np.concatenate([part for s in segments for part in (s.observation, s.action)])
    logprobs = np.concatenate([part for s in segments for part in (np.zeros(s.n_obs, np.float32), s.logprobs)])
    mask = np.concatenate([part for s in segments for part in (np.zeros(s.n_obs, bool), np.ones(s.n_act, bool))])
    return ids, logprobs, mask


def commands(**setup: Any) -> Mapping[str, Callable[..., Any]]:
    trinity = Trinity(**setup)
    return {name: getattr(trinity, name) for name in ("write", "read", "close")}
