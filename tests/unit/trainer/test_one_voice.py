"""Rank 0 and the operations that it leads: what the others are told, and when they can't be told anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.trainer.channel import OneVoice
from agentrl.trainer.value_pretraining import ValuePretraining, settings_for_returns


class Recorded:
    """A channel whose other end is this list; None lets the others go."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def tell(self, message: Any) -> None:
        self.told.append(message)


class Work(OneVoice):
    def __init__(self) -> None:
        self.heard = Recorded()
        self.channel = self.heard  # type: ignore[assignment]

    def run(self, number: int) -> int:
        result: int = self._everywhere(self._halve, number)
        return result

    def _halve(self, number: int) -> int:
        if number % 2:
            raise OSError(28, "No space left on device")
        return number // 2


def test_one_voice__told_by_name_and_let_go_at_the_end() -> None:
    work = Work()
    assert work.run(8) == 4
    work.dismiss()
    assert work.heard.told == [("_halve", (8,)), None]


def test_failing_alone__nobody_is_waited_for() -> None:
    """The others wait in the operation that failed here: a message to them would block until it times out."""
    work = Work()
    with pytest.raises(OSError, match="No space"):
        work.run(7)
    work.dismiss()
    assert work.heard.told == [("_halve", (7,))]


class Critic:
    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.zeros(1)
        yield "b", torch.zeros(1)


@pytest.mark.parametrize("disk_full", [False, True])
def test_failing_alone__while_the_critic_is_written(disk_full: bool) -> None:
    heard: Any = Recorded()
    critic: Any = Critic()
    work = ValuePretraining(critic, settings_for_returns(AlgorithmConfig()), heard)
    names = []
    try:
        for name, _ in work.weights():
            names.append(name)
            if disk_full:
                raise OSError(28, "No space left on device")
    except OSError:
        pass
    work.dismiss()
    assert names == (["a"] if disk_full else ["a", "b"])
    assert heard.told == [("_weights", ())] + ([] if disk_full else [None])
