"""A run is resumed only with the model it was started with; checked before any process starts."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.stored import from_row
from agentrl.store.contract import RunRow, TrajectoryStore
from agentrl.trainer.checkpointing import has_manifest, require_same_models


def require_same_model(run: RunRow, store: TrajectoryStore) -> None:
    """`UsageError` with both sizes when the model's folder holds another model than the newest checkpoint; nothing while a run
    has no model or no checkpoint yet."""
    from agentrl.model.config import identity
    from agentrl.model.model_dir import open_model_dir

    config, folder = from_row(run.spec.config)
    model_dir = folder / "model" if config.model.path is None else Path(config.model.path)
    if config.model.path is None and not model_dir.exists():
        return  # stopped in the warm start
    raw = open_model_dir(model_dir).config.raw
    # Damaged ones are the trainer's matter: it goes on from the newest that is whole.
    uri = next((c.uri for c in store.checkpoints(run.id) if has_manifest(c)), None)
    if uri is not None:
        roles = ("policy",) if config.algorithm.critic is None else ("policy", "critic")
        require_same_models(uri, {role: {"role": role, **identity(raw)} for role in roles})
