"""Losses and denominators against the reference vectors, and the edges where an implementation usually breaks."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from vectors import close, tensor, vector

from agentrl.algorithm.losses import aggregation_weights, dis_loss, ppo_clip_loss, ratio_kept, value_loss


def dis_weights(logp: torch.Tensor, rollout: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """The coefficient f(r): minus the gradient with advantage 1."""
    logp = logp.clone().requires_grad_()
    dis_loss(logp, logp_rollout=rollout, advantages=torch.ones_like(rollout), low=low, high=high).per_token.sum().backward()
    assert logp.grad is not None
    return -logp.grad


@pytest.mark.parametrize("name", ["dis_teaching", "dis_math_bounds"])
def test_dis_on_reference_ratios__weights_and_kept_match(name: str) -> None:
    given, expected = vector(name)
    logp, rollout = tensor(given["logp_current"]), tensor(given["logp_rollout"])
    kept = ratio_kept(logp, rollout, low=given["lower"], high=given["upper"])
    assert kept.int().tolist() == expected["kept"]
    assert close(dis_weights(logp, rollout, given["lower"], given["upper"]), expected["weight"])


def test_dis_on_reference_ratios__strict_where_icepop_is_inclusive() -> None:
    given, expected = vector("is_variants")
    ratio = tensor(given["ratio"])
    weights = dis_weights(ratio.log(), torch.zeros_like(ratio), 0.7, 6.0)
    assert close(weights, expected["dis"])
    assert not close(weights, expected["icepop"])
    assert not close(weights, expected["tis"])
    assert not close(weights, expected["cispo"])


def test_dis_denominator__is_the_rollout_log_prob() -> None:
    given, expected = vector("dis_denominator_choice")
    current = tensor([given["logp_current"]])
    bounds = {"low": given["lower"], "high": given["upper"]}
    right = dis_weights(current, tensor([given["logp_rollout"]]), given["lower"], given["upper"])
    wrong = dis_weights(current, tensor([given["logp_recomputed_old"]]), given["lower"], given["upper"])
    assert close(right, [expected["weight"]])
    assert close(right, [expected["ratio_correct"]])
    assert close(wrong, [expected["ratio_wrong"]])
    assert "logp_old" not in inspect.signature(dis_loss).parameters
    with pytest.raises(TypeError):
        dis_loss(current, logp_old=current, advantages=current, **bounds)  # type: ignore[call-arg]


def test_dis_gradient__ratio_is_detached_and_masked_tokens_stay_in_the_denominator() -> None:
    given, expected = vector("dis_loss_grad")
    mask = torch.tensor(given["mask"], dtype=torch.bool)
    logp = tensor(given["logp_current"]).requires_grad_()
    loss = dis_loss(
        logp[mask],
        logp_rollout=tensor(given["logp_rollout"])[mask],
        advantages=tensor(given["advantage"])[mask],
        low=given["lower"],
        high=given["upper"],
    )
    weights = aggregation_weights([mask[mask]], "token_mean")
    total = (weights.per_token[0] * loss.per_token).sum() / weights.denominator
    total.backward()
    assert weights.denominator == expected["denominator"]
    assert close(total.detach(), expected["loss"])
    assert close(logp.grad, expected["grad_logp_current"])
    assert not close(logp.grad, expected["negative_control_grad_without_detach"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dis_ratio_exactly_on_a_bound__masked(dtype: torch.dtype) -> None:
    for low, high in ((0.2, 4.0), (0.7, 6.0), (0.7, 1.5)):
        edges = torch.tensor([math.log(low), math.log(high)], dtype=dtype)
        inside = torch.nextafter(edges, torch.zeros_like(edges))
        zeros = torch.zeros_like(edges)
        assert ratio_kept(edges, zeros, low=low, high=high).tolist() == [False, False]
        assert ratio_kept(inside, zeros, low=low, high=high).tolist() == [True, True]


def test_dis_current_log_prob_of_minus_infinity__zero_loss_and_gradient() -> None:
    logp = torch.tensor([-math.inf, -1.0, 90.0], requires_grad=True)
    loss = dis_loss(logp, logp_rollout=torch.tensor([-1.0, -1.0, -1.0]), advantages=torch.ones(3), low=0.2, high=4.0)
    loss.per_token.sum().backward()
    assert loss.per_token.tolist() == [0.0, 1.0, 0.0]
    assert logp.grad is not None
    assert logp.grad.tolist() == [0.0, -1.0, 0.0]


@pytest.mark.parametrize(("sign", "name"), [(1.0, "pos"), (-1.0, "neg")])
def test_ppo_clip_on_reference_ratios__loss_gradient_and_clipped_match(sign: float, name: str) -> None:
    given, expected = vector("ppo_clip")
    ratio = tensor(given["ratio"])
    logp = ratio.log().requires_grad_()
    bounds = {"low": 1 - given["eps_low"], "high": 1 + given["eps_high"]}
    loss = ppo_clip_loss(logp, logp_behaviour=torch.zeros_like(ratio), advantages=torch.full_like(ratio, sign), **bounds)
    loss.per_token.sum().backward()
    assert close(loss.per_token.detach(), expected[f"loss_{name}"])
    off_kink = [i for i, g in enumerate(expected[f"grad_logp_{name}_offkink"]) if g is not None]
    assert logp.grad is not None
    assert close(logp.grad[off_kink], [expected[f"grad_logp_{name}_offkink"][i] for i in off_kink])
    assert (~loss.kept).int()[off_kink].tolist() == [expected[f"clipped_{name}"][i] for i in off_kink]


def test_value_loss_on_reference_values__half_squared_error() -> None:
    given, expected = vector("value_loss")
    per_token = value_loss(tensor(given["values"]), tensor(given["returns"]))
    weights = aggregation_weights([torch.tensor(given["mask"])], "token_mean")
    assert close((weights.per_token[0] * per_token).sum() / weights.denominator, expected["loss_unclipped"])
    assert close(per_token[[0, 3]], [expected["per_token"][0], expected["per_token"][3]])


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean"])
def test_global_denominator__any_split_over_ranks_sums_to_the_same_loss(mode: str) -> None:
    given, expected = vector("global_denominator")
    losses = [tensor(x) for x in given["token_loss"]]
    weights = aggregation_weights([torch.tensor(m) for m in given["mask"]], mode)  # type: ignore[arg-type]
    shares = [float((w * x).sum()) / weights.denominator for w, x in zip(weights.per_token, losses, strict=True)]
    assert close(sum(shares), expected[mode])
    short = {"token_mean": "token_mean", "seq_mean_token_mean": "seq_mean"}[mode]
    for split, name in ((given["split2"], "2ranks"), (given["split3"], "3ranks")):
        local = [sum(shares[i] for i in rank) for rank in split]
        assert close(local, expected[f"local_contrib_{short}_{name}"])
        assert not close(sum(shares), expected[f"negative_control_mean_of_local_means_{name}"])


def test_global_denominator__counts_tokens_and_sequences_that_train() -> None:
    given, expected = vector("global_denominator")
    masks = [torch.tensor(m) for m in given["mask"]]
    assert aggregation_weights(masks, "token_mean").denominator == expected["n_tokens"]
    assert aggregation_weights(masks, "seq_mean_token_mean").denominator == expected["n_sequences"]


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean"])
def test_empty_batch__zero_weights_and_zero_denominator(mode: str) -> None:
    given, expected = vector("empty_batch")
    weights = aggregation_weights([torch.tensor(m) for m in given["mask"]], mode)  # type: ignore[arg-type]
    logp = tensor(given["token_loss"]).requires_grad_()
    (weights.per_token[0] * logp[0]).sum().backward()
    assert weights.denominator == expected["n_tokens"]
    assert logp.grad is not None
    assert logp.grad.tolist() == expected["grad"]


def test_fully_masked_sequence__loss_is_that_of_the_other_alone() -> None:
    full, masked = torch.ones(10), torch.zeros(10)
    losses = torch.rand(10)
    both, alone = aggregation_weights([full, masked], "token_mean"), aggregation_weights([full], "token_mean")
    assert both.denominator == alone.denominator
    assert torch.equal((both.per_token[0] * losses).sum(), (alone.per_token[0] * losses).sum())
    assert not both.per_token[1].any()
