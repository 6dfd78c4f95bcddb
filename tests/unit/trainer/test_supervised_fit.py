"""Supervised fine-tuning: it learns, reproducibly, on the asked positions only."""

from __future__ import annotations

import pytest
import torch
from trainer_samples import reference_model, trained

from agentrl.errors import UsageError
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.supervised import WINDOW, batches_by_length, fit, scheduled_rate


def rows() -> list[Row]:
    """Noise, then its first token again three times: learnable only where asked."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 40, (24, 6), generator=generator)
    return [Row(torch.cat([n, n[:1].repeat(3)]), torch.arange(6, 9)) for n in noise]


def model() -> TrainedModel:
    return trained(reference_model(), optimizer=OptimizerSettings(beta2=0.95, weight_decay=0.01))


def test_schedule__rises_then_falls_to_a_tenth() -> None:
    rates = [scheduled_rate(step, 100, 1.0) for step in range(100)]
    assert rates[0] == pytest.approx(0.05)
    assert rates[19] == rates[20] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_fit__loss_falls_and_progress_counts_the_steps() -> None:
    seen: list[tuple[int, float]] = []
    final = fit(
        model(), rows(), steps=60, batch_size=8, learning_rate=1e-2, seed=1, on_progress=lambda *step: seen.append(step)
    )
    assert [step for step, _ in seen] == list(range(1, 61))
    assert final < 0.5 * seen[0][1]


def test_fit_with_the_same_seed__same_weights() -> None:
    first, second, other = model(), model(), model()
    for trainee, seed in ((first, 1), (second, 1), (other, 2)):
        fit(trainee, rows(), steps=3, batch_size=8, learning_rate=1e-2, seed=seed)
    assert all(torch.equal(tensor, dict(first.export())[name]) for name, tensor in second.export())
    assert not all(torch.equal(tensor, dict(first.export())[name]) for name, tensor in other.export())


def test_fit_with_a_batch_larger_than_the_data__repeats_rows() -> None:
    assert fit(model(), rows()[:3], steps=2, batch_size=8, learning_rate=1e-3, seed=0) > 0


def test_fit_without_rows__refused() -> None:
    with pytest.raises(UsageError, match="demonstrations"):
        fit(model(), [], steps=1, batch_size=8, learning_rate=1e-3, seed=0)


def test_batches__each_row_once_an_epoch_and_lengths_alike() -> None:
    lengths = [10 * (i % 8) + 5 for i in range(2 * WINDOW * 4)]
    drawn = batches_by_length(lengths, 4, seed=3)
    epoch = [next(drawn) for _ in range(2 * WINDOW)]
    assert sorted(i for batch in epoch for i in batch) == list(range(len(lengths)))
    assert all(max(lengths[i] for i in batch) - min(lengths[i] for i in batch) <= 20 for batch in epoch)
    assert [lengths[batch[0]] for batch in epoch] != sorted(lengths[batch[0]] for batch in epoch)
