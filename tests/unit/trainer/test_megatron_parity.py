"""The megatron-core model computes what the Hugging Face model computes, and weights pass through unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trainer_samples import by_expert, reference_model, sample_rows, trained, weights_of
from transformers import LlamaConfig, PreTrainedModel

from agentrl.config.layout import LayoutSettings
from agentrl.errors import UsageError, WeightsCorrupt
from agentrl.trainer.megatron.architecture import rotary_base, transformer_config
from agentrl.trainer.megatron.mapping import export_gradients
from agentrl.trainer.megatron.microbatch import Row

MODELS = [(kind, tied) for kind in ("llama", "qwen2", "qwen3", "qwen3_moe") for tied in (True, False)]


def reference_outputs(model: PreTrainedModel, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(row.tokens[None]).logits[0].float() / row.temperature
    logp = logits.log_softmax(-1)
    at = row.positions - 1
    return logp[at].gather(-1, row.tokens[row.positions, None])[:, 0], -(logp.exp() * logp).sum(-1)[at]


@pytest.mark.parametrize(("kind", "tied"), MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_entropy__equal_the_reference_model(kind: str, tied: bool, temperature: float) -> None:
    reference = reference_model(kind, tied=tied)
    rows = sample_rows([9, 17, 5], temperature=temperature)
    for row, outputs in zip(rows, trained(reference, max_tokens=40).forward(rows), strict=True):
        logprob, entropy = reference_outputs(reference, row)
        assert torch.allclose(outputs["logprob"], logprob, rtol=0, atol=1e-5)
        assert torch.allclose(outputs["entropy"], entropy, rtol=0, atol=1e-5)


def test_experts_whose_weights_do_not_add_up_to_one__equal_the_reference_model() -> None:
    reference = reference_model("qwen3_moe", norm_topk_prob=False)
    rows = sample_rows([9, 17, 5])
    for row, outputs in zip(rows, trained(reference).forward(rows), strict=True):
        assert torch.allclose(outputs["logprob"], reference_outputs(reference, row)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "tied"), MODELS)
def test_gradients__equal_the_reference_model(kind: str, tied: bool) -> None:
    reference = reference_model(kind, tied=tied)
    rows = sample_rows([9, 17, 5])
    model = trained(reference)
    before = {name: tensor.clone() for name, tensor in model.export()}
    step = model.step(rows, lambda o, c: (o["logprob"] * c["scale"]).sum(), denominator=7.0, learning_rate=0.0)
    loss = sum((reference_outputs(reference, row)[0] * row.columns["scale"]).sum() for row in rows) / 7.0
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)  # the trainer clips in place too
    assert step.loss == pytest.approx(loss.item(), abs=1e-5)
    assert step.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    expected = by_expert({name: p.grad for name, p in reference.named_parameters() if p.grad is not None})
    actual = export_gradients(model.module, vocabulary=model.hf["vocab_size"])
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(actual[name], gradient, rtol=0, atol=1e-5), name
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.export())


@pytest.mark.parametrize(("kind", "tied"), MODELS)
def test_export_after_load__bit_equal_under_the_same_names(kind: str, tied: bool) -> None:
    weights = weights_of(reference_model(kind, tied=tied))
    exported = dict(trained(reference_model(kind, tied=tied)).export())
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], weights[name]) for name in weights)


def test_export__is_a_copy_that_training_does_not_change() -> None:
    model = trained(reference_model())
    exported = dict(model.export())
    kept = {name: tensor.clone() for name, tensor in exported.items()}
    model.step(sample_rows([9, 8]), lambda o, c: -o["logprob"].sum(), denominator=1.0, learning_rate=0.1)
    assert all(torch.equal(exported[name], kept[name]) for name in kept)
    assert not all(torch.equal(tensor, kept[name]) for name, tensor in model.export())


def test_load_of_a_tied_checkpoint_that_repeats_the_output_layer__accepted() -> None:
    reference = reference_model(tied=True)
    model = trained(reference)
    weights = weights_of(reference)
    model.load([*weights.items(), ("lm_head.weight", weights["model.embed_tokens.weight"])])
    assert "lm_head.weight" not in dict(model.export())


@pytest.mark.parametrize("fault", ["missing", "superfluous", "shape"])
def test_load_of_weights_that_do_not_fit__names_them_and_changes_nothing(fault: str) -> None:
    model = trained(reference_model())
    other = weights_of(reference_model(seed=5))
    name = "model.layers.1.self_attn.k_proj.weight"
    if fault == "missing":
        del other[name]
    elif fault == "superfluous":
        name = "model.layers.7.mlp.up_proj.weight"
        other[name] = torch.zeros(2, 2)
    else:
        other[name] = other[name][:, :-1]
    before = dict(model.export())
    with pytest.raises(WeightsCorrupt, match=name.replace(".", r"\.")):
        model.load(other.items())
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.export())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"use_sliding_window": True}, "use_sliding_window"),
    ],
)
def test_architecture_the_mapping_does_not_carry__refused_by_name(change: dict[str, Any], message: str) -> None:
    config = reference_model().config.to_dict() | change
    with pytest.raises(UsageError, match=message):
        transformer_config(config, LayoutSettings(), on_gpu=False)


@pytest.mark.filterwarnings("ignore:full scope is deprecated")
def test_numbers_that_a_config_leaves_out__are_those_of_transformers() -> None:
    given = reference_model().config.to_dict()
    bare = {name: value for name, value in given.items() if name not in ("rope_parameters", "rope_theta", "rms_norm_eps")}
    whole = LlamaConfig(**{name: bare[name] for name in ("hidden_size", "num_attention_heads")})
    assert rotary_base(bare) == whole.rope_parameters["rope_theta"]
    assert transformer_config(bare, LayoutSettings(), on_gpu=False).layernorm_epsilon == whole.rms_norm_eps


def test_scaled_rope__refused_by_name() -> None:
    reference = reference_model()
    config = reference.config.to_dict() | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}
    reference.config.rope_parameters = config["rope_parameters"]
    with pytest.raises(UsageError, match="yarn"):
        trained(reference)
