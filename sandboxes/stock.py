"""What a pool keeps account of: its members, and counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sandboxes.contract import Sandbox, Usage

SpecKey = tuple[Any, ...]


@dataclass(eq=False)
class Member:
    sandbox: Sandbox
    key: SpecKey
    born: float
    planned_share: float = 1.0
    """Of its uses and its lifetime, after which its relief begins."""
    uses: int = 0
    relieved: bool = False
    """Another one stands in its place: it goes as soon as it is free."""
    counted: Usage = field(default_factory=Usage)


@dataclass
class Counts:
    acquires: int = 0
    acquire_wait_s: float = 0.0
    longest_wait_s: float = 0.0
    starts: int = 0
    start_s: float = 0.0
    start_failures: int = 0
    resets: int = 0
    reset_s: float = 0.0
    discarded: int = 0
    retired: int = 0
    doubtful: int = 0
    deaths: int = 0
    swept: int = 0
    commands: int = 0
    command_s: float = 0.0
    timeouts: int = 0


@dataclass
class Idle:
    """Clean sandboxes by spec; the one used last goes out first, so that surplus ones age."""

    by_key: dict[SpecKey, deque[Member]] = field(default_factory=dict)

    def put(self, member: Member) -> None:
        self.by_key.setdefault(member.key, deque()).append(member)

    def take(self, key: SpecKey) -> Member | None:
        members = self.by_key.get(key)
        return members.pop() if members else None

    def remove(self, member: Member) -> bool:
        """Whether it was idle; it is no more."""
        members = self.by_key.get(member.key, deque())
        if member not in members:
            return False
        members.remove(member)
        return True

    def take_other(self, key: SpecKey) -> Member | None:
        return next((members.popleft() for other, members in self.by_key.items() if other != key and members), None)

    def __len__(self) -> int:
        return sum(map(len, self.by_key.values()))
