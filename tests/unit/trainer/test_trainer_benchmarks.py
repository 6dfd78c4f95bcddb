"""The trainer's benchmarks run at toy size."""

from __future__ import annotations

import pytest

from benchmarks import gpu
from benchmarks.trainer.__main__ import main


def test_gpu_script__runs_at_toy_size_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--toy"]) == 0
    printed = capsys.readouterr().out
    for measured in (
        "loss and gradients",
        "tokens/s",
        "export",
        "publication",
        "log-probs in chunks",
        "whole logits",
        "GAE on cpu",
    ):
        assert measured in printed


def test_steps_and_saving__print_their_rows(capsys: pytest.CaptureFixture[str]) -> None:
    main(["steps", "saving", "--quick"])
    printed = capsys.readouterr().out
    for measured in ("transformers + AdamW", "the same, packed", "a checkpoint of the default policy"):
        assert measured in printed


def test_publication__is_compared_with_a_copy_and_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    main(["publication", "--quick"])
    printed = capsys.readouterr().out
    for measured in ("copy in memory", "safetensors file", "of it: checksum", "of it: verify", "an engine reads"):
        assert measured in printed


def test_trl_that_is_not_there__its_row_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trl", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "TRL can't run here" in printed
    assert "requirements-peers.txt" in printed
