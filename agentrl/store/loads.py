"""What is recorded of weights on their way: what a version cost the trainer, and each load into an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Transport = Literal["file", "disk", "tensor", "distributed"]
"""The engine read the version's file by itself; a server was told to read it; through HTTP; over a process group."""


@dataclass(frozen=True, slots=True)
class PublishCost:
    """``phases``: the trainer's seconds by phase (export, write, checksum, stage, push, verify); ``bytes`` of the file."""

    phases: Mapping[str, float] = field(default_factory=dict)
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One attempt to bring a version into an engine. ``error``: why it failed; None: the engine holds the version."""

    engine: str
    """Name of the process whose engine it is, or URL of the server; "" for the only engine of whoever records it."""
    version: int
    transport: Transport = "file"
    phases: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by phase: lock, read, checksum, check, build, pause, transfer, verify, resume."""
    bytes: int | None = None
    """Read from the file or sent."""
    error: str | None = None
    loader: str | None = None
    """Process that brought the weights; None: the engine itself."""
    fence: int | None = None
    """Fence of the trainer that pushed them; None: a worker loaded them."""
    pinned: bool = False
    """Of an engine that stays with the version it evaluates."""


@dataclass(frozen=True, slots=True)
class LaggingEngine:
    """An engine that is alive and too far behind the newest published version."""

    engine: str
    version: int
    behind: int
    """Policy updates."""
    behind_s: float
    """Seconds since the first version was published that it does not hold."""
    error: str | None
    """Of its newest attempt, when that failed."""
