"""Bookkeeping of slots, and draws that follow the distribution they name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.sampling import check_sampling, draw, uniforms
from agentrl.engine.slots import Slots
from agentrl.errors import UsageError
from agentrl.types import Sampling


def begin(slots: Slots, slot: int, ids: list[int]) -> int:
    return slots.begin(slot, np.array(ids), 2, np.zeros(2), 1.0, (9,))


def test_cached_is_prefix__common_ids_without_the_last() -> None:
    slots = Slots(1, 20)
    slot = slots.take("a")
    assert slot == 0
    assert begin(slots, slot, [1, 2, 3, 4]) == 0
    slots.cached[slot] = 4
    assert begin(slots, slot, [1, 2, 3, 4, 5, 6]) == 4
    slots.cached[slot] = 6
    assert begin(slots, slot, [1, 2, 7, 4, 5, 6]) == 2
    slots.cached[slot] = 6
    assert begin(slots, slot, [1, 2, 7]) == 2
    assert slots.ids[slot, :3].tolist() == [1, 2, 7]


def test_cached_is_prefix_after_invalidate__nothing_counts() -> None:
    slots = Slots(2, 20)
    slot = slots.take("a")
    assert slot is not None
    begin(slots, slot, [1, 2, 3])
    slots.cached[slot] = 3
    slots.rest("a", slot)
    slots.invalidate()
    assert slots.take("a") == slot
    assert begin(slots, slot, [1, 2, 3, 4]) == 0


def test_never_deadlocks__longest_idle_session_gives_way_and_busy_ones_do_not() -> None:
    slots = Slots(2, 20)
    a, b = slots.take("a"), slots.take("b")
    assert a is not None
    assert b is not None
    assert slots.take("c") is None
    slots.rest("b", b)
    slots.rest("a", a)
    assert slots.take("c") == b
    assert slots.take("a") == a
    assert slots.take("b") is None


def test_forgotten_session__its_slot_is_free_and_twice_is_harmless() -> None:
    slots = Slots(1, 20)
    slot = slots.take("a")
    assert slot is not None
    slots.rest("a", slot)
    slots.forget("a")
    slots.forget("a")
    assert slots.take("b") == slot
    assert slots.take("c") is None


@given(st.lists(st.tuples(st.sampled_from("tfr"), st.integers(0, 5)), max_size=60))
def test_never_deadlocks_in_any_order__each_slot_has_one_owner(actions: list[tuple[str, int]]) -> None:
    slots = Slots(3, 4)
    busy: dict[str, int] = {}
    for action, number in actions:
        session = str(number)
        if action == "t" and session not in busy:
            slot = slots.take(session)
            assert (slot is None) == (len(busy) == 3)
            if slot is not None:
                busy[session] = slot
        elif action == "r" and session in busy:
            slots.rest(session, busy.pop(session))
        elif action == "f" and session not in busy:
            slots.forget(session)
        assert len(set(busy.values())) == len(busy)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draw__frequencies_follow_the_logprobs(temperature: float) -> None:
    n = 40_000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")])
    tokens, logprobs = draw(logits.expand(n, -1), np.full(n, temperature, np.float32), uniforms(1, n))
    expected = torch.softmax(logits / temperature, -1).numpy()
    frequencies = np.bincount(tokens, minlength=5) / n
    assert np.abs(frequencies - expected).max() < 4 * np.sqrt(0.25 / n)
    np.testing.assert_allclose(logprobs, np.log(expected[tokens]), rtol=1e-5)
    assert logprobs.dtype == np.float32


def test_draw_at_temperature__divides_logits_not_logprobs() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 3)
    _, logprobs = draw(logits, np.array([1.0, 0.6, 0.0], np.float32), np.zeros(3))
    np.testing.assert_allclose(logprobs, [-0.4076, -0.2026, -0.4076], atol=1e-4)


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_draw_at_the_edges__never_a_token_without_probability(u: float) -> None:
    logits = torch.tensor([[float("-inf"), 0.0, -200.0, 1.0, float("-inf"), float("-inf")]])
    tokens, logprobs = draw(logits, np.ones(1, np.float32), np.array([u]))
    assert tokens[0] in (1, 3)
    assert np.isfinite(logprobs[0])


def test_draw_from_nan__logprob_is_not_finite() -> None:
    logits = torch.tensor([[0.0, float("nan"), 1.0], [0.0, 1.0, 2.0]])
    tokens, logprobs = draw(logits, np.ones(2, np.float32), np.array([0.9, 0.9]))
    assert not np.isfinite(logprobs[0])
    assert np.isfinite(logprobs[1])
    assert (tokens < 3).all()


def test_uniforms__depend_on_the_seed_and_extend() -> None:
    assert uniforms(3, 5).tolist() == uniforms(3, 9)[:5].tolist()
    assert uniforms(3, 5).tolist() != uniforms(4, 5).tolist()
    assert uniforms(2**63 - 1, 1) != uniforms(2**62, 1)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.99), Sampling(top_k=1), Sampling(-0.1), Sampling(float("nan"))])
def test_sampling_that_cant_be_replayed__refused(sampling: Sampling) -> None:
    with pytest.raises(UsageError):
        check_sampling(sampling)


def test_greedy_sampling__is_allowed() -> None:
    check_sampling(Sampling(0.0))
