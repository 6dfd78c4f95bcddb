"""When a sandbox is worn and gets a relief, and when it is spent and goes whatever comes after it.

What no canary sees adds up over episodes, and a sandbox ends by itself after its lifetime. Each has a share of its own of both
limits, so that sandboxes that started together are not replaced together.
"""

from __future__ import annotations

import time
from dataclasses import replace

from sandboxes.contract import SandboxSpec
from sandboxes.stock import Member

MAX_USES = 500
"""Episodes after which a sandbox is handed out no more."""

_LEFT_SHARE = 0.2
"""Of its lifetime; a sandbox that has less before it is not handed out again."""
_FIRST_SHARE, _LAST_SHARE = 0.5, 0.9
_GOLDEN_SHARE = 0.6180339887498949
"""Multiples of it leave the largest gaps modulo 1, however many there are."""


def planned_share(number: int) -> float:
    """Share of both limits at which the relief of the ``number``-th sandbox of a pool begins."""
    return _FIRST_SHARE + (_LAST_SHARE - _FIRST_SHARE) * (number * _GOLDEN_SHARE % 1.0)


def lasting(spec: SandboxSpec, use_s: float, silence_s: float) -> SandboxSpec:
    """``spec`` for uses of ``use_s`` seconds with up to ``silence_s`` between requests; none ends by itself within one.

    Longer times of the spec's own stay; so does what is no time, for the provider to refuse.
    """
    return replace(spec, ttl_s=_at_least(use_s / _LEFT_SHARE, spec.ttl_s), idle_s=_at_least(silence_s, spec.idle_s))


def is_worn(member: Member) -> bool:
    """It still serves, and another one should be started to take its place."""
    return _used_share(member) >= member.planned_share


def is_spent(member: Member) -> bool:
    """It serves no more."""
    return _used_share(member) >= 1.0


def _used_share(member: Member) -> float:
    age_s = time.monotonic() - member.born
    return max(member.uses / MAX_USES, age_s / ((1 - _LEFT_SHARE) * member.sandbox.spec.ttl_s))


def _at_least(least_s: float, time_s: float) -> float:
    return max(least_s, time_s) if isinstance(time_s, (int, float)) and time_s > 0 else time_s
