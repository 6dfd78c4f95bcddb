"""Advantages against the reference vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vectors import close, tensor, vector

from agentrl.algorithm.advantages import (
    broadcast_turns,
    gae,
    group_relative,
    length_adaptive_lambda,
    sum_by_turn,
    turn_starts,
)


def skip_observations(rewards: Any, values: Any, mask: Any, **settings: float) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE over the action positions only, scattered back: advantages and returns, zero on observations."""
    chosen = torch.tensor(mask, dtype=torch.bool)
    rewards, values = tensor(rewards), tensor(values)
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    advantages[chosen] = gae(rewards[chosen], values[chosen], **settings)  # type: ignore[arg-type]
    returns[chosen] = advantages[chosen] + values[chosen]
    return advantages, returns


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


def test_turn_to_token_broadcast__advantage_on_all_tokens_value_target_at_turn_starts() -> None:
    given, expected = vector("turn_to_token")
    position_turns = torch.tensor(given["turn_id"])
    actions = position_turns >= 0
    turn_id = position_turns[actions]
    starts = actions.nonzero().squeeze(-1)[turn_starts(turn_id)]

    def scatter(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(len(position_turns), dtype=torch.float64)
        out[where] = values
        return out

    assert close(tensor(given["token_values"])[starts], given["turn_values"])
    assert close(scatter(broadcast_turns(tensor(given["turn_adv"]), turn_id), actions), expected["broadcast"])
    assert close(scatter(torch.ones(3, dtype=torch.float64), starts), expected["value_mask"])
    assert close(scatter(tensor(given["turn_adv"]) + tensor(given["turn_values"]), starts), expected["value_target"])


def test_sum_by_turn__each_reward_goes_to_its_turn() -> None:
    assert sum_by_turn(
        torch.tensor([0.0, 0.1, 0.0, 0.0, -0.2, 1.0]), torch.tensor([0, 0, 1, 2, 2, 2])
    ).tolist() == pytest.approx([0.1, 0.0, 0.8])


def test_seam_between_contexts__no_discount_and_no_decay_across_it() -> None:
    rewards, values = tensor([0.0, 0.0, 1.0]), tensor([0.2, 0.4, 0.5])
    seamed = gae(rewards, values, final_value=0, gamma=0.9, lam=0.5, seams=torch.tensor([False, True, False]))
    assert close(seamed[2], 0.5)
    assert close(seamed[1], (0.5 - 0.4) + 0.5)
    assert close(seamed[0], (0.9 * 0.4 - 0.2) + 0.45 * 0.6)


@pytest.mark.parametrize("name", ["binary", "dense", "zero_var", "single"])
def test_group_estimators__match(name: str) -> None:
    given, expected = vector("group_estimators")
    rewards = given["groups"][name]
    groups = ["g"] * len(rewards)
    assert close(group_relative(rewards, groups, divide_by_std=True, eps=given["eps"]), expected[name]["grpo_ddof1"])
    assert close(group_relative(rewards, groups, divide_by_std=False), expected[name]["dr_grpo"])
    if name in ("binary", "dense"):
        assert not close(group_relative(rewards, groups, divide_by_std=True), expected[name]["grpo_ddof0"])


def test_group_of_equal_rewards__exact_zeros() -> None:
    assert group_relative([0.1] * 3, ["a"] * 3, divide_by_std=True).tolist() == [0.0, 0.0, 0.0]


def test_groups_by_id__order_and_missing_members_do_not_matter() -> None:
    rewards, groups = [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0], ["a", "b", "a", "b", "b", "a", "b"]
    by_id = group_relative(rewards, groups, divide_by_std=False)
    assert close(by_id, [1 / 3, 0.5, -2 / 3, -0.5, -0.5, 1 / 3, 0.5])
