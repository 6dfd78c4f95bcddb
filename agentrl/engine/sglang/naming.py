"""Names of weights on a server: whose they are, which version, which bytes."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.types import PolicyVersion

DIGITS = 12


@dataclass(frozen=True, slots=True)
class WeightNames:
    """The names that one run gives: ``run@version#digest``. Another run's version 3 is another name."""

    run: str

    def name(self, version: PolicyVersion) -> str:
        return f"{self.run}@{version.version}#{version.checksum.removeprefix('sha256:')[:DIGITS]}"

    def version(self, name: str) -> int | None:
        """The version behind a server's name; None when this run did not load it."""
        run, _, rest = name.rpartition("@")
        number, _, _ = rest.partition("#")
        return int(number) if run == self.run and number.isdecimal() else None
