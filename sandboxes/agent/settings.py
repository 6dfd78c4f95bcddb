"""What a provider tells the agent at its start, as one JSON argument. World-readable inside: no secrets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

IN_PLACE = "in_place"
"""Reset kills all processes, wipes the writable places and compares a canary."""

NAMESPACES = "namespaces"
"""Reset makes fresh process, mount and IPC namespaces with fresh writable file systems."""


@dataclass(frozen=True)
class Settings:
    """How this sandbox is built.

    ``places``: workload's path -> real path; the first is its home. ``kept``: those of them that a reset must not wipe.
    ``template``: a directory whose contents the first place starts with, none when empty. ``workdir``: where commands start.
    ``mounts``: path -> tmpfs options, mounted by the agent for each episode (`NAMESPACES`).
    ``launcher``: what starts Python, when its file alone does not. ``identity``: uid and gid of the workload, None: the
    agent's own, which with ``seen_as`` appears as these in a user namespace of each episode.
    ``oom_counters``: files of the sandbox's own control group that may count what was killed for memory.
    ``limits``: resource number -> soft and hard limit of each command. ``environment``: of each command.
    """

    reset: str
    places: dict[str, str]
    kept: list[str] = field(default_factory=list)
    template: str = ""
    workdir: str = "/workspace"
    launcher: list[str] = field(default_factory=list)
    mounts: dict[str, str] = field(default_factory=dict)
    identity: tuple[int, int] | None = (1000, 1000)
    seen_as: tuple[int, int] | None = None
    limits: dict[int, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    ttl_s: float = 3600.0
    idle_s: float = 900.0
    oom_counters: list[str] = field(default_factory=list)

    def real_path(self, path: str) -> str:
        """Of a path as the workload knows it; relative ones stay."""
        for known, real in self.places.items():
            if path == known or path.startswith(known + "/"):
                return real + path[len(known) :]
        return path

    def to_json(self) -> str:
        """The argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Back from the argument."""
        values = json.loads(text)
        for name in ("identity", "seen_as"):
            values[name] = tuple(values[name]) if values[name] else None
        limits = {int(number): limit for number, limit in values.pop("limits").items()}
        return cls(limits=limits, **values)
