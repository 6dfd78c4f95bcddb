"""Turns and decision nodes: mapping advantages to tokens, and what a unit is worth, against the reference vectors."""

from __future__ import annotations

import pytest
import torch
from vectors import close, tensor, vector

from agentrl.algorithm.advantages import gae, length_adaptive_lambda
from agentrl.algorithm.turns import (
    advantage_initialised,
    broadcast_turns,
    hierarchical_advantages,
    local_advantages,
    sum_by_turn,
    turn_starts,
    unit_ids,
    unit_values,
)


def action_arrays() -> tuple[dict, dict, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, expected values, the action positions, and unit ids and values over actions only."""
    given, expected = vector("turn_to_token")
    position_turns = torch.tensor(given["turn_id"])
    actions = position_turns >= 0
    return given, expected, actions, position_turns[actions], tensor(given["token_values"])[actions]


def scattered(values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(actions), dtype=torch.float64)
    out[actions] = values
    return out


def test_turn_to_token_broadcast__advantage_on_all_tokens_value_target_at_turn_starts() -> None:
    given, expected, actions, turn_id, values = action_arrays()
    starts = torch.zeros_like(actions)
    starts[actions.nonzero().squeeze(-1)[turn_starts(turn_id)]] = True
    assert close(unit_values(values, turn_id), given["turn_values"])
    assert close(scattered(broadcast_turns(tensor(given["turn_adv"]), turn_id), actions), expected["broadcast"])
    assert starts.int().tolist() == expected["value_mask"]
    assert close(scattered(tensor(given["turn_adv"]) + tensor(given["turn_values"]), starts), expected["value_target"])


def test_sum_by_turn__each_reward_goes_to_its_turn() -> None:
    assert sum_by_turn(
        torch.tensor([0.0, 0.1, 0.0, 0.0, -0.2, 1.0]), torch.tensor([0, 0, 1, 2, 2, 2])
    ).tolist() == pytest.approx([0.1, 0.0, 0.8])


@pytest.mark.parametrize(("lam", "name"), [(0.95, "hier_return"), (1.0, "hier_return_gamma1_lambda1")])
def test_turn_to_token_hierarchical__a_turn_is_worth_advantage_plus_value_at_its_end(lam: float, name: str) -> None:
    given, expected, actions, turn_id, values = action_arrays()
    own = hierarchical_advantages(tensor(given["turn_adv"]), tensor(given["turn_values"]), values, turn_id, lam=lam)
    assert close(scattered(own, actions), expected[name])
    if lam == 1:
        assert close(own[turn_starts(turn_id)], given["turn_adv"])


def test_hierarchical_with_all_factors_one__is_return_minus_value() -> None:
    turn_id, values = torch.tensor([0, 0, 1, 2, 2]), tensor([0.2, 0.3, 0.5, 0.4, 0.7])
    rewards, unit = tensor([0.1, 0.0, 1.0]), unit_values(values, turn_id)
    turn = gae(rewards, unit, final_value=0, gamma=1, lam=1)
    returns = tensor([1.1, 1.0, 1.0])[turn_id]
    assert close(hierarchical_advantages(turn, unit, values, turn_id), returns - values)


def test_turn_to_token_by_initialised_advantage__differs_from_the_hierarchical_one() -> None:
    given, expected, actions, turn_id, values = action_arrays()
    own = advantage_initialised(tensor(given["turn_adv"]), values, turn_id, lam=given["lambda_tok"])
    assert close(scattered(own, actions), expected["hier_adv_init"])
    assert not close(scattered(own, actions), expected["hier_return"])


@pytest.mark.parametrize(("how", "name"), [("mean", "average"), ("last", "last_token")])
def test_step_level_values__match_the_papers_ablation(how: str, name: str) -> None:
    given, expected = vector("sao_step_level_ablation")
    lengths = [len(values) for values in given["token_values"]]
    turn_id = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    flat = tensor([v for values in given["token_values"] for v in values])
    lam = length_adaptive_lambda(len(lengths), given["alpha"])
    values = unit_values(flat, turn_id, how)  # type: ignore[arg-type]
    assert close(lam, expected["lam"])
    assert close(values, expected[name]["V"])
    assert close(gae(tensor(given["rewards"]), values, final_value=0, gamma=1, lam=lam), expected[name]["adv"])


def test_unit_of_credit__is_the_turn_unless_the_environment_marks_its_nodes() -> None:
    turn_id = torch.tensor([0, 0, 1, 1, 1, 2])
    assert unit_ids(turn_id).tolist() == [0, 0, 1, 1, 1, 2]
    several_turns = torch.tensor([1, 0, 0, 0, 0, 1])
    part_of_one = torch.tensor([0, 0, 1, 0, 1, 1])
    assert unit_ids(turn_id, several_turns).tolist() == [0, 0, 0, 0, 0, 1]
    assert unit_ids(turn_id, part_of_one).tolist() == [0, 0, 1, 1, 2, 3]


def test_local_advantage__is_the_change_of_value_over_a_unit() -> None:
    assert close(local_advantages(tensor([0.2, 0.5, 0.4]), 0.0), [0.3, -0.1, -0.4])


def test_three_step_story__equal_pieces_say_nothing_and_local_advantages_name_the_step() -> None:
    """Search, calculator, answer; the episode earns 40. The critic saw the search raise its hopes from 5 to 35."""
    values, reward = tensor([5.0, 35.0, 36.0]), 40.0
    equal_pieces = torch.full((3,), reward / 3, dtype=torch.float64)
    assert bool((equal_pieces == equal_pieces[0]).all())
    rewards = tensor([0.0, 0.0, reward])
    by_turn = gae(rewards, values, final_value=0, gamma=1, lam=0)
    assert close(by_turn, [30.0, 1.0, 4.0])
    assert int(by_turn.argmax()) == 0
    assert close(local_advantages(values, 0.0)[:2], by_turn[:2])  # the reward is not in them: the last ends at value 0
    whole = gae(rewards, values, final_value=0, gamma=1, lam=1)
    assert close(whole, reward - values)


@pytest.mark.parametrize(("value", "advantage"), [(0.9, 0.1), (0.2, 0.8), (1.3, -0.3)])
def test_reward_one_minus_its_value__is_the_advantage_of_a_single_turn(value: float, advantage: float) -> None:
    assert close(gae(tensor([1.0]), tensor([value]), final_value=0, gamma=1, lam=0.9), [advantage])
