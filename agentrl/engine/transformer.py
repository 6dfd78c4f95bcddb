"""A Llama, Qwen2, Qwen3 or Qwen3-MoE decoder over a slot-based KV cache, in float32 on the CPU.

Rows of many sequences go through one ragged forward: each token row names its cache slot and position, so that decoding
(one row a sequence) and prefill (many rows a sequence) share a pass. Numbers equal transformers' within 1e-5.

The fused weights hold HF tensors, rearranged: the rows of each query and key head are interleaved, so that rotary embedding
is one complex multiplication (scores are unchanged, since queries and keys are permuted alike), and the weights of the two
norms of a layer are folded into the matrices behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from agentrl.engine.experts import Mixture, mixture
from agentrl.model.config import ModelConfig

SPARSE = 2
"""Neighbouring slots are read in place up to this many for each one that is asked for."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What one forward works on: n token rows of sequences, ``counts[i]`` consecutive ones for sequence i.

    ``slots`` int64 [sequences]; ``starts`` int64 [sequences], position of each sequence's first row; ``counts`` int64
    [sequences], >= 1, sequences with one row first; ``tokens`` int64 [n].
    """

    slots: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences whose attention is computed together: all with one row, or several, padded to ``width`` rows.

    ``slots`` as a slice takes neighbouring slots as they lie, without a copy; those that are not asked for are padding too.
    """

    rows: slice
    slots: torch.Tensor | slice
    sequences: int
    longest: int
    width: int
    mask: torch.Tensor
    padded: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    out: torch.Tensor
    mlp: _MLP | Mixture


@dataclass(frozen=True, slots=True)
class _MLP:
    gate_up: torch.Tensor
    down: torch.Tensor

    def add_to(self, x: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        gate, up = torch.mm(normed, self.gate_up).chunk(2, -1)
        return torch.addmm(x, F.silu(gate).mul_(up), self.down)


class KVCache:
    """Keys and values by (slot, position). A position must be written by a forward before a later row attends to it."""

    def __init__(self, config: ModelConfig, slots: int, max_context: int) -> None:
        self.max_context = max_context
        self.width = 2 * config.n_kv_heads * config.head_dim
        self.layers = [torch.zeros(slots * max_context, self.width) for _ in range(config.n_layers)]

    def read(self, layer: int, slots: torch.Tensor | slice, longest: int) -> torch.Tensor:
        """[slots, longest, width]: a view for a slice, else a copy."""
        rows = self.layers[layer].view(-1, self.max_context, self.width)
        if isinstance(slots, slice):
            return rows[slots, :longest]
        flat = rows.view(-1, self.max_context * self.width)[:, : longest * self.width]
        return flat.index_select(0, slots).view(len(slots), longest, self.width)


class Decoder:
    """One set of weights. Immutable: new weights are a new decoder."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, torch.Tensor], max_context: int) -> None:
        """``tensors``: exactly the names and shapes of ``config.tensor_shapes()``."""
        self.config = config
        self._embed = tensors["model.embed_tokens.weight"].float()
        self._norm = tensors["model.norm.weight"].float()
        self._head = self._embed if config.tie_embeddings else tensors["lm_head.weight"].float()
        self._layers = [_fuse(config, tensors, layer) for layer in range(config.n_layers)]
        self._rotations = _rotations(config, max_context)

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache) -> torch.Tensor:
        """Write the rows into the cache and return float32 logits [sequences, vocabulary] after each one's last row."""
        ends = np.cumsum(rows.counts)
        return self._logits(self._hidden(rows, cache)[torch.from_numpy(ends - 1)])

    @torch.inference_mode()
    def sequence_logits(self, token_ids: np.ndarray) -> torch.Tensor:
        """Float32 logits [n, vocabulary] after each of the n ids of one sequence, without any cache."""
        n = len(token_ids)
        one = np.zeros(1, dtype=np.int64)
        rows = Rows(slots=one, starts=one, counts=np.array([n]), tokens=np.asarray(token_ids, dtype=np.int64))
        return self._logits(self._hidden(rows, KVCache(self.config, 1, n)))

    def _hidden(self, rows: Rows, cache: KVCache) -> torch.Tensor:
        positions = _positions(rows)
        at = torch.from_numpy(np.repeat(rows.slots, rows.counts) * cache.max_context + positions)
        groups = _groups(rows, self.config.n_heads // self.config.n_kv_heads)
        rotation = self._rotations.index_select(0, torch.from_numpy(positions))[:, None]
        x = self._embed.index_select(0, torch.from_numpy(rows.tokens))
        width = (self.config.hidden_size,)
        for index, layer in enumerate(self._layers):
            attended = self._attend(index, layer, F.rms_norm(x, width, None, self.config.rms_eps), rotation, at, groups, cache)
            x = torch.addmm(x, attended, layer.out)
            x = layer.mlp.add_to(x, F.rms_norm(x, width, None, self.config.rms_eps))
        return x

    def _attend(
        self,
        index: int,
        layer: _Layer,
        x: torch.Tensor,
        rotation: torch.Tensor,
        at: torch.Tensor,
        groups: list[_Group],
        cache: KVCache,
    ) -> torch.Tensor:
        """[n, hidden] to [n, heads * head_dim]."""
        c = self.config
        n_rotated = (c.n_heads + c.n_kv_heads) * c.head_dim
        qkv = torch.mm(x, layer.qkv) if layer.qkv_bias is None else torch.addmm(layer.qkv_bias, x, layer.qkv)
        qk = qkv[:, :n_rotated].unflatten(1, (-1, c.head_dim))
        if layer.qk_norm is not None:
            qk.copy_(F.rms_norm(qk, (c.head_dim,), None, c.rms_eps) * layer.qk_norm)
        torch.view_as_complex(qk.unflatten(2, (-1, 2))).mul_(rotation)
        cache.layers[index].index_copy_(0, at, qkv[:, c.n_heads * c.head_dim :])
        query = qkv[:, : c.n_heads * c.head_dim]
        parts = [
            self._attend_group(group, query[group.rows], cache.read(index, group.slots, group.longest)) for group in groups
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_group(self, group: _Group, query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Query heads that share a key head are laid out as rows of one attention, so keys are never repeated."""
        c = self.config
        sequences, share = group.sequences, c.n_heads // c.n_kv_heads
        if group.padded is not None:
            query = query.new_zeros(sequences * group.width, query.shape[1]).index_copy_(0, group.padded, query)
        q = query.view(sequences, group.width, c.n_kv_heads, share, c.head_dim).transpose(1, 2)
        k, v = kv.unflatten(2, (2, c.n_kv_heads, c.head_dim)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q.reshape(sequences, c.n_kv_heads, -1, c.head_dim), k, v, attn_mask=group.mask)
        out = out.view(sequences, c.n_kv_heads, group.width, share, c.head_dim).transpose(1, 2).reshape(-1, query.shape[1])
        return out if group.padded is None else out.index_select(0, group.padded)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, (self.config.hidden_size,), self._norm, self.config.rms_eps), self._head)


def _positions(rows: Rows) -> np.ndarray:
    if len(rows.tokens) == len(rows.counts):
        return rows.starts
    first_row = np.cumsum(rows.counts) - rows.counts
    return np.arange(len(rows.tokens)) + np.repeat(rows.starts - first_row, rows.counts)


def _groups(rows: Rows, share: int) -> list[_Group]:
    single = int((rows.counts == 1).sum())
    groups = []
    if single:
        groups.append(_single_rows(rows.slots[:single], rows.starts[:single]))
    if single < len(rows.counts):
        groups.append(_many_rows(rows.slots[single:], rows.starts[single:], rows.counts[single:], share, single))
    return groups


def _single_rows(slots: np.ndarray, starts: np.ndarray) -> _Group:
    """Slots in ascending order that lie close enough are read in place, the gaps with them: cheaper than a copy."""
    longest, first, n = int(starts.max()) + 1, int(slots[0]), len(slots)
    rows, span = slice(0, n), int(slots[-1]) - first + 1
    if not n <= span <= SPARSE * n or (slots[1:] <= slots[:-1]).any():
        return _Group(rows, torch.from_numpy(slots), n, longest, 1, _mask(starts[:, None], longest, 1), None)
    padded = slots - first
    ends = np.full(span, longest)
    ends[padded] = starts
    full = span == n
    index = None if full else torch.from_numpy(padded)
    return _Group(rows, slice(first, first + span), span, longest, 1, _mask(ends[:, None], longest, 1), index)


def _many_rows(slots: np.ndarray, starts: np.ndarray, counts: np.ndarray, share: int, first_row: int) -> _Group:
    width, longest = int(counts.max()), int((starts + counts).max())
    padded = np.flatnonzero(np.arange(width) < counts[:, None])
    return _Group(
        rows=slice(first_row, first_row + len(padded)),
        slots=torch.from_numpy(slots),
        sequences=len(slots),
        longest=longest,
        width=width,
        mask=_mask(starts[:, None] + np.arange(width), longest, share),
        padded=torch.from_numpy(padded),
    )


def _mask(positions: np.ndarray, longest: int, share: int) -> torch.Tensor:
    """0 for what a row sees, -inf else, [sequences, 1, rows * share, longest], from positions [sequences, rows].

    Each row sees its past, padding rows too: a row that sees nothing would be NaN.
    """
    hidden = np.arange(longest) > positions[:, :, None]
    bias = np.zeros(hidden.shape, dtype=np.float32)
    bias[hidden] = -np.inf
    return torch.from_numpy(bias if share == 1 else bias.repeat(share, axis=1))[:, None]


def _fuse(config: ModelConfig, tensors: Mapping[str, torch.Tensor], layer: int) -> _Layer:
    at = f"model.layers.{layer}."

    def get(name: str) -> torch.Tensor:
        return tensors[at + name].float()

    q, k = (_interleave(get(f"self_attn.{name}_proj.weight"), config.head_dim) for name in "qk")
    qkv = torch.cat([q, k, get("self_attn.v_proj.weight")]) * get("input_layernorm.weight")
    before_mlp = get("post_attention_layernorm.weight")
    mlp: _MLP | Mixture
    if config.experts is not None:
        mlp = mixture(config.experts, tensors, at, before_mlp)
    else:
        gate_up = torch.cat([get("mlp.gate_proj.weight"), get("mlp.up_proj.weight")]) * before_mlp
        mlp = _MLP(gate_up.t().contiguous(), get("mlp.down_proj.weight").t().contiguous())
    bias = norm = None
    if config.qkv_bias:
        q, k = (_interleave(get(f"self_attn.{name}_proj.bias"), config.head_dim) for name in "qk")
        bias = torch.cat([q, k, get("self_attn.v_proj.bias")])
    if config.qk_norm:
        q, k = (_interleave(get(f"self_attn.{name}_norm.weight"), config.head_dim) for name in "qk")
        norm = torch.cat([q.expand(config.n_heads, -1), k.expand(config.n_kv_heads, -1)])
    return _Layer(qkv.t().contiguous(), bias, norm, get("self_attn.o_proj.weight").t().contiguous(), mlp)


def _interleave(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Row i and row i + head_dim/2 of each head, which rotary embedding pairs, become neighbours."""
    return rows.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def _rotations(config: ModelConfig, n: int) -> torch.Tensor:
    """complex64 [n, head_dim / 2]: exp(i * position * theta ** (-2 j / head_dim))."""
    frequencies = 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    angles = torch.outer(torch.arange(n).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)
