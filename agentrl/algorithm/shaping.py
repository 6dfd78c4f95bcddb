"""Rewards that depend on length."""

from __future__ import annotations


def soft_overlong_penalty(length: int, *, limit: int, cache: int) -> float:
    """0 up to limit - cache tokens, then linearly down to -1 at the limit (DAPO's soft overlong punishment)."""
    return -min(max((length - (limit - cache)) / cache, 0.0), 1.0)
