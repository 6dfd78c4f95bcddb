"""How the trainer's ranks do the same thing at the same time.

Invariants
- one_voice: rank 0 decides. It tells the others each operation by name, with its arguments; all then do the same with them.
- failing_alone: when rank 0 fails inside an operation it waits for nobody; whoever started the ranks ends the others.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = datetime.timedelta(days=30)
"""How long a rank waits to be told what to do: rollouts may take their time."""


class Channel:
    """From rank 0 to the others, whatever the backend of the models is."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE) if dist.get_world_size() > 1 else None

    def tell(self, message: Any) -> None:
        if self._group is not None:
            dist.broadcast_object_list([message], src=0, group=self._group, device=torch.device("cpu"))

    def hear(self) -> Any:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=self._group, device=torch.device("cpu"))
        return heard[0]


class OneVoice:
    """Base of what all ranks do together: on rank 0 call its operations, then `dismiss`; on the others `follow`."""

    channel: Channel
    _under_way: bool = False
    """Whether the others are in an operation, where they may wait for rank 0 and hear nothing."""

    def dismiss(self) -> None:
        """Let the others go. One that has died already is no matter any more, nor one that an operation holds."""
        if self._under_way:
            return
        with contextlib.suppress(RuntimeError):
            self.channel.tell(None)

    def follow(self) -> None:
        """Do what rank 0 says until it lets go."""
        while (told := self.channel.hear()) is not None:
            name, arguments = told
            getattr(self, name)(*arguments)

    def _everywhere(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        with self._together(operation, *arguments):
            return operation(*arguments)

    @contextlib.contextmanager
    def _together(self, operation: Callable[..., Any], *arguments: Any) -> Iterator[None]:
        """The others do ``operation`` while rank 0 is in here; left by an error they stay there."""
        self._under_way = True
        self.channel.tell((operation.__name__, arguments))
        yield
        self._under_way = False
