"""Whitening and length penalties against the reference vectors."""

from __future__ import annotations

import torch
from vectors import close, tensor, vector

from agentrl.algorithm.normalise import Moments, moments, whiten
from agentrl.algorithm.shaping import soft_overlong_penalty


def test_global_whitening__over_all_ranks_and_not_per_rank() -> None:
    given, expected = vector("global_whiten")
    values, masks = [tensor(a) for a in given["advantage"]], [torch.tensor(m) for m in given["mask"]]
    for own, whole in zip(whiten(values, masks, eps=given["eps"]), expected["whitened"], strict=True):
        assert close(own, whole)
    for split, name in ((given["split2"], "2ranks"), (given["split3"], "3ranks")):
        parts = [moments([values[i] for i in rank], [masks[i] for i in rank]) for rank in split]
        assert close([list(part) for part in parts], expected[f"partial_sums_{name}"])
        whole = sum(parts, Moments(0.0, 0.0, 0.0))
        assert close([whole.mean, whole.variance], [expected["mean"], expected["var"]])
        local = [x for rank in split for x in whiten([values[i] for i in rank], [masks[i] for i in rank])]
        assert not close(local[0], expected["whitened"][0])


def test_reinforce_pp__whitens_returns_over_tokens() -> None:
    given, expected = vector("reinforce_pp_whiten")
    returns = [
        torch.full((n,), r, dtype=torch.float64) for r, n in zip(given["returns"], given["n_action_tokens"], strict=True)
    ]
    own = whiten(returns, [torch.ones(len(r)) for r in returns], eps=given["eps"])
    assert close([float(a[0]) for a in own], expected["advantage"])
    per_sequence = whiten(list(tensor(given["returns"]).split(1)), [torch.ones(1)] * len(returns))
    assert not close(torch.cat(per_sequence), expected["advantage"])


def test_whitening_of_long_sums__does_not_cancel() -> None:
    values = [torch.tensor([1e8, 1e8 + 1], dtype=torch.float64)]
    assert close(whiten(values, [torch.ones(2)])[0], [-1.0, 1.0])


def test_whitening_without_a_token__gives_zeros() -> None:
    assert whiten([torch.ones(2)], [torch.zeros(2)])[0].tolist() == [0.0, 0.0]


def test_soft_overlong_penalty__grows_over_the_cache() -> None:
    given, expected = vector("dapo_soft_overlong")
    own = [soft_overlong_penalty(n, limit=given["l_max"], cache=given["cache"]) for n in given["lengths"]]
    assert close(own, expected["penalty"])
