"""A true run passes; each planted lie is found and its row is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
import torch
from replay_samples import CONTEXT, FIRST, Evidence, World, call, forged, resealed

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import TokenDrift
from agentrl.replay.ledger import check_step
from agentrl.trainer.batch import build_batch
from agentrl.trainer.credit import Values, assign_credit
from agentrl.trainer.stale_tokens import mask_versions
from agentrl.types import OUTSIDE, FinishReason, Outcome, Termination


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def ended(world: World) -> Evidence:
    """call, wrong text, stop: a natural end, and a reward of the first turn."""
    return world.play([call(1), "what?", "stop"])


@pytest.fixture(scope="module")
def spent(world: World) -> Evidence:
    """Three turns without an end."""
    return world.play([call(1), call(2), call(3)], number=1)


@pytest.fixture(scope="module")
def cut(world: World) -> Evidence:
    """The second turn runs out of tokens."""
    return world.play([call(1), "~" + "stop " * 60], number=2)


def lie(world: World, evidence: Evidence) -> str:
    with pytest.raises(TokenDrift) as found:
        world.checker().check([evidence])
    assert str(evidence.stored.id) in str(found.value)
    return str(found.value)


def test_true_rows__pass_and_are_counted(world: World, ended: Evidence, spent: Evidence, cut: Evidence) -> None:
    assert [e.stored.termination for e in (ended, spent, cut)] == [
        Termination.TERMINATED,
        Termination.TRUNCATED_TURNS,
        Termination.TRUNCATED_TURN_TOKENS,
    ]
    checker = world.checker()
    checker.check([ended, spent, cut])
    report = checker.report
    assert (report.trajectories, report.segments, report.unrendered) == (3, 9, 0)
    assert report.rendered == 9
    assert (report.verdicts, report.turn_rewards) == (1, 3)
    rescorer = checker._rescorer
    assert rescorer is not None
    assert rescorer.tokens == report.actions
    assert rescorer.versions == {0, 1}
    assert rescorer.largest < 1e-5


@pytest.mark.parametrize(("number", "token"), [(0, 2), (1, 3), (2, 1)])
def test_changed_observation_id__is_found_with_its_token(world: World, ended: Evidence, number: int, token: int) -> None:
    observation = ended.stored.segments[number].observation.copy()
    observation[token] = (observation[token] + 1) % 300
    text = world.chat.decode(observation.tolist())
    said = lie(world, forged(ended, number, observation=observation, observation_text=text))
    assert f"segment {number}, token " in said
    assert "another prefix" in said or "no message" in said or "in a content" in said


def test_text_is_the_ids__a_changed_id_does_not_fit_its_text(world: World, ended: Evidence) -> None:
    observation = ended.stored.segments[1].observation.copy()
    observation[3] += 1
    assert "segment 1: the observation's ids decode to another text" in lie(world, forged(ended, 1, observation=observation))


def test_lost_separator__is_another_prefix(world: World, ended: Evidence) -> None:
    observation = ended.stored.segments[1].observation[1:]
    text = world.chat.decode(observation.tolist())
    assert "segment 1, token 0" in lie(world, forged(ended, 1, observation=observation, observation_text=text))


def test_tool_token_with_mask__would_be_trained(world: World, ended: Evidence) -> None:
    segment = ended.stored.segments[1]
    moved = 2
    action = np.concatenate([segment.observation[-moved:], segment.action])
    said = lie(
        world,
        forged(
            ended,
            1,
            observation=segment.observation[:-moved],
            action=action,
            observation_text=world.chat.decode(segment.observation[:-moved].tolist()),
            action_text=world.chat.decode_action(action.tolist()),
            logprobs=np.concatenate([np.full(moved, -0.1, np.float32), segment.logprobs]),
            versions=np.concatenate([segment.versions[:1]] * moved + [segment.versions]),
        ),
    )
    assert f"segment 1, token {segment.n_obs - moved}" in said
    assert "it would be trained" in said


def test_shifted_logprob__is_found_with_its_token(world: World, ended: Evidence) -> None:
    logprobs = ended.stored.segments[1].logprobs.copy()
    logprobs[2] -= 0.01
    said = lie(world, forged(ended, 1, logprobs=logprobs))
    assert "segment 1, action token 2" in said
    assert "under version 1" in said


def test_logprobs_of_the_neighbours__are_found(world: World, ended: Evidence) -> None:
    logprobs = np.roll(ended.stored.segments[0].logprobs, 1)
    assert "segment 0, action token" in lie(world, forged(ended, 0, logprobs=logprobs))


def test_wrong_version_span__gives_other_logprobs(world: World, ended: Evidence) -> None:
    versions = np.full(ended.stored.segments[1].n_act, FIRST, np.int32)
    said = lie(world, forged(ended, 1, versions=versions))
    assert "segment 1, action token" in said
    assert "under version 0" in said


def test_version_that_never_was__is_found(world: World, ended: Evidence) -> None:
    versions = np.full(ended.stored.segments[2].n_act, 7, np.int32)
    assert "version 7, which the run never had" in lie(world, forged(ended, 2, versions=versions))


def test_versions_that_go_back__are_found(world: World, ended: Evidence) -> None:
    versions = np.full(ended.stored.segments[2].n_act, FIRST, np.int32)
    said = lie(world, forged(ended, 2, versions=versions))
    assert f"segment 2, token {ended.stored.segments[2].n_obs}: version 0 after version 1" in said


def test_reward_on_another_turn__gives_other_advantages(world: World, ended: Evidence) -> None:
    evidence = world.step([ended.stored])
    checker = world.checker()
    checker.check_step([ended.stored], evidence)
    assert checker.report.recredited == 1
    moved = forged(forged(ended, 0, reward=None), 1, reward=0.5)
    with pytest.raises(TokenDrift, match=r"segment 0, token \d+: step 1 trained it with advantage"):
        checker.check_step([moved.stored], evidence)


def test_other_verdict__gives_other_advantages_but_a_regrade_does_not(world: World, ended: Evidence) -> None:
    evidence = world.step([ended.stored])
    assert ended.stored.reward is not None
    other = replace(ended.stored, reward=replace(ended.stored.reward, value=0.25))
    world.checker().check_step([other], evidence)
    with pytest.raises(TokenDrift, match="trained it with advantage"):
        world.checker().check_step([other], replace(evidence, verdicts=[0.25]))


def test_group_advantages__are_computed_again_over_the_whole_step(world: World, ended: Evidence) -> None:
    group = uuid4()
    other = world.play(["stop"], number=4).stored
    assert other.reward is not None
    members = [replace(s, group=group, seat=i) for i, s in enumerate((ended.stored, other))]
    settings = AlgorithmConfig(advantage="group", critic=None, group_size=2, group_std=False, truncation="zero")
    credit = assign_credit(build_batch(members, max_context=CONTEXT), None, settings)
    evidence = world.step(members)
    trained = [
        replace(t, values=None, returns=None, advantages=a.numpy())
        for t, a in zip(evidence.trained, credit.advantages, strict=True)
    ]
    evidence = replace(evidence, trained=trained)
    assert check_step(members, evidence, settings, CONTEXT) == 2
    with pytest.raises(TokenDrift, match=f"{other.id}|{ended.stored.id}"):
        check_step(members, replace(evidence, verdicts=[1.0, 0.0]), settings, CONTEXT)
    assert check_step(members, replace(evidence, n_trajectories=3), settings, CONTEXT) == 0, "a member is gone"


def test_masked_tokens__are_left_out_of_what_advantages_are_normalised_over(world: World, ended: Evidence) -> None:
    members = [ended.stored, world.play(["stop"], number=4).stored]
    stale = [int(ended.stored.segments[0].versions[0])]
    settings = AlgorithmConfig(advantage="token_gae", gae_lambda=1.0, normalise="token")
    evidence = replace(world.step(members), masked_versions=[stale, []])
    batch = build_batch([mask_versions(members[0], stale), members[1]], max_context=CONTEXT)
    values = [Values(torch.linspace(0.0, 1.0, t.n_actions), 0.0) for t in batch.trajectories]
    credit = assign_credit(batch, values, settings)
    trained = [
        replace(t, values=v.at_actions.numpy(), advantages=a.numpy())
        for t, v, a in zip(evidence.trained, values, credit.advantages, strict=True)
    ]
    evidence = replace(evidence, trained=trained)
    assert check_step(members, evidence, settings, CONTEXT) == 2
    with pytest.raises(TokenDrift, match="trained it with advantage"):
        check_step(members, replace(evidence, masked_versions=[[], []]), settings, CONTEXT)


def test_bootstrapped_credit__is_left_out(world: World, spent: Evidence) -> None:
    checker = world.checker()
    checker.check_step([spent.stored], world.step([spent.stored]))
    assert checker.report.recredited == 0


def test_more_trained_than_sampled__is_found(world: World, ended: Evidence) -> None:
    evidence = world.step([ended.stored])
    longer = replace(evidence.trained[0], advantages=np.zeros(99, np.float32))
    with pytest.raises(TokenDrift, match="99 advantages were trained"):
        world.checker().check_step([ended.stored], replace(evidence, trained=[longer]))


def test_unit_of_credit_that_was_marked_later__is_found(world: World, ended: Evidence) -> None:
    evidence = world.step([ended.stored])
    units = np.zeros(ended.stored.segments[1].n_act, np.uint8)
    with pytest.raises(TokenDrift, match=r"\d units of credit were trained, \d are marked"):
        world.checker().check_step([forged(ended, 1, unit_starts=units).stored], evidence)


def test_end_is_told__truncation_called_natural_end_is_found(world: World, spent: Evidence, cut: Evidence) -> None:
    said = lie(world, resealed(spent, termination=Termination.TERMINATED))
    assert "segment 3: the environment answered the last turn" in said
    said = lie(world, resealed(cut, termination=Termination.TERMINATED))
    assert "segment 1: the last turn was cut" in said


def test_end_is_told__natural_end_called_truncation_is_found(world: World, ended: Evidence) -> None:
    assert "ended by itself" in lie(world, resealed(ended, termination=Termination.TRUNCATED_TURN_TOKENS))
    short = world.play(["stop"], number=3)
    assert "after 1 of 3 turns" in lie(world, resealed(short, termination=Termination.TRUNCATED_TURNS))


def test_end_is_told__budget_of_another_kind_is_found(world: World, spent: Evidence, cut: Evidence) -> None:
    assert "the last turn was cut" in lie(world, resealed(cut, termination=Termination.TRUNCATED_TIME))
    assert "of 240 tokens" in lie(world, resealed(cut, termination=Termination.TRUNCATED_TOKENS))
    assert "ended by itself" in lie(world, resealed(spent, termination=Termination.TRUNCATED_TURN_TOKENS))


def test_sampled_tokens_train__a_dropped_stop_token_is_found(world: World, ended: Evidence) -> None:
    segment = ended.stored.segments[0]
    shorter = {name: getattr(segment, name)[:-1] for name in ("action", "logprobs", "versions")}
    assert f"segment 0, token {segment.n_obs + segment.n_act - 2}: finish reason stop" in lie(
        world, forged(ended, 0, **shorter)
    )


def test_sampled_tokens_train__a_stop_token_in_the_middle_is_found(world: World, ended: Evidence) -> None:
    action = ended.stored.segments[0].action.copy()
    action[1] = world.chat.end_of_turn_id
    assert "a stop token inside of a turn" in lie(world, forged(ended, 0, action=action))


def test_text_is_the_ids__a_cut_turn_that_called_a_tool_is_found(world: World, cut: Evidence, ended: Evidence) -> None:
    calls = ended.stored.segments[0].tool_calls
    assert "half a call may have been run" in lie(world, forged(cut, 1, tool_calls=calls))


def test_text_is_the_ids__another_call_than_the_text_makes_is_found(world: World, ended: Evidence) -> None:
    assert "its text makes 1 tool calls, not the 0" in lie(world, forged(ended, 0, tool_calls=()))


def test_other_tool_result__is_another_prefix(world: World, ended: Evidence) -> None:
    (result,) = ended.stored.segments[0].tool_results
    said = lie(world, forged(ended, 0, tool_results=(replace(result, text="ok 7"),)))
    assert "segment 1, token" in said


def test_missing_segment__is_found(world: World, ended: Evidence) -> None:
    assert "segment 1 is missing" in lie(world, resealed(ended, segments=[ended.stored.segments[i] for i in (0, 2)]))


def test_equal_lengths__other_lengths_and_numbers_that_are_no_logprobs_are_found(world: World, ended: Evidence) -> None:
    segment = ended.stored.segments[0]
    short = replace(segment, logprobs=segment.logprobs[1:])
    stored = replace(ended.stored, segments=[short, *ended.stored.segments[1:]])
    assert f"{segment.n_act} action tokens, but {segment.n_act - 1} log-probs" in lie(world, Evidence(stored, ended.task))
    positive = segment.logprobs.copy()
    positive[0] = 0.5
    assert f"segment 0, token {segment.n_obs}: 0.5 is no log-prob" in lie(world, forged(ended, 0, logprobs=positive))


def test_finish_reason_without_an_action__is_found(world: World, spent: Evidence) -> None:
    assert "without an action" in lie(world, forged(spent, 3, finish_reason=FinishReason.STOP))


def test_other_template_or_tokenizer__is_found(world: World, ended: Evidence) -> None:
    lineage = replace(ended.stored.lineage, template_hash="other")
    assert "it names another chat template (other)" in lie(world, resealed(ended, lineage=lineage))


def test_outcome_without_its_verdict__is_found(world: World, ended: Evidence, spent: Evidence) -> None:
    assert "has no verdict" in lie(world, resealed(ended, reward=None))
    assert "has a verdict" in lie(world, resealed(ended, outcome=Outcome.POLICY_ENDED))


def test_context_that_nobody_opened__is_found(world: World, ended: Evidence) -> None:
    segments = [*ended.stored.segments[:2], replace(ended.stored.segments[2], context=1)]
    assert "segment 2, token 0: context 1, but its messages need context 0 here" in lie(
        world, resealed(ended, segments=segments)
    )


def test_other_version_of_the_environment__is_not_rendered(world: World, ended: Evidence) -> None:
    lineage = replace(ended.stored.lineage, environment_version="0")
    checker = world.checker()
    checker.check([resealed(ended, lineage=lineage)])
    assert (checker.report.rendered, checker.report.unrendered) == (0, 3)


def test_program_outside__wrote_prompts_that_nobody_else_can_write(world: World, cut: Evidence, ended: Evidence) -> None:
    again = [*cut.stored.segments, replace(cut.stored.segments[1], index=2)]
    checker = world.checker()
    checker._rescorer = None
    outside = replace(cut.stored.lineage, sandbox=OUTSIDE)
    checker.check([resealed(cut, lineage=outside, segments=again)])
    assert (checker.report.rendered, checker.report.unrendered) == (0, 3)
    assert "followed by another one" in lie(world, resealed(cut, segments=again))


def test_weights_that_are_gone__are_said_not_to_be_scored(world: World, ended: Evidence) -> None:
    checker = world.checker()
    rescorer = checker._rescorer
    assert rescorer is not None
    rescorer._find = lambda version: replace(world.find(version), uri=str(Path("/nowhere") / str(version)))
    checker.check([ended])
    assert rescorer.tokens == 0
    assert rescorer.gone == {0, 1}
    assert rescorer.skipped == checker.report.actions
