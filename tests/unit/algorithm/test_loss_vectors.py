"""Losses and denominators against the reference vectors, and the edges where an implementation usually breaks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch
from vectors import close, tensor, vector

from agentrl.algorithm.denominators import aggregation_weights
from agentrl.algorithm.losses import (
    Loss,
    cispo_loss,
    decoupled_ppo_loss,
    dis_loss,
    gspo_loss,
    interpolated_proximal,
    ppo_clip_loss,
    reinforce_loss,
    value_loss,
)
from agentrl.algorithm.ratios import (
    bernoulli_kl,
    capped_weight,
    inside,
    masked_weight,
    per_sequence,
    strictly_inside,
)


def dis_weights(logp: torch.Tensor, rollout: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """The coefficient f(r): minus the gradient with advantage 1."""
    logp = logp.clone().requires_grad_()
    dis_loss(logp, logp_rollout=rollout, advantages=torch.ones_like(rollout), low=low, high=high).per_token.sum().backward()
    assert logp.grad is not None
    return -logp.grad


def slopes(logp: torch.Tensor, loss: Callable[[torch.Tensor], Loss]) -> torch.Tensor:
    """Gradient of the summed loss in each log-prob."""
    logp = logp.clone().requires_grad_()
    loss(logp).per_token.sum().backward()
    assert logp.grad is not None
    return logp.grad


@pytest.mark.parametrize("name", ["dis_teaching", "dis_math_bounds"])
def test_dis_on_reference_ratios__weights_and_kept_match(name: str) -> None:
    given, expected = vector(name)
    logp, rollout = tensor(given["logp_current"]), tensor(given["logp_rollout"])
    kept = strictly_inside(logp - rollout, low=given["lower"], high=given["upper"])
    assert kept.int().tolist() == expected["kept"]
    assert close(dis_weights(logp, rollout, given["lower"], given["upper"]), expected["weight"])


def test_dis_on_reference_ratios__strict_where_icepop_is_inclusive() -> None:
    given, expected = vector("is_variants")
    ratio = tensor(given["ratio"])
    weights = dis_weights(ratio.log(), torch.zeros_like(ratio), 0.7, 6.0)
    assert close(weights, expected["dis"])
    assert close(masked_weight(ratio.log(), low=0.5, high=2.0), expected["icepop"])
    assert close(capped_weight(ratio.log(), cap=2.0), expected["tis"])
    for other in ("icepop", "tis", "cispo"):
        assert not close(weights, expected[other])


def test_capped_weights__tis_and_cispo_train_every_token_with_a_bounded_weight() -> None:
    given, expected = vector("is_variants")
    ratio = tensor(given["ratio"])
    common = {"advantages": torch.ones_like(ratio)}
    rollout = torch.zeros_like(ratio)
    tis = slopes(ratio.log(), lambda logp: reinforce_loss(logp, logp_rollout=rollout, cap=2.0, **common))
    cispo = slopes(ratio.log(), lambda logp: cispo_loss(logp, logp_behaviour=rollout, low=0.0, high=1.28, **common))
    uncapped = slopes(ratio.log(), lambda logp: reinforce_loss(logp, logp_rollout=rollout, cap=None, **common))
    assert close(-tis, expected["tis"])
    assert close(-cispo, expected["cispo"])
    assert close(-uncapped, ratio)


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
        just_inside = torch.nextafter(edges, torch.zeros_like(edges))
        assert strictly_inside(edges, low=low, high=high).tolist() == [False, False]
        assert strictly_inside(just_inside, low=low, high=high).tolist() == [True, True]


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


@pytest.mark.parametrize(("sign", "name"), [(1.0, "pos"), (-1.0, "neg")])
def test_dual_clip__bounds_the_loss_of_negative_advantages_only(sign: float, name: str) -> None:
    given, expected = vector("ppo_clip")
    ratio = tensor(given["ratio"])
    arguments = {"logp_behaviour": torch.zeros_like(ratio), "advantages": torch.full_like(ratio, sign)}
    bounds = {"low": 1 - given["eps_low"], "high": 1 + given["eps_high"], "dual_clip": given["dual_clip"]}
    loss = ppo_clip_loss(ratio.log(), **arguments, **bounds)
    assert close(loss.per_token, expected[f"loss_dual_{name}"])
    beyond = ratio > given["dual_clip"]
    assert bool((~loss.kept[beyond]).all())
    if sign < 0:
        assert not slopes(ratio.log(), lambda logp: ppo_clip_loss(logp, **arguments, **bounds))[beyond].any()


def test_decoupled_ppo__clips_by_the_proximal_policy_and_weighs_by_the_sampler() -> None:
    given, expected = vector("decoupled_ppo")
    theta, proximal, rollout = (tensor(given[f"logp_{name}"]) for name in ("theta", "prox", "behav"))
    mask = torch.tensor(given["mask"])
    weight = capped_weight(proximal - rollout, cap=None)
    weights = aggregation_weights([mask], "token_mean")

    def loss(logp: torch.Tensor) -> Loss:
        return decoupled_ppo_loss(
            logp,
            logp_proximal=proximal,
            weight=weight,
            advantages=tensor(given["advantage"]),
            low=1 - given["eps"],
            high=1 + given["eps"],
        )

    per_token = loss(theta).per_token
    assert close(weight, expected["behav_weight"])
    assert close(per_token, expected["token_loss"])
    assert weights.denominator == expected["denominator"]
    assert close((weights.per_token[0] * per_token).sum() / weights.denominator, expected["loss"])
    gradient = slopes(theta, loss) * weights.per_token[0] / weights.denominator
    assert close(gradient, expected["grad_logp_theta"])


def test_masked_correction__drops_the_token_instead_of_bounding_its_weight() -> None:
    log_ratio = tensor([0.0, 2.0])
    weight = masked_weight(log_ratio, low=0.5, high=2.0)
    loss = decoupled_ppo_loss(
        tensor([-1.0, -torch.inf]), logp_proximal=tensor([-1.0, -1.0]), weight=weight, advantages=tensor([1.0, 1.0]), low=0.8,
        high=1.2,
    )  # fmt: skip
    assert loss.kept.tolist() == [True, False]
    assert loss.per_token.tolist() == [-1.0, 0.0]


def test_interpolated_proximal_policy__matches_by_lag() -> None:
    given, expected = vector("a3po_alpha")
    behaviour = torch.tensor(given["v_behav"])
    lag = torch.where(behaviour < 0, 0, given["v_theta"] - behaviour)
    own = interpolated_proximal(tensor(given["logp_theta"]), logp_rollout=tensor(given["logp_behav"]), token_lag=lag)
    assert close(own, expected["logp_prox"])
    assert close((1 - 1 / lag.clamp(min=1)).double(), expected["alpha"])


def test_gspo__one_ratio_for_a_sequence_and_all_or_nothing() -> None:
    given, expected = vector("gspo")
    log_ratio, mask = tensor(given["log_ratio"]), torch.tensor(given["mask"]).bool()
    mean = per_sequence([log_ratio], [mask], mean=True)
    bounds = {"low": 1 - given["eps_low"], "high": 1 + given["eps_high"], "sequence_log_ratio": mean.expand(4)}
    assert close(mean.exp(), [expected["s"]])
    positive = gspo_loss(log_ratio, advantages=torch.ones(4), **bounds)
    negative = gspo_loss(log_ratio, advantages=-torch.ones(4), **bounds)
    assert close(positive.per_token[0], expected["loss"])
    assert close(negative.per_token[0], expected["loss_neg"])
    assert not positive.kept.any()
    assert not slopes(log_ratio, lambda logp: gspo_loss(logp, advantages=torch.ones(4), **bounds)).any()
    assert close(
        slopes(log_ratio, lambda logp: gspo_loss(logp, advantages=-torch.ones(4), **bounds)), [expected["loss_neg"]] * 4
    )


def test_sequence_gates__product_geometric_mean_and_cap() -> None:
    given, expected = vector("seq_is")
    logs = [tensor(x) for x in given["log_ratios"]]
    masks = [torch.ones(len(x)) for x in logs]
    product, geometric = per_sequence(logs, masks, mean=False), per_sequence(logs, masks, mean=True)
    assert close(product.exp(), expected["seq"])
    assert close(geometric.exp(), expected["geo"])
    assert close(capped_weight(product, cap=1.15), expected["seq_tis"])
    assert inside(product, low=0.0, high=1.15).int().tolist() == expected["seq_mis_keep"]
    assert inside(geometric, low=0.99, high=1.05).int().tolist() == expected["geo_keep"]


def test_flash_reinforce__batch_centred_reward_and_bernoulli_kl_gate() -> None:
    given, expected = vector("flash_reinforce")
    rewards = tensor(given["reward"])
    advantages = rewards - rewards.mean()
    assert close(advantages, expected["advantage"])
    behaviour = [tensor(s["p"]).log() for s in given["seqs"]]
    current = [tensor(s["q"]).log().requires_grad_() for s in given["seqs"]]
    masks = [torch.ones(len(x), dtype=torch.bool) for x in behaviour]
    kls = per_sequence([bernoulli_kl(p, q) for p, q in zip(behaviour, current, strict=True)], masks, mean=True)
    assert close(kls, expected["seq_kl"])
    kept = kls <= given["delta"]
    assert kept.int().tolist() == expected["kept"]
    weights = aggregation_weights(masks, "seq_mean_token_mean")
    for p, q, w, a, keep, slope in zip(
        behaviour, current, weights.per_token, advantages, kept, expected["grad_logp_current_of_objective"], strict=True
    ):
        loss = reinforce_loss(q, logp_rollout=p, advantages=a.expand(len(q)), cap=None).per_token
        (torch.where(keep, w * loss, 0.0).sum() / weights.denominator).backward()
        assert q.grad is not None
        assert close(-q.grad, slope)


@pytest.mark.parametrize("loss", [dis_loss, reinforce_loss, cispo_loss, ppo_clip_loss, decoupled_ppo_loss])
def test_loss_denominators__are_named_and_no_loss_takes_anothers(loss: Callable[..., Loss]) -> None:
    parameters = inspect.signature(loss).parameters
    own = {name for name in parameters if name.startswith("logp_")}
    assert len(own) == 1
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for name, p in parameters.items() if name != "logp")
    token = torch.tensor([-1.0])
    others = {"logp_rollout", "logp_proximal", "logp_behaviour", "logp_old"} - own
    for other in others:
        with pytest.raises(TypeError):
            loss(token, **{other: token}, advantages=token, low=0.5, high=2.0)


@pytest.mark.parametrize("cap", [2.0, None])
def test_impossible_token_in_a_weighted_loss__has_no_gradient_and_nan_is_not_hidden(cap: float | None) -> None:
    logp = torch.tensor([-math.inf, -1.0])
    own = slopes(logp, lambda x: reinforce_loss(x, logp_rollout=-torch.ones(2), advantages=torch.ones(2), cap=cap))
    assert own.tolist() == [0.0, -1.0]
    spoilt = reinforce_loss(torch.tensor([math.nan]), logp_rollout=-torch.ones(1), advantages=torch.ones(1), cap=cap)
    assert bool(spoilt.per_token.isnan())


def test_nan__is_hidden_by_no_mask() -> None:
    logp, one = torch.tensor([-1.0, torch.nan]), torch.tensor([-1.0, -1.0])
    losses = [
        dis_loss(logp, logp_rollout=one, advantages=torch.ones(2), low=0.2, high=4.0),
        decoupled_ppo_loss(
            logp,
            logp_proximal=logp,
            weight=masked_weight(logp - one, low=0.5, high=2.0),
            advantages=torch.ones(2),
            low=0.8,
            high=1.2,
        ),
    ]
    assert all(loss.per_token.isnan().tolist() == [False, True] for loss in losses)
    assert inside(torch.tensor([torch.nan]), low=0.5, high=2.0).all()


def test_value_loss_on_reference_values__half_squared_error() -> None:
    given, expected = vector("value_loss")
    per_token = value_loss(tensor(given["values"]), tensor(given["returns"]))
    weights = aggregation_weights([torch.tensor(given["mask"])], "token_mean")
    assert close((weights.per_token[0] * per_token).sum() / weights.denominator, expected["loss_unclipped"])
    assert close(per_token[[0, 3]], [expected["per_token"][0], expected["per_token"][3]])


def test_clipped_value_loss__takes_the_larger_of_both() -> None:
    given, expected = vector("value_loss")
    old = tensor(given["old_values"])
    own = value_loss(tensor(given["values"]), tensor(given["returns"]), values_before=old, clip=given["clip"])
    weights = aggregation_weights([torch.tensor(given["mask"])], "token_mean")
    assert close(own, expected["per_token"])
    assert close((weights.per_token[0] * own).sum() / weights.denominator, expected["loss_clipped"])


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"])
def test_global_denominator__every_mode_matches(mode: str) -> None:
    given, expected = vector("global_denominator")
    masks, losses = [torch.tensor(m) for m in given["mask"]], [tensor(x) for x in given["token_loss"]]
    weights = aggregation_weights(masks, mode, length_norm=given["norm_constant"])  # type: ignore[arg-type]
    assert close(
        sum((w * x).sum() for w, x in zip(weights.per_token, losses, strict=True)) / weights.denominator, expected[mode]
    )


def test_rows_of_one_trajectory__are_one_sequence_when_joined() -> None:
    given, expected = vector("global_denominator")
    rows: dict[int, list[int]] = {}
    for row, trajectory in enumerate(given["trajectory_of_sequence"]):
        rows.setdefault(trajectory, []).append(row)
    masks = [torch.cat([torch.tensor(given["mask"][r]) for r in own]) for own in rows.values()]
    losses = [torch.cat([tensor(given["token_loss"][r]) for r in own]) for own in rows.values()]
    weights = aggregation_weights(masks, "seq_mean_token_mean")
    assert weights.denominator == expected["n_trajectories"]
    assert close(
        sum((w * x).sum() for w, x in zip(weights.per_token, losses, strict=True)) / weights.denominator,
        expected["trajectory_mean"],
    )


def test_turn_mean__every_turn_with_a_token_counts_once() -> None:
    masks = [torch.tensor([1, 1, 1, 0]), torch.tensor([1, 1])]
    weights = aggregation_weights(masks, "turn_mean", unit_ids=[torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0])])
    assert weights.denominator == 3
    assert [w.tolist() for w in weights.per_token] == [[0.5, 0.5, 1.0, 0.0], [0.5, 0.5]]


def test_context_parallel_slices__sum_with_counts_of_the_whole_sequence() -> None:
    given, expected = vector("global_denominator")
    masks, losses = [torch.tensor(m) for m in given["mask"]], [tensor(x) for x in given["token_loss"]]
    for mode, name in (("token_mean", "token_mean"), ("seq_mean_token_mean", "seq_mean")):
        weights = aggregation_weights(masks, mode)  # type: ignore[arg-type]
        shares = weights.per_token[2] * losses[2] / weights.denominator
        assert close([float(shares[part].sum()) for part in given["cp_split_of_seq2"]], expected[f"cp_{name}_partials_seq2"])


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
        if mode == "token_mean":
            sums = [sum(float((losses[i] * torch.tensor(given["mask"][i])).sum()) for i in rank) for rank in split]
            counts = [sum(sum(given["mask"][i]) for i in rank) for rank in split]
            wrong = sum(total / max(n, 1) for total, n in zip(sums, counts, strict=True)) / len(split)
            assert close(wrong, expected[f"negative_control_mean_of_local_means_{name}"])
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
