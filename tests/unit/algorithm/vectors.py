"""Reference values of the algorithms, computed twice independently; `negative_control_*` entries are what a known bug gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

_VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "algorithm_vectors.json").read_text())["vectors"]
TOLERANCE = 1e-6


def names() -> set[str]:
    """All reference vectors."""
    return set(_VECTORS)


def vector(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs, expected) of one reference vector."""
    return _VECTORS[name]["inputs"], _VECTORS[name]["expected"]


def tensor(values: Any) -> torch.Tensor:
    """float64."""
    return torch.tensor(values, dtype=torch.float64)


def close(actual: Any, expected: Any) -> bool:
    """Equal shapes and every number within the vectors' tolerance."""
    actual, expected = torch.as_tensor(actual).double(), torch.as_tensor(expected).double()
    return actual.shape == expected.shape and bool(torch.allclose(actual, expected, rtol=0, atol=TOLERANCE))
