"""The lag of single tokens: policy updates between the weights that sampled them and the trainer's.

The store knows the lag of an item, which is that of its oldest token. Tokens of a run whose versions aren't ours (an imported
trajectory) all count with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentrl.errors import UnknownVersion
from agentrl.staleness import lag
from agentrl.types import PolicyVersion


class TokenLags:
    """Looks up versions once each; ``find`` returns the row of a version name."""

    def __init__(self, find: Callable[[int], PolicyVersion]) -> None:
        self._find = find
        self._versions: dict[int, PolicyVersion] = {}
        self._head: int | None = None
        self._lags: dict[int, int] = {}

    def of_item(
        self, token_versions: Sequence[Tensor], item_lag: int, head: PolicyVersion, *, masked: bool = False
    ) -> list[Tensor]:
        """Per trajectory of an item int64 [n] -> int64 [n]: lags behind ``head``; ``item_lag`` as the store counts it.

        ``masked``: tokens that are older than ``item_lag`` are out of the loss.
        """
        try:
            lags = [self.of(versions, head) for versions in token_versions]
        except UnknownVersion:
            lags = []
        if masked and lags:
            return lags
        if max((int(own.max()) for own in lags), default=None) == item_lag:
            return lags
        return [torch.full_like(versions, item_lag) for versions in token_versions]

    def of(self, token_version: Tensor, head: PolicyVersion) -> Tensor:
        """int64 [n] -> int64 [n]: lags behind ``head``. Raises `UnknownVersion`."""
        if head.version != self._head:
            self._head, self._lags = head.version, {}
            self._versions[head.version] = head
        names, places = token_version.unique(return_inverse=True)
        return torch.tensor([self._lag(int(name), head) for name in names])[places]

    def of_version(self, name: int, head: PolicyVersion) -> int:
        """Lag of one version behind ``head``. Raises `UnknownVersion`."""
        return int(self.of(torch.tensor([name]), head))

    def _lag(self, name: int, head: PolicyVersion) -> int:
        if name not in self._lags:
            own, common = self._version(name), self._common(name, head.version)
            self._lags[name] = lag(head.updates, own.updates, common)
        return self._lags[name]

    def _common(self, first: int, second: int) -> int | None:
        """Updates of the last common ancestor: a child's name is larger than its parent's."""
        while first != second:
            larger, other = max(first, second), min(first, second)
            parent = self._version(larger).parent
            if parent is None:
                return None
            first, second = parent, other
        return self._version(first).updates

    def _version(self, name: int) -> PolicyVersion:
        if name not in self._versions:
            self._versions[name] = self._find(name)
        return self._versions[name]
