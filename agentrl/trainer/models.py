"""The models of a run from its configuration: the policy, and the critic with the same backbone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from agentrl.config.run import RunConfig
from agentrl.model.config import ModelConfig
from agentrl.model.critic_dir import critic_files
from agentrl.model.model_dir import ModelDir, open_model_dir
from agentrl.model.safetensors_io import read_tensors
from agentrl.trainer.gradients import GradientMemory
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.reference import Reference
from agentrl.trainer.update import Companions


def build_models(config: RunConfig, model_dir: Path) -> tuple[TrainedModel, TrainedModel | None]:
    """Policy from ``model_dir`` and, where the algorithm has one, a critic from the same weights or those of
    ``model.critic_path``. `UsageError` when those don't fit."""
    trainer = config.trainer
    model = open_model_dir(model_dir)
    settings = OptimizerSettings(beta2=trainer.beta2, weight_decay=trainer.weight_decay, clip_grad=trainer.clip_grad)
    policy = TrainedModel(
        model.config.raw,
        "policy",
        model.tensors(),
        settings,
        layout=trainer.layout,
        max_tokens=trainer.micro_batch_tokens,
    )
    return policy, build_critic(config, model) if config.algorithm.critic is not None else None


def build_companions(config: RunConfig, model_dir: Path) -> Companions:
    """The reference policy, which is the one of ``model_dir``, and the memory of gradients, each where a setting reads it."""
    algorithm, reference = config.algorithm, None
    if algorithm.needs_reference:
        model = open_model_dir(model_dir)
        policy = TrainedModel(
            model.config.raw, "policy", model.tensors(), OptimizerSettings(), layout=config.trainer.layout,
            max_tokens=config.trainer.micro_batch_tokens,
        )  # fmt: skip
        reference = Reference(policy, algorithm.kl, algorithm.kl.coefficient)
    return Companions(reference, GradientMemory() if algorithm.gradient_cosine else None)


def build_critic(config: RunConfig, model: ModelDir) -> TrainedModel:
    """The critic alone; its head is new unless the weights bring one."""
    trainer, critic = config.trainer, config.algorithm.critic
    assert critic is not None
    path = config.model.critic_path
    return TrainedModel(
        model.config.raw,
        "critic",
        model.tensors() if path is None else critic_weights(Path(path), model.config),
        OptimizerSettings(beta2=trainer.beta2, clip_grad=critic.clip_grad),
        layout=trainer.layout,
        freeze_attention=critic.freeze_attention,
        max_tokens=trainer.micro_batch_tokens,
    )


def critic_weights(path: Path, policy: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a critic's directory. `UsageError` when there are none or they don't fit the policy."""
    for file in critic_files(path, policy):
        yield from read_tensors(file)
