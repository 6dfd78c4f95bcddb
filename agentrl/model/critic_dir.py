"""A folder with a critic's weights, checked against the policy whose backbone it must have."""

from __future__ import annotations

from pathlib import Path

from agentrl.errors import UsageError, WeightsCorrupt
from agentrl.model.config import VALUE_HEAD_PREFIX, ModelConfig
from agentrl.model.safetensors_io import read_shapes, require_shapes
from agentrl.model.weight_files import weight_files


def critic_files(path: Path, policy: ModelConfig | None) -> tuple[Path, ...]:
    """The safetensors files of a critic; ``policy``: None while it is not built yet.

    A head may be there or not, and a policy's output layer is no matter. `UsageError` when there are no weights, or, with both
    shapes, when they are of another size than the policy.
    """
    if not path.is_dir():
        raise UsageError(f"model.critic_path {path}: no such directory; leave it out to start from the policy's weights")
    files = weight_files(path)
    try:
        found = {name: shape for file in files for name, (_, shape) in read_shapes(file).items() if name != "lm_head.weight"}
        if policy is not None:
            expected = policy.critic_shapes()
            if not any(name.startswith(VALUE_HEAD_PREFIX) for name in found):
                expected = {name: s for name, s in expected.items() if not name.startswith(VALUE_HEAD_PREFIX)}
            require_shapes(found, expected, str(path))
    except WeightsCorrupt as error:
        raise UsageError(
            f"model.critic_path does not fit the policy: {error}. The critic has the policy's backbone: name weights of the "
            "same architecture and size, or leave model.critic_path out to start from the policy's."
        ) from error
    return files
