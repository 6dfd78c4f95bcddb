"""The append-only record keeps its invariants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import BrokenDistribution, TokenDrift, WrongAnswer
from agentrl.tokens.transcript import NO_VERSION, Transcript
from agentrl.types import FinishReason


@dataclass
class Sampled:
    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish_reason: FinishReason = FinishReason.STOP


def sampled(ids: list[int], version: int | list[int] = 1, logprob: float = -0.5) -> Sampled:
    versions = version if isinstance(version, list) else [version] * len(ids)
    reason = FinishReason.STOP if ids else FinishReason.ABORT
    return Sampled(np.array(ids), np.full(len(ids), logprob, np.float32), np.array(versions), reason)


TURN = st.tuples(st.lists(st.integers(0, 99), max_size=5), st.lists(st.integers(0, 99), max_size=5))


@given(st.lists(TURN, max_size=6), st.lists(st.integers(0, 99), max_size=3))
def test_token_truth__segments_and_requests_hold_exactly_what_was_appended(
    turns: list[tuple[list[int], list[int]]], rest: list[int]
) -> None:
    transcript, expected = Transcript(), []
    for observation, action in turns:
        transcript.append_observation(observation)
        expected += observation
        assert transcript.token_ids == expected
        segment = transcript.append_action(sampled(action))
        expected += action
        assert segment.observation.tolist() == observation
        assert segment.action.tolist() == action
    transcript.append_observation(rest)
    last = transcript.close()
    assert (last is None) == (not rest)
    stored = [i for s in transcript.segments for i in [*s.observation.tolist(), *s.action.tolist()]]
    assert stored == expected + rest == transcript.token_ids
    assert [s.index for s in transcript.segments] == list(range(len(transcript.segments)))


@given(st.lists(TURN, max_size=6))
def test_trainable_is_sampled__mask_counts_actions(turns: list[tuple[list[int], list[int]]]) -> None:
    transcript = Transcript()
    for version, (observation, action) in enumerate(turns):
        transcript.append_observation(observation)
        transcript.append_action(sampled(action, version, -0.25))
    mask = transcript.mask()
    assert mask.sum() == sum(len(action) for _, action in turns)
    assert np.array(transcript.token_ids)[mask == 1].tolist() == [i for _, action in turns for i in action]
    assert (transcript.logprobs() == np.where(mask, np.float32(-0.25), 0)).all()
    assert ((transcript.versions() == NO_VERSION) == (mask == 0)).all()


def test_equal_lengths_violated__refused_and_unchanged() -> None:
    transcript = Transcript()
    transcript.append_observation([1, 2])
    bad = Sampled(np.array([3, 4, 5]), np.zeros(2, np.float32), np.ones(3))
    with pytest.raises(WrongAnswer, match="length"):
        transcript.append_action(bad)
    assert transcript.token_ids == [1, 2]
    assert transcript.append_action(sampled([3])).observation.tolist() == [1, 2]
    assert len(transcript.mask()) == len(transcript.logprobs()) == len(transcript.versions()) == transcript.n_tokens == 3


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_logprob_not_finite__refused(bad: float) -> None:
    transcript = Transcript()
    with pytest.raises(BrokenDistribution, match="not finite at token 0"):
        transcript.append_action(sampled([3], logprob=bad))


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_empty_completion__is_legal_only_when_aborted(reason: FinishReason) -> None:
    transcript = Transcript()
    transcript.append_observation([1])
    empty = Sampled(np.array([]), np.array([]), np.array([]), reason)
    with pytest.raises(WrongAnswer, match=f"{reason.value}, but gave no token"):
        transcript.append_action(empty)
    assert transcript.segments == ()
    assert transcript.append_action(sampled([])).n_act == 0


def test_version_truth__versions_that_decrease_are_refused() -> None:
    transcript = Transcript()
    transcript.append_action(sampled([1, 2], [3, 4]))
    for versions in ([3], [5, 4]):
        with pytest.raises(WrongAnswer, match="decrease"):
            transcript.append_action(sampled([1] * len(versions), versions))
    assert transcript.append_action(sampled([1], 4)).versions.tolist() == [4]


def test_new_context__request_holds_its_ids_only() -> None:
    transcript = Transcript()
    transcript.append_observation([1, 2])
    transcript.append_action(sampled([3]))
    transcript.start_context()
    transcript.append_observation([7])
    assert transcript.token_ids == [7]
    assert transcript.n_context == 1
    assert transcript.append_action(sampled([8])).context == 1
    assert transcript.n_tokens == 5


def test_new_context_with_an_open_observation__refused() -> None:
    transcript = Transcript()
    transcript.append_observation([1])
    with pytest.raises(TokenDrift, match="segment 0"):
        transcript.start_context()


def test_segment__keeps_no_reference_to_the_engines_arrays() -> None:
    transcript = Transcript()
    answer = Sampled(np.array([1, 2], np.int32), np.zeros(2, np.float32), np.ones(2, np.int32), FinishReason.LENGTH)
    segment = transcript.append_action(answer)
    answer.token_ids[0] = 99
    assert segment.action.tolist() == [1, 2]
    assert segment.finish_reason is FinishReason.LENGTH


def test_token_truth__ids_that_would_be_encoded_otherwise_are_kept() -> None:
    """Two sampled ids whose text is one id for the tokenizer stay two, with two log-probs and two versions."""
    transcript = Transcript()
    transcript.append_observation([1])
    segment = transcript.append_action(sampled([10, 11]))
    assert segment.action.tolist() == [10, 11]
    assert len(segment.logprobs) == len(segment.versions) == len(transcript.mask()) - 1 == 2


def test_trainable_is_sampled__turns_that_the_prompt_brought_are_not() -> None:
    transcript = Transcript()
    transcript.append_observation([5, 6, 7, 8])  # user, assistant, user
    transcript.append_action(sampled([1, 2, 3, 4, 9]))
    assert transcript.mask().sum() == 5


def test_trainable_is_sampled__the_stop_token_trains_with_its_logprob() -> None:
    stop = 2
    transcript = Transcript()
    transcript.append_observation([1])
    transcript.append_action(Sampled(np.array([8, stop]), np.array([-1.0, -0.125]), np.array([1, 1])))
    transcript.append_observation([7])
    assert transcript.mask().tolist() == [0, 1, 1, 0]
    assert transcript.logprobs().tolist() == [0.0, -1.0, -0.125, 0.0]
