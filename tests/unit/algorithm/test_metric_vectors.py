"""Metrics against the reference vectors."""

from __future__ import annotations

import torch
from vectors import close, tensor, vector

from agentrl.algorithm.logprobs import token_logprob
from agentrl.algorithm.metrics import (
    Cosine,
    Ratio,
    effective_sample_size,
    explained_variance,
    gradient_cosine,
    kept_by_lag,
    kl_old_new,
    masked_mean,
    masked_shares,
    off_policy,
)
from agentrl.algorithm.ratios import strictly_inside


def test_kl_estimators__match_over_masked_tokens() -> None:
    given, expected = vector("kl_estimators")
    kl = kl_old_new(tensor(given["logp_old"]), tensor(given["logp_new"]), torch.tensor(given["mask"]))
    assert close([kl.k1.value, kl.k2.value, kl.k3.value], [expected["k1"], expected["k2"], expected["k3"]])
    reversed_kl = kl_old_new(tensor(given["logp_new"]), tensor(given["logp_old"]), torch.tensor(given["mask"]))
    assert not close(reversed_kl.k3.value, expected["k3"])


def test_kl_at_a_masked_sentinel__is_never_read() -> None:
    old, new = torch.tensor([-1.0, float("nan")]), torch.tensor([-1.0, float("inf")])
    assert kl_old_new(old, new, torch.tensor([1, 0])).k3.value == 0.0


def test_effective_sample_size__matches_at_token_and_sequence_level() -> None:
    given, expected = vector("ess")
    assert close([effective_sample_size(tensor(w).log()) for w in given["weights"]], expected["ess_norm"])
    token_level = torch.cat([tensor(x) for x in given["log_ratios"]])
    sequence_level = torch.stack([tensor(x).sum() for x in given["log_ratios"]])
    assert close(effective_sample_size(token_level), expected["token_ess_norm"])
    assert close(effective_sample_size(sequence_level), expected["seq_ess_norm"])
    assert close((effective_sample_size(sequence_level) / given["rho_on"]) ** 0.5, expected["vcpo_lr_scale"])


def test_effective_sample_size_of_huge_log_weights__finite() -> None:
    assert effective_sample_size(torch.tensor([900.0, 900.0])) == 1.0
    assert effective_sample_size(torch.tensor([])) is None


def test_explained_variance__matches_and_is_undefined_without_variance() -> None:
    given, expected = vector("explained_variance")
    returns, values, mask = tensor(given["returns"]), tensor(given["values"]), torch.tensor(given["mask"])
    assert close(explained_variance(returns, values, mask), expected["ev"])
    assert not close(explained_variance(returns, values, torch.ones(5)), expected["ev"])
    degenerate = tensor(given["degenerate_returns"])
    assert explained_variance(degenerate, degenerate * 0.5, torch.ones(2)) is expected["ev_degenerate"]


def test_entropy_and_log_prob_from_logits__match() -> None:
    given, expected = vector("entropy")
    logits = tensor(given["probs"]).log() + 3.0
    logprob, entropy = token_logprob(logits, torch.tensor([1, 0]))
    assert close(entropy, expected["entropy"])
    assert close(entropy.mean(), expected["mean"])
    assert close(logprob.exp(), [0.25, 0.97])


def test_log_prob_at_a_temperature__divides_logits_not_log_probs() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    at_one = token_logprob(logits, torch.tensor([0]))[0]
    at_six_tenths = token_logprob(logits, torch.tensor([0]), torch.tensor([0.6]))[0]
    assert round(float(at_one), 4) == -0.4076
    assert round(float(at_six_tenths), 4) == -0.2026
    assert not close(at_six_tenths, at_one / 0.6)


def test_log_prob_gradient__equals_log_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 11, generator=generator, dtype=torch.float64)
    targets, scale = torch.randint(0, 11, (6,), generator=generator), torch.randn(6, generator=generator, dtype=torch.float64)
    ours, reference = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    (token_logprob(ours, targets)[0] * scale).sum().backward()
    (reference.log_softmax(-1).gather(-1, targets[:, None])[:, 0] * scale).sum().backward()
    assert ours.grad is not None
    assert close(ours.grad, reference.grad)


def test_entropy_gradient__equals_autograd_also_beside_the_log_prob() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 11, generator=generator, dtype=torch.float64)
    logits[0, 1:] = -1000.0  # all probability on one token: 0 log 0
    targets, scale = torch.zeros(6, dtype=torch.int64), torch.randn(6, generator=generator, dtype=torch.float64)
    ours, reference = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    logprob, entropy = token_logprob(ours, targets)
    (entropy * scale + logprob).sum().backward()
    logs = reference.log_softmax(-1)
    (-(logs.exp() * logs).sum(-1) * scale + logs[:, 0]).sum().backward()
    assert ours.grad is not None
    assert close(ours.grad, reference.grad)


def test_off_policy_moments__match() -> None:
    given, expected = vector("offpolicy_metrics")
    own = off_policy(tensor([*given["log_ratio"], 99.0]), torch.tensor([1, 1, 1, 1, 0]))
    assert close([own.chi2, own.m2, own.ppl_ratio], [expected["chi2"], expected["m2"], expected["ppl_ratio"]])
    assert off_policy(tensor([]), torch.tensor([])).chi2 is None


def test_gradient_cosine__parts_over_shards_add_before_dividing() -> None:
    given, expected = vector("pg_cosine")
    first, second = tensor(given["g1"]), tensor(given["g2"])
    assert close(gradient_cosine([first], [second]).value, expected["cos"])
    parts = [gradient_cosine([first[shard]], [second[shard]]) for shard in given["shards"]]
    assert close([list(part) for part in parts], expected["partial"])
    assert close(Cosine(*(sum(column) for column in zip(*parts, strict=True))).value, expected["cos"])
    mean_of_shards = sum(part.value or 0.0 for part in parts) / len(parts)
    assert not close(mean_of_shards, expected["cos"])
    assert gradient_cosine([first], [torch.zeros(4)]).value is None


def test_kept_rate_by_lag__each_bucket_over_its_own_tokens() -> None:
    kept, lag = torch.tensor([1, 1, 0, 1, 0, 0]), torch.tensor([0, 0, 1, 3, 9, 9])
    rates = kept_by_lag(kept, lag, torch.tensor([1, 1, 1, 1, 1, 0]))
    assert {name: tuple(rate) for name, rate in rates.items()} == {"0": (2, 2), "1": (0, 1), "2_3": (1, 1), "8_up": (0, 1)}


def test_masked_shares__each_dropped_token_counts_on_its_side_and_sign() -> None:
    given, expected = vector("dis_loss_grad")
    logp, rollout = tensor(given["logp_current"]), tensor(given["logp_rollout"])
    kept = strictly_inside(logp - rollout, low=given["lower"], high=given["upper"])
    shares = masked_shares(logp - rollout, tensor(given["advantage"]), torch.tensor(given["mask"]), kept)
    assert close(shares.high.value, expected["masked_frac_high"])
    assert close(shares.low.value, expected["masked_frac_low"])
    assert shares.high_positive == Ratio(1.0, 5.0)
    assert shares.high_negative == Ratio(0.0, 5.0)
    assert shares.low_positive == Ratio(1.0, 5.0)
    assert shares.low_negative == Ratio(0.0, 5.0)


def test_ratio_of_parts__adds_before_dividing() -> None:
    left, right = masked_mean(tensor([1.0]), torch.ones(1)), masked_mean(tensor([0.0] * 99), torch.ones(99))
    whole = Ratio(left.numerator + right.numerator, left.denominator + right.denominator)
    assert whole.value == 0.01
    assert masked_mean(tensor([1.0]), torch.zeros(1)).value is None
