"""Advantages against the reference vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vectors import close, tensor, vector

from agentrl.algorithm.advantages import gae, length_adaptive_lambda, skip_observation_gae


def skip_observations(
    rewards: Any, values: Any, mask: Any, *, final_value: float, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and value targets, zero on observations."""
    actions = torch.tensor([mask], dtype=torch.bool)
    rewards, values = tensor([rewards]), tensor([values])
    advantages = skip_observation_gae(rewards, values, actions, final_values=tensor([final_value]), gamma=gamma, lam=lam)
    return advantages[0], torch.where(actions, advantages + values, 0.0)[0]


def test_token_gae_with_observation_gaps__matches_every_ending() -> None:
    given, expected = vector("token_gae_gap")
    common = {"values": given["values"], "mask": given["mask"]}
    decayed = {"gamma": given["gamma"], "lam": given["lam"]}
    cases = {
        "terminated": skip_observations(given["rewards_terminated"], **common, final_value=0, **decayed),
        "truncated_bootstrap": skip_observations(
            given["rewards_truncated"], **common, final_value=given["bootstrap_value"], **decayed
        ),
        "truncated_no_bootstrap": skip_observations(given["rewards_truncated"], **common, final_value=0, **decayed),
        "monte_carlo_gamma1_lam1": skip_observations(given["rewards_terminated"], **common, final_value=0, gamma=1, lam=1),
    }
    for name, (advantages, returns) in cases.items():
        assert close(advantages, expected[name]["adv"]), name
        assert close(returns, expected[name]["ret"]), name


def test_token_gae_over_observations_too__differs() -> None:
    given, expected = vector("token_gae_gap")
    wrong = gae(
        tensor(given["rewards_terminated"]), tensor(given["values"]), final_value=0, gamma=given["gamma"], lam=given["lam"]
    )
    assert close(wrong, expected["negative_control_no_skip"]["adv"])
    assert not close(wrong, expected["terminated"]["adv"])


def test_terminal_reward_after_forty_observation_tokens__arrives_undiscounted() -> None:
    advantages, _ = skip_observations(
        [0.0] + [0.0] * 40 + [1.0], [0.0] * 42, [1] + [0] * 40 + [1], final_value=0, gamma=1, lam=0.95
    )
    assert close(advantages[[0, -1]], [0.95, 1.0])


def test_length_adaptive_lambda__matches() -> None:
    given, expected = vector("length_adaptive_lambda")
    assert close([length_adaptive_lambda(length, alpha) for alpha, length in given["cases"]], expected["lam"])


def test_decoupled_lambda__policy_and_critic_differ() -> None:
    given, expected = vector("sao_decoupled_lambda")
    lam = length_adaptive_lambda(given["n_action_tokens"], given["alpha"])
    assert close(lam, expected["lambda_policy"])
    common = {"rewards": given["rewards"], "values": given["values"], "mask": given["mask"], "final_value": 0, "gamma": 1}
    assert close(skip_observations(**common, lam=lam)[0], expected["policy_adv"])
    assert close(skip_observations(**common, lam=1)[1], expected["value_target"])
    assert not close(skip_observations(**common, lam=1)[0], expected["policy_adv"])


@pytest.mark.parametrize("ending", ["terminated", "truncated_bootstrap", "truncated_no_bootstrap"])
def test_turn_gae__matches_every_ending(ending: str) -> None:
    given, expected = vector("turn_gae")
    rewards, values = tensor(given["process_rewards"]), tensor(given["turn_values"])
    if ending == "terminated":
        rewards[-1] += given["terminal_reward"]
    final = given["bootstrap_value"] if ending == "truncated_bootstrap" else 0
    settings = {"final_value": final, "gamma": given["gamma_turn"]}
    assert close(gae(rewards, values, lam=0, **settings), expected[ending]["delta"])
    advantages = gae(rewards, values, lam=given["lambda_turn"], **settings)
    assert close(advantages, expected[ending]["adv"])
    assert close(advantages + values, expected[ending]["ret"])


def test_turn_gae_of_a_single_turn__matches() -> None:
    given, expected = vector("turn_gae")
    single, values = given["single_turn"], tensor(given["single_turn"]["turn_values"])
    settings = {"gamma": given["gamma_turn"], "lam": given["lambda_turn"]}
    ended = gae(tensor([single["reward"]]), values, final_value=0, **settings)
    cut = gae(tensor([0.0]), values, final_value=single["bootstrap_value"], **settings)
    assert close(ended, expected["single_terminated"]["adv"])
    assert close(cut, expected["single_truncated_bootstrap"]["adv"])


def test_seam_between_contexts__no_discount_and_no_decay_across_it() -> None:
    rewards, values = tensor([0.0, 0.0, 1.0]), tensor([0.2, 0.4, 0.5])
    seamed = gae(rewards, values, final_value=0, gamma=0.9, lam=0.5, seams=torch.tensor([False, True, False]))
    assert close(seamed[2], 0.5)
    assert close(seamed[1], (0.5 - 0.4) + 0.5)
    assert close(seamed[0], (0.9 * 0.4 - 0.2) + 0.45 * 0.6)


@pytest.mark.parametrize(("window", "name"), [(1, "W1"), (2, "W2"), (3, "W3"), (5, "W5"), (50, "W5")])
def test_td_window__sums_that_many_turns(window: int, name: str) -> None:
    given, expected = vector("td_clip_window")
    rewards, values = tensor(given["rewards"]), tensor(given["turn_values"])
    own = gae(rewards, values, final_value=0, gamma=given["gamma"], lam=given["lam"], window=window)
    assert close(own, expected[name])


def test_td_window_at_a_cut_off_end__ends_in_the_bootstrap_value() -> None:
    given, expected = vector("td_clip_window")
    rewards, values = tensor(given["rewards"]), tensor(given["turn_values"])
    rewards[-1] = 0.0
    own = gae(rewards, values, final_value=given["bootstrap_value"], gamma=given["gamma"], lam=given["lam"], window=2)
    assert close(own, expected["W2_truncated_boot0.5"])


def test_td_window_with_lambda_one__is_the_n_step_error() -> None:
    given, expected = vector("td_clip_window")
    own = gae(tensor(given["rewards"]), tensor(given["turn_values"]), final_value=0, gamma=given["gamma"], lam=1, window=2)
    assert close(own, expected["W2_lambda1_nstep"])


def test_td_clamp__bounds_each_error_before_the_sum() -> None:
    given, expected = vector("td_clip_window")
    arguments = {"final_value": 0, "gamma": given["gamma"], "lam": given["lam"], "window": 3}
    rewards, values = tensor(given["rewards"]), tensor(given["turn_values"])
    assert close(gae(rewards, values, clamp=given["clamp"], **arguments), expected["W3_delta_clamp0.3"])
    assert not close(gae(rewards, values, **arguments), expected["W3_delta_clamp0.3"])


def plain_loop(
    rewards: torch.Tensor, values: torch.Tensor, actions: torch.Tensor, final: float, gamma: float, lam: float, window: int
) -> torch.Tensor:
    """One row, as the definition reads: the sum over the next ``window`` actions."""
    places = actions.nonzero().squeeze(-1).tolist()
    after = [float(values[p]) for p in places[1:]] + [final] * bool(places)
    deltas = [float(rewards[p]) + gamma * nxt - float(values[p]) for p, nxt in zip(places, after, strict=True)]
    result = torch.zeros_like(values)
    for j, place in enumerate(places):
        result[place] = sum((gamma * lam) ** i * delta for i, delta in enumerate(deltas[j : j + window]))
    return result


@pytest.mark.parametrize("length", [1, 7, 256, 257, 700])
@pytest.mark.parametrize("window", [None, 4])
def test_batched_gae_of_any_length__equals_the_definition(length: int, window: int | None) -> None:
    generator = torch.Generator().manual_seed(length)
    rewards, values = (torch.randn(3, length, generator=generator, dtype=torch.float64) for _ in range(2))
    actions = torch.rand(3, length, generator=generator) < 0.6
    actions[2] = False
    finals, lams = tensor([0.0, 0.7, 5.0]), tensor([0.95, 0.5, 0.9])
    values[~actions] = 1e6
    rewards[~actions] = torch.nan
    own = skip_observation_gae(rewards, values, actions, final_values=finals, gamma=0.99, lam=lams, window=window)
    for row in range(3):
        expected = plain_loop(
            rewards[row], values[row], actions[row], float(finals[row]), 0.99, float(lams[row]), window or length
        )
        assert close(own[row], expected)
    assert not own[2].any()
