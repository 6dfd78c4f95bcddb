"""Lag, sync strength and admission: pure arithmetic shared by store, rollout and trainer.

Lag counts policy updates along the parent chain, never a difference of version names.
"""

from __future__ import annotations

import math

ETA_SCALE = 8
"""Lag in versions at sync strength 0.5."""


def lag_bound(eta: float) -> int | None:
    """The largest lag that sync strength ``eta`` in [0, 1] allows, in policy updates; None means unbounded.

    L(eta) = floor(8 * eta / (1 - eta)): 0 is strictly synchronous, 0.25 gives 2, 0.5 gives 8.
    """
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must be between 0 and 1, got {eta}")
    if eta == 1:
        return None
    return math.floor(ETA_SCALE * eta / (1 - eta) + 1e-9)


def sync_strength(lag: int) -> float:
    """The inverse of `lag_bound`: the smallest eta that allows ``lag``."""
    return lag / (lag + ETA_SCALE)


def lag(head_updates: int, token_updates: int, common_updates: int | None = None) -> int:
    """Policy updates between a token's weights and the trainer's.

    ``common_updates`` is the update count of their last common ancestor; None means that the token is of the live chain.
    """
    common = token_updates if common_updates is None else common_updates
    return head_updates + token_updates - 2 * common


def oldest_update(token_updates: int, common_updates: int | None = None) -> int:
    """The number stored with a ready item: lag = head_updates - oldest_update. It may be negative on a dead branch."""
    common = token_updates if common_updates is None else common_updates
    return 2 * common - token_updates


def refresh_due(newest_updates: int, held_updates: int, every: int) -> bool:
    """Whether a worker loads the newest version: each ``every``-th policy update, and at once when the lineage changed.

    A version that is no update ahead of what the worker holds was made by a resume or replaces a failed one.
    """
    return newest_updates <= held_updates or newest_updates - held_updates >= every


def admissible(bound: int, batch: int, outstanding: int, engine_lag: int) -> int:
    """How many more training episodes may open so that none is bound to exceed the lag bound.

    ``outstanding`` counts running, graded, ready and leased trajectories; ``engine_lag`` is the lag of the weights that the
    asking worker holds behind the newest committed step: items it would produce are that much older already.
    """
    return (bound + 1) * batch - outstanding - batch * engine_lag


LOAD_SHARE = 0.1
"""Share of an engine's time that loading weights should stay under; above it, weight synchronisation is worth an alert."""


def refresh_interval(load_s: float, update_s: float, bound: int | None) -> int:
    """The smallest number of versions between loads that keeps loading under `LOAD_SHARE` of the time.

    ``load_s``: seconds of one load, in which its engine generates nothing; ``update_s``: seconds between policy updates;
    ``bound``: a worker that loads every k-th version acts on weights up to k - 1 updates old, so k is at most bound + 1.
    """
    wanted = max(1, math.ceil(load_s / (LOAD_SHARE * update_s) - 1e-9))
    return wanted if bound is None else min(wanted, bound + 1)
