"""Process groups and megatron-core modules, from a Hugging Face config dict."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from agentrl.trainer.megatron.architecture import is_tied, rotary_base, transformer_config
from agentrl.trainer.megatron.attention import TorchCoreAttention
from agentrl.trainer.megatron.cpu import megatron_device, training_device
from agentrl.trainer.megatron.norm import RMSNorm

Role = Literal["policy", "critic"]


def initialize_parallel() -> None:
    """Join the process group and megatron's groups, once per process; harmless when done already.

    Under torchrun (RANK and WORLD_SIZE set) all ranks are data-parallel. Without it the process is a world of its own and opens
    no port.
    """
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group(backend)
        else:
            # Gloo would otherwise resolve the host name, which fails on machines without DNS.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if not parallel_state.is_initialized():
        with megatron_device():
            parallel_state.initialize_model_parallel()


class ValueHead(torch.nn.Module):
    """Scalar head in the place of the output layer. Weight and bias start at zero, so that V = 0 before the first update."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.head = torch.nn.Linear(hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(
        self, hidden: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, None]:
        """[s, b, hidden] -> ([s, b, 1] float32, no bias): the call signature of megatron's output layer."""
        return self.head(hidden).float(), None


def build_module(hf: Mapping[str, Any], role: Role, *, freeze_attention: bool = False) -> GPTModel:
    """A GPTModel with uninitialised weights (load before use): a policy, or a critic with a zero `ValueHead`.

    ``freeze_attention`` takes the attention parameters (projections, biases, q/k norms) out of training; gradients still pass
    through them.
    """
    initialize_parallel()
    device = training_device()
    with warnings.catch_warnings(), megatron_device():
        # Announcements of missing kernels and of megatron's own deprecated defaults.
        warnings.simplefilter("ignore")
        config = transformer_config(hf, on_gpu=device.type == "cuda")
        module = GPTModel(
            config,
            _layer_spec(config),
            vocab_size=hf["vocab_size"],
            max_sequence_length=hf["max_position_embeddings"],
            position_embedding_type="rope",
            rotary_base=rotary_base(hf),
            share_embeddings_and_output_weights=is_tied(hf) and role == "policy",
        )
    if role == "critic":
        module.output_layer = ValueHead(config.hidden_size)
    module = module.to(device)
    if freeze_attention:
        for name, parameter in module.named_parameters():
            if ".self_attention." in name:
                parameter.requires_grad = False
    return module


def _layer_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = TorchCoreAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * config.num_layers, layer_norm=RMSNorm)
