"""What every measurement is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """The server, the size, and the interpreter that the peers are installed for."""

    server: str
    quick: bool
    peers_python: str

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full
