"""Group baselines against the reference vectors."""

from __future__ import annotations

import pytest
import torch
from vectors import close, vector

from agentrl.algorithm.groups import anchor_relative, group_relative, leave_one_out, turn_group_relative, uniform_groups


@pytest.mark.parametrize("name", ["binary", "dense", "zero_var", "single"])
def test_group_estimators__match(name: str) -> None:
    given, expected = vector("group_estimators")
    rewards = given["groups"][name]
    groups = ["g"] * len(rewards)
    assert close(group_relative(rewards, groups, divide_by_std=True, eps=given["eps"]), expected[name]["grpo_ddof1"])
    assert close(group_relative(rewards, groups, divide_by_std=False), expected[name]["dr_grpo"])
    population = group_relative(rewards, groups, divide_by_std=True, ddof=0, eps=given["eps"])
    assert close(population, expected[name]["grpo_ddof0"])
    assert close(leave_one_out(rewards, groups), expected[name]["rloo"])
    if name in ("binary", "dense"):
        assert not close(group_relative(rewards, groups, divide_by_std=True), expected[name]["grpo_ddof0"])


def test_group_of_equal_rewards__exact_zeros() -> None:
    assert group_relative([0.1] * 3, ["a"] * 3, divide_by_std=True).tolist() == [0.0, 0.0, 0.0]


def test_groups_by_id__order_and_missing_members_do_not_matter() -> None:
    rewards, groups = [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0], ["a", "b", "a", "b", "b", "a", "b"]
    by_id = group_relative(rewards, groups, divide_by_std=False)
    assert close(by_id, [1 / 3, 0.5, -2 / 3, -0.5, -0.5, 1 / 3, 0.5])


def test_uniform_groups__are_filtered_before_tokens_are_counted() -> None:
    given, expected = vector("dapo_filter")
    rewards = [float(r) for group in given["groups"] for r in group]
    groups = [number for number, group in enumerate(given["groups"]) for _ in group]
    uniform = uniform_groups(rewards, groups)
    kept = [number for number in range(len(given["groups"])) if number not in uniform]
    assert kept == expected["kept_groups"]
    assert sum(sum(given["tokens"][number]) for number in kept) == expected["token_denominator"]
    assert close(len(uniform) / len(given["groups"]), expected["filtered_frac"])


def test_turn_level_groups_of_two_turns__match_mt_grpo() -> None:
    given, expected = vector("mt_grpo_two_turn")
    own = turn_group_relative(
        [[reward, 0.0] for reward in given["intermediate"]], given["outcome"], ["g"] * 4, gamma=given["alpha"], eps=given["eps"]
    )
    assert close(torch.stack([a[0] for a in own]), expected["turn1"])
    assert close(torch.stack([a[1] for a in own]), expected["turn2"])


def test_turn_level_groups_of_unequal_length__compare_the_members_that_have_the_turn() -> None:
    rewards = [[0.1, 0.4], [0.3], [0.2, 0.6, 1.0]]
    own = turn_group_relative(rewards, [0.0] * 3, ["g"] * 3, gamma=0.5, divide_by_std=False)
    second = [-0.1, 0.1]
    assert close(own[2], [0.0 + 0.5 * second[1], second[1], 0.0])  # the third turn has nobody to compare with
    assert close(own[0], [-0.1 + 0.5 * second[0], second[0]])
    assert close(own[1], [0.1])


def test_anchor_groups__match_gigpo() -> None:
    given, expected = vector("gigpo")
    own = anchor_relative(
        given["episode_reward"], given["step_returns"], given["states"], ["g"] * 3, weight=given["omega"], eps=given["eps"]
    )
    episode = group_relative(given["episode_reward"], ["g"] * 3, divide_by_std=True, eps=given["eps"])
    assert close(episode, expected["A_E"])
    for advantages, whole in zip(own, expected["A"], strict=True):
        assert close(advantages, whole)
    steps = anchor_relative([0.0] * 3, given["step_returns"], given["states"], ["g"] * 3, eps=given["eps"])
    for advantages, part in zip(steps, expected["A_S"], strict=True):
        assert close(advantages, part)


def test_equal_states_of_different_tasks__are_not_compared() -> None:
    own = anchor_relative([0.0, 0.0], [[1.0], [0.0]], [["s"], ["s"]], ["a", "b"], divide_by_std=False)
    assert [a.tolist() for a in own] == [[0.0], [0.0]]
