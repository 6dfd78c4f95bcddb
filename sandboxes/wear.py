"""When a sandbox is worn and gets a relief, and when it is spent and goes whatever comes after it.

What no canary sees adds up over episodes, and a sandbox ends by itself after its lifetime. Each has a share of its own of both
limits, so that sandboxes that started together are not replaced together.
"""

from __future__ import annotations

import time

from sandboxes.stock import Member

MAX_USES = 500
"""Episodes after which a sandbox is handed out no more."""

_LIFETIME_SHARE = 0.8
"""A sandbox older than this share of its lifetime is not handed out again."""
_FIRST_SHARE, _LAST_SHARE = 0.5, 0.9
_GOLDEN_SHARE = 0.6180339887498949
"""Multiples of it leave the largest gaps modulo 1, however many there are."""


def planned_share(number: int) -> float:
    """Share of both limits at which the relief of the ``number``-th sandbox of a pool begins."""
    return _FIRST_SHARE + (_LAST_SHARE - _FIRST_SHARE) * (number * _GOLDEN_SHARE % 1.0)


def is_worn(member: Member) -> bool:
    """It still serves, and another one should be started to take its place."""
    return _used_share(member) >= member.planned_share


def is_spent(member: Member) -> bool:
    """It serves no more."""
    return _used_share(member) >= 1.0


def _used_share(member: Member) -> float:
    age_s = time.monotonic() - member.born
    return max(member.uses / MAX_USES, age_s / (_LIFETIME_SHARE * member.sandbox.spec.ttl_s))
