"""What shipped environments share to hold tasks out by construction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

HELDOUT_SHARE = 0.2
SPLITS = ("train", "heldout")


def heldout_fifth(keys: Iterable[tuple[str, ...]]) -> frozenset[tuple[str, ...]]:
    """A fifth (rounded) of ``keys``: the first when they are ranked by a hash, so the same on every machine."""
    ranked = sorted(set(keys), key=lambda key: hashlib.sha256("+".join(key).encode()).digest())
    return frozenset(ranked[: round(HELDOUT_SHARE * len(ranked))])


def check_split(split: str) -> None:
    """ValueError for anything but ``train`` and ``heldout``."""
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}: {' and '.join(SPLITS)}")
