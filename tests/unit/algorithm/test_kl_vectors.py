"""Distance to a reference policy and its controllers."""

from __future__ import annotations

import pytest
import torch
from vectors import close, tensor, vector

from agentrl.algorithm.kl import band_coefficient, kl_per_token, ziegler_coefficient


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_to_the_reference__matches(estimator: str) -> None:
    given, expected = vector("kl_to_ref")
    new, reference = tensor(given["logp_new"]), tensor(given["logp_ref"])
    assert close(kl_per_token(new, reference, estimator), expected[estimator])  # type: ignore[arg-type]
    if estimator != "k2":
        assert not close(kl_per_token(reference, new, estimator), expected[estimator])  # type: ignore[arg-type]


def test_k2_gradient__is_that_of_k1_in_the_reward() -> None:
    logp, reference = tensor([-0.9, -0.5]).requires_grad_(), tensor([-1.1, -0.4])
    kl_per_token(logp, reference, "k2").sum().backward()
    assert logp.grad is not None
    assert close(logp.grad, kl_per_token(logp.detach(), reference, "k1"))


def test_capped_token__has_no_gradient() -> None:
    logp = torch.tensor([-20.0, -1.0], requires_grad=True)
    own = kl_per_token(logp, torch.tensor([-1.0, -1.5]), "k3", cap=10.0)
    own.sum().backward()
    assert float(own[0].detach()) == 10.0
    assert logp.grad is not None
    assert float(logp.grad[0]) == 0.0
    assert float(logp.grad[1]) != 0.0


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_token_that_the_policy_has_given_up__finite_with_a_finite_gradient(estimator: str) -> None:
    logp = torch.tensor([-300.0, -torch.inf, -1.0], requires_grad=True)
    own = kl_per_token(logp, torch.tensor([-1.0, -1.0, -1.5]), estimator, cap=10.0)  # type: ignore[arg-type]
    own.sum().backward()
    assert own.detach().tolist()[:2] == [10.0, 10.0]
    assert logp.grad is not None
    assert logp.grad.tolist()[:2] == [0.0, 0.0]
    assert float(logp.grad[2]) != 0.0


def test_ziegler_controller__matches() -> None:
    given, expected = vector("adaptive_kl_ziegler")
    own = [ziegler_coefficient(b, kl=kl, target=target, n=n, horizon=h) for b, kl, target, n, h in given["cases"]]
    assert close(own, expected["beta"])


def test_ziegler_controller__a_step_longer_than_the_horizon_keeps_the_sign() -> None:
    assert close(ziegler_coefficient(0.1, kl=0.0, target=0.02, n=640, horizon=10), 0.08)
    assert close(ziegler_coefficient(0.1, kl=9.0, target=0.02, n=640, horizon=10), 0.12)


@pytest.mark.parametrize(
    ("kl", "coefficient"), [(0.0005, 0.01 / 1.5), (0.001, 0.01), (0.02, 0.01), (0.05, 0.01), (0.06, 0.015)]
)
def test_band_controller__acts_strictly_outside_its_band(kl: float, coefficient: float) -> None:
    assert close(band_coefficient(0.01, kl=kl), coefficient)


def test_band_controller__stays_in_its_range() -> None:
    assert band_coefficient(1e-4, kl=0.0) == 1e-4
    assert band_coefficient(0.9, kl=1.0) == 1.0
