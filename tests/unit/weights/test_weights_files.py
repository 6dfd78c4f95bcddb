"""Exported weights are verified by checksum and never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl.errors import WeightsCorrupt
from agentrl.model.safetensors_io import read_tensors
from agentrl.weights.files import export_weights, verify


def test_export__absolute_uri_size_and_checksum_that_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = export_weights([("a", torch.ones(3))], Path("weights/b0-f1-v2"))
    path = Path(file.uri)
    assert path == tmp_path / "weights" / "b0-f1-v2" / "model.safetensors"
    assert file.n_bytes == path.stat().st_size
    assert torch.equal(dict(read_tensors(path))["a"], torch.ones(3))
    verify(file.uri, file.checksum)


def test_export_to_a_used_folder__refused_and_first_file_stays(tmp_path: Path) -> None:
    file = export_weights([("a", torch.ones(3))], tmp_path)
    with pytest.raises(FileExistsError):
        export_weights([("a", torch.zeros(3))], tmp_path)
    verify(file.uri, file.checksum)


def test_damaged_or_missing_file__weights_corrupt_names_it(tmp_path: Path) -> None:
    file = export_weights([("a", torch.ones(3))], tmp_path)
    path = Path(file.uri)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsCorrupt, match="damaged or replaced"):
        verify(file.uri, file.checksum)
    path.unlink()
    with pytest.raises(WeightsCorrupt, match="can't read") as refused:
        verify(file.uri, file.checksum)
    assert file.uri in str(refused.value)
