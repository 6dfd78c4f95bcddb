"""Process groups and megatron-core modules, from a Hugging Face config dict."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

from agentrl.config.layout import LayoutSettings
from agentrl.errors import UsageError
from agentrl.trainer.megatron.architecture import head_dim, is_tied, rotary_base, transformer_config
from agentrl.trainer.megatron.attention import TorchCoreAttention
from agentrl.trainer.megatron.cpu import megatron_device, training_device
from agentrl.trainer.megatron.fused import fused_layer
from agentrl.trainer.megatron.head import LogprobHead, ValueHead
from agentrl.trainer.megatron.mapping import mark_shards
from agentrl.trainer.megatron.norm import RMSNorm
from agentrl.trainer.megatron.rotary import RotaryAtPlaces

RENDEZVOUS = timedelta(hours=6)
"""How long ranks wait for the first one, which makes the warm start alone, and for each other inside a step."""
Role = Literal["policy", "critic"]


def initialize_parallel(layout: LayoutSettings | None = None) -> None:
    """Join the process group and megatron's groups, once per process; harmless when done already.

    Under torchrun (RANK and WORLD_SIZE set) the ranks share the work as ``layout`` says; without one all are data-parallel.
    Without torchrun's environment the process is a world of its own and opens no port. Raises `UsageError` when the number of
    processes is not the layout's.
    """
    join_world()
    layout = layout or LayoutSettings(data=dist.get_world_size())
    if layout.ranks != dist.get_world_size():
        raise UsageError(
            f"trainer.layout needs {layout.ranks} processes ({layout}), {dist.get_world_size()} were started: start that many, "
            "or set trainer.layout.data so that the product fits"
        )
    if not parallel_state.is_initialized():
        with megatron_device():
            parallel_state.initialize_model_parallel(layout.tensor, layout.pipeline, context_parallel_size=layout.context)
            # No dropout anywhere, so nothing is random in a forward pass; this tracker forks no generators.
            megatron_random.initialize_rng_tracker(inference_rng_tracker=True)


def join_world() -> None:
    """Join the other processes that torchrun's environment names, or be a world of one; harmless when done already."""
    if dist.is_initialized():
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        # Gloo would otherwise resolve the host name, which fails on machines without DNS.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, timeout=RENDEZVOUS)


@contextmanager
def alone() -> Iterator[None]:
    """A world of one process, whatever torchrun's environment says; the others may join afterwards."""
    names = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(names)
        if names and dist.is_initialized():
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()


def padded_vocabulary(vocabulary: int, layout: LayoutSettings) -> int:
    """Rows of the embedding: the vocabulary, up to the next multiple of the tensor-parallel ranks."""
    return vocabulary + -vocabulary % layout.tensor


def build_module(hf: Mapping[str, Any], role: Role, layout: LayoutSettings, *, freeze_attention: bool = False) -> GPTModel:
    """This rank's part of a GPTModel with uninitialised weights (load before use): a policy, or a critic with a zero head.

    ``freeze_attention`` takes the attention parameters (projections, biases, q/k norms) out of training; gradients still pass
    through them.
    """
    initialize_parallel(layout)
    device = training_device()
    with warnings.catch_warnings(), megatron_device():
        # Announcements of missing kernels and of megatron's own deprecated defaults.
        warnings.simplefilter("ignore")
        config = transformer_config(hf, layout, on_gpu=device.type == "cuda")
        module = GPTModel(
            config,
            _layer_spec(config, layout),
            vocab_size=padded_vocabulary(hf["vocab_size"], layout),
            max_sequence_length=hf["max_position_embeddings"],
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            position_embedding_type="rope",
            rotary_base=rotary_base(hf),
            share_embeddings_and_output_weights=is_tied(hf) and role == "policy",
        )
        if module.post_process:
            module.output_layer = _head(module, hf["vocab_size"], role)
    module.rotary_pos_emb = RotaryAtPlaces(head_dim(hf), rotary_base(hf), device)
    module = module.to(device)
    mark_shards(module)
    if freeze_attention:
        for name, parameter in module.named_parameters():
            if ".self_attention." in name and not name.endswith(".layer_norm_weight"):  # the layer's norm, fused into it
                parameter.requires_grad = False
    return module


def _head(module: GPTModel, vocabulary: int, role: Role) -> LogprobHead | ValueHead:
    config, built = module.config, module.output_layer
    if role == "critic":
        return ValueHead(config.hidden_size, sequence_parallel=config.sequence_parallel)
    head = LogprobHead(
        config.hidden_size,
        built.output_size,
        config=config,
        init_method=config.init_method,
        bias=False,
        skip_weight_param_allocation=True,
    )
    head.weight = built.weight
    head.vocabulary = vocabulary
    return head


def _layer_spec(config: TransformerConfig, layout: LayoutSettings) -> TransformerBlockSubmodules:
    layer, norm = fused_layer(config) if layout.kernels == "transformer_engine" else (_torch_layer(config), RMSNorm)
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=norm)


def _torch_layer(config: TransformerConfig) -> ModuleSpec:
    layer = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, normalization="RMSNorm", qk_layernorm=config.qk_layernorm
    )
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = TorchCoreAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return layer
