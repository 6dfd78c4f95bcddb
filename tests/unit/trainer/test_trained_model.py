"""Promises of a trained model: invariance, stopping, freezing, resuming."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from trainer_samples import reference_model, sample_rows, trained

from agentrl.config.layout import LayoutSettings
from agentrl.errors import WeightsCorrupt
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import NonFiniteStep, OptimizerSettings, TrainedModel

LENGTHS = [5, 30, 11, 2, 23, 8, 17]


def policy_loss(outputs: Mapping[str, Tensor], columns: Mapping[str, Tensor]) -> Tensor:
    return (outputs["logprob"] * columns["scale"]).sum()


def critic_loss(outputs: Mapping[str, Tensor], columns: Mapping[str, Tensor]) -> Tensor:
    return ((outputs["value"] - columns["scale"]) ** 2).sum()


def weights(model: TrainedModel) -> dict[str, Tensor]:
    return dict(model.export())


def test_partition_invariance__micro_batch_size_changes_neither_loss_nor_weights() -> None:
    results = []
    for max_tokens in (1, 64, 100_000):
        model = trained(reference_model(), max_tokens=max_tokens)
        steps = [model.step(sample_rows(LENGTHS), policy_loss, denominator=40.0, learning_rate=1e-3) for _ in range(3)]
        results.append((steps, weights(model)))
    (reference, reference_weights), *others = results
    for steps, after in others:
        for step, expected in zip(steps, reference, strict=True):
            assert step.loss == pytest.approx(expected.loss, abs=1e-5)
            assert step.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
            for one, other in zip(step.outputs, expected.outputs, strict=True):
                assert torch.allclose(one["logprob"], other["logprob"], rtol=0, atol=2e-4)
        assert all(torch.allclose(after[n], reference_weights[n], rtol=0, atol=2e-4) for n in after)


def test_outputs__are_in_the_order_of_the_rows() -> None:
    model = trained(reference_model())
    rows = sample_rows(LENGTHS)
    together = model.forward(rows)
    for row, outputs in zip(rows, together, strict=True):
        assert torch.allclose(model.forward([row])[0]["logprob"], outputs["logprob"], rtol=0, atol=1e-5)


def test_tokens_behind_the_last_position__have_no_influence() -> None:
    model = trained(reference_model())
    row = sample_rows([20])[0]
    cut = Row(row.tokens, row.positions[:4])
    other = Row(torch.cat([row.tokens[: cut.length + 1], torch.zeros(30, dtype=torch.int64)]), cut.positions)
    assert torch.equal(model.forward([cut])[0]["logprob"], model.forward([other])[0]["logprob"])


def test_non_finite_stops__rows_are_named_and_nothing_moves() -> None:
    model = trained(reference_model())
    rows = sample_rows(LENGTHS)
    model.step(rows, policy_loss, denominator=1.0, learning_rate=1e-3)
    before = weights(model)
    rows[2].columns["scale"][0] = math.inf
    with pytest.raises(NonFiniteStep, match="no update") as at_once:
        model.step(rows, policy_loss, denominator=1.0, learning_rate=1e-3)
    model.begin_step()
    for part in (rows[:2], rows[2:]):
        model.add_rows(part, policy_loss)
    with pytest.raises(NonFiniteStep, match="no update") as in_parts:
        model.finish_step(denominator=1.0, learning_rate=1e-3)
    assert at_once.value.rows == in_parts.value.rows == (2,)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.export())
    rows[2].columns["scale"][0] = 0.0
    assert math.isfinite(model.step(rows, policy_loss, denominator=1.0, learning_rate=1e-3).loss)


def test_non_finite_outputs__the_rows_they_came_from_are_named() -> None:
    model = trained(reference_model())
    rows = sample_rows([9, 8, 7])
    poisoned = Row(torch.full_like(rows[1].tokens, 47), rows[1].positions, rows[1].columns)
    for row in (rows[0], rows[2]):
        row.tokens.clamp_(max=46)
    with torch.no_grad():
        model.module.embedding.word_embeddings.weight[47] = math.inf
    with pytest.raises(NonFiniteStep) as caught:
        model.step([rows[0], poisoned, rows[2]], policy_loss, denominator=1.0, learning_rate=1e-3)
    assert 1 in caught.value.rows


def test_denominator_of_zero__nothing_is_updated() -> None:
    model = trained(reference_model(), optimizer=OptimizerSettings(weight_decay=0.5))
    before = weights(model)
    step = model.step(sample_rows([6]), policy_loss, denominator=0.0, learning_rate=1e-2)
    assert step.skipped
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.export())


def test_critic_before_training__value_is_zero_everywhere() -> None:
    model = trained(reference_model(tied=False), "critic")
    rows = [Row(row.tokens, torch.arange(1, len(row.tokens) + 1)) for row in sample_rows(LENGTHS)]
    outputs = model.forward(rows)
    assert [len(o["value"]) for o in outputs] == LENGTHS
    assert all(not o["value"].any() for o in outputs)


def test_value_of_a_bf16_critic__is_not_rounded_to_bf16() -> None:
    head = {"value_head.weight": torch.full((1, 32), 1e-3), "value_head.bias": torch.tensor([0.9])}
    model = trained(reference_model(), "critic", layout=LayoutSettings(precision="bf16"))
    model.load((weights(trained(reference_model(), "critic")) | head).items())
    value = model.forward(sample_rows([40]))[0]["value"]
    assert value.dtype == torch.float32
    assert (value != value.bfloat16().float()).float().mean() > 0.9


def test_critic_export_loaded_into_another__same_values() -> None:
    first, second = trained(reference_model(), "critic"), trained(reference_model(seed=4), "critic")
    first.step(sample_rows(LENGTHS), critic_loss, denominator=10.0, learning_rate=1e-2)
    second.load(first.export())
    rows = sample_rows(LENGTHS)
    for one, other in zip(first.forward(rows), second.forward(rows), strict=True):
        assert one["value"].any()
        assert torch.equal(one["value"], other["value"])


def test_policy_from_a_critic_export__refused() -> None:
    with pytest.raises(WeightsCorrupt, match="value_head"):
        trained(reference_model()).load(trained(reference_model(), "critic").export())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_frozen_attention__bitwise_unchanged_while_the_rest_moves(kind: str) -> None:
    model = trained(reference_model(kind), "critic", freeze_attention=True)
    before = weights(model)
    for _ in range(3):
        model.step(sample_rows(LENGTHS), critic_loss, denominator=40.0, learning_rate=1e-2)
    after = weights(model)
    attention = {name for name in before if ".self_attn." in name}
    assert attention
    assert all(torch.equal(before[name], after[name]) for name in attention)
    assert not any(torch.equal(before[name], after[name]) for name in before.keys() - attention)


def test_training_on_one_batch__loss_falls() -> None:
    model = trained(reference_model())
    rows = sample_rows([12, 9, 15])
    losses = [model.step(rows, lambda o, c: -o["logprob"].sum(), denominator=18.0, learning_rate=3e-3).loss for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_optimizer__is_adamw_with_clipping_and_no_decay_on_vectors() -> None:
    settings = OptimizerSettings(beta1=0.9, beta2=0.95, weight_decay=0.1, clip_grad=0.5)
    reference = reference_model("qwen2")
    model = trained(reference, optimizer=settings)
    matrices = [p for p in reference.parameters() if p.dim() > 1]
    vectors = [p for p in reference.parameters() if p.dim() == 1]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
    )
    rows = sample_rows(LENGTHS)
    for rate in (1e-2, 5e-3):
        model.step(rows, policy_loss, denominator=10.0, learning_rate=rate)
        adamw.zero_grad()
        for row in rows:
            logp = reference(row.tokens[None]).logits[0].log_softmax(-1)[row.positions - 1]
            ((logp.gather(-1, row.tokens[row.positions, None])[:, 0] * row.columns["scale"]).sum() / 10).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
    expected = dict(reference.named_parameters())
    for name, tensor in model.export():
        assert torch.allclose(tensor, expected[name], rtol=0, atol=2e-4), name


@pytest.mark.parametrize("role", ["policy", "critic"])
def test_resume_from_files__continues_bit_for_bit(role: str, tmp_path: Path) -> None:
    loss = policy_loss if role == "policy" else critic_loss
    rows = sample_rows(LENGTHS)
    model = trained(reference_model(), role)
    for _ in range(2):
        model.step(rows, loss, denominator=10.0, learning_rate=1e-2)
    writing = model.start_writing(tmp_path / "model")
    model.step(rows, loss, denominator=10.0, learning_rate=1e-2)  # while the files are being written
    writing.finish()
    model.step(rows, loss, denominator=10.0, learning_rate=1e-2)
    resumed = trained(reference_model(seed=9), role)
    resumed.read(tmp_path / "model")
    assert resumed.updates == 2
    for _ in range(2):
        resumed.step(rows, loss, denominator=10.0, learning_rate=1e-2)
    assert all(torch.equal(tensor, dict(model.export())[name]) for name, tensor in resumed.export())


def test_two_models_in_one_process__do_not_share_anything() -> None:
    policy, critic = trained(reference_model()), trained(reference_model(), "critic")
    before = weights(policy)
    critic.step(sample_rows(LENGTHS), critic_loss, denominator=10.0, learning_rate=1e-2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.export())
    policy.step(sample_rows(LENGTHS), policy_loss, denominator=10.0, learning_rate=1e-2)
    assert not any(torch.equal(tensor, before[name]) for name, tensor in policy.export())
