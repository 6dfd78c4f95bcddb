"""The CPU shim: active inside its context only, and only without CUDA."""

from __future__ import annotations

import pytest
import torch
from trainer_samples import reference_model, sample_rows, trained

from agentrl.trainer.megatron.cpu import megatron_device, training_device

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the shim does nothing where CUDA exists")


def test_inside_the_context__cuda_means_cpu() -> None:
    with megatron_device():
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2, device=torch.device("cuda", 0)).device.type == "cpu"
        assert str(torch.cuda.current_device()) == "cpu"
        assert torch.zeros(1).type() == "torch.FloatTensor"  # only megatron's own callers see a CUDA name


def test_outside_the_context__torch_is_untouched() -> None:
    current_device = torch.cuda.current_device
    with megatron_device(), megatron_device():
        pass
    assert torch.cuda.current_device is current_device
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")


def test_after_an_exception__torch_is_untouched() -> None:
    current_device = torch.cuda.current_device
    with pytest.raises(KeyError), megatron_device():
        raise KeyError("inside")
    assert torch.cuda.current_device is current_device


def test_training__leaves_no_mode_behind() -> None:
    model = trained(reference_model())
    model.step(sample_rows([5]), lambda o, c: -o["logprob"].sum(), denominator=1.0, learning_rate=1e-3)
    assert training_device().type == "cpu"
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")
