"""Log-probs in chunks of the vocabulary's rows: the same numbers and gradients as from whole logits, and no whole logits."""

from __future__ import annotations

import pytest
import torch
from trainer_samples import reference_model, sample_rows, trained

from agentrl.algorithm.logprobs import token_logprob
from agentrl.trainer.megatron.head import _ChunkedLogprob


@pytest.mark.parametrize("chunk", [1, 11 * 7, 10**9])
@pytest.mark.parametrize("scaled", [True, False])
def test_chunks__equal_whole_logits_with_both_gradients(chunk: int, scaled: bool) -> None:
    trained(reference_model())  # makes the process groups
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(23, 6, generator=generator), torch.randn(11, 6, generator=generator)
    targets = torch.randint(0, 10, (23,), generator=generator)
    temperature = torch.rand(23, generator=generator) + 0.5 if scaled else None
    pull = torch.randn(2, 23, generator=generator)
    results = []
    for chunked in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if chunked:
            outputs = _ChunkedLogprob.apply(h, w, targets, temperature, 10, chunk)  # the eleventh row is no token
        else:
            outputs = token_logprob(h @ w[:10].t(), targets, temperature)
        (torch.stack(outputs) * pull).sum().backward()
        results.append((*outputs, h.grad, w.grad))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-5)


def test_small_chunks_in_the_model__same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, chunked = trained(reference_model()), trained(reference_model())
    chunked.module.output_layer.chunk_logits = 100
    widest = 0

    def watched(*arguments: torch.Tensor) -> torch.Tensor:
        nonlocal widest
        logits = plain(*arguments)
        widest = max(widest, logits.numel())
        return logits

    from agentrl.trainer.megatron import head

    plain = head._logits
    monkeypatch.setattr(head, "_logits", watched)
    rows = sample_rows([9, 17, 5, 30], temperature=0.8)
    steps = [
        m.step(rows, lambda o, c: (o["logprob"] * c["scale"] - o["entropy"]).sum(), denominator=7.0, learning_rate=1e-3)
        for m in (whole, chunked)
    ]
    assert 0 < widest <= 100
    assert steps[0].loss == pytest.approx(steps[1].loss, abs=1e-5)
    assert steps[0].grad_norm == pytest.approx(steps[1].grad_norm, rel=1e-5)
    after = dict(whole.export())
    assert all(torch.allclose(tensor, after[name], rtol=0, atol=2e-4) for name, tensor in chunked.export())
