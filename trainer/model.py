"""A byte-level transformer: RMSNorm, rotary embeddings, grouped-query attention, mixture-of-experts feed-forwards.

The model knows nothing of parallelism. A pipeline stage is the same class with fewer layers and perhaps without ends;
the names of its parameters are those of the whole model, and so are their first values: each parameter is drawn from a
generator seeded with (seed, name), whoever holds it.

Shape suffixes: B sequences, S positions, D model width, N head width, V byte values. Under tensor parallel a rank sees
its share of the heads, and between the blocks its share of S.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ranksight.trainer.config import VOCABULARY, Config, ModelConfig
from ranksight.trainer.moe import MoE
from ranksight.trainer.router import NotCounting


class Attention(nn.Module):
    """Causal attention; `heads / kv_heads` query heads share a key and value head."""

    turn_SN: Tensor

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.head_dim = model.dim // model.heads
        self.query = nn.Linear(model.dim, model.heads * self.head_dim, bias=False)
        self.key = nn.Linear(model.dim, model.kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(model.dim, model.kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(model.heads * self.head_dim, model.dim, bias=False)
        self.register_buffer("turn_SN", rotary_table(model.seq, self.head_dim), persistent=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Same shape as the input."""
        batch, seq, _ = x_BSD.shape
        query, key, value = (
            linear(x_BSD).view(batch, seq, -1, self.head_dim).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(
            rotate(query, self.turn_SN), rotate(key, self.turn_SN), value, is_causal=True, enable_gqa=True
        )
        projected: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, seq, -1))
        return projected


def rotary_table(seq: int, head_dim: int) -> Tensor:
    """Cosines, then sines, of the angle of each position and pair: [S, N], float64."""
    frequency = 10_000 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(seq, dtype=torch.float64), frequency)
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


def rotate(x: Tensor, turn_SN: Tensor) -> Tensor:
    """Turn each pair (i, i + N/2) of the last axis by the angle of its position."""
    cos, sin = turn_SN.chunk(2, dim=-1)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1).type_as(x)


class Block(nn.Module):
    """Attention and experts, each on a normed copy of the residual stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.model.dim, eps=1e-6)
        self.attention = Attention(config.model)
        self.moe_norm = nn.RMSNorm(config.model.dim, eps=1e-6)
        self.moe = MoE(config)
        self.recompute = config.plan.recompute

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Same shape as the input."""
        if not self.recompute:
            return self._forward(x_BSD)
        again: Tensor = checkpoint(self._forward, x_BSD, use_reentrant=False, context_fn=self._contexts)
        return again

    def _forward(self, x_BSD: Tensor) -> Tensor:
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD))
        mixed: Tensor = x_BSD + self.moe(self.moe_norm(x_BSD))
        return mixed

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """For the first forward and for the recomputed one."""
        return nullcontext(), NotCounting(self.moe.router)


class Transformer(nn.Module):
    """The layers `layers` of the model; the first stage also embeds bytes, the last one also predicts them."""

    def __init__(self, config: Config, layers: Iterable[int], *, first: bool = True, last: bool = True) -> None:
        super().__init__()
        model = config.model
        self.embedding = nn.Embedding(VOCABULARY, model.dim) if first else None
        self.layers = nn.ModuleDict({str(layer): Block(config) for layer in layers})
        self.norm = nn.RMSNorm(model.dim, eps=1e-6) if last else None
        self.head = nn.Linear(model.dim, VOCABULARY, bias=False) if last else None
        self._init_weights(model, config.train.seed)

    def forward(self, x: Tensor) -> Tensor:
        """Bytes [B, S] on the first stage, else hidden states; logits [B, S, V] on the last stage, else hidden."""
        x_BSD = x if self.embedding is None else self.embedding(x)
        for block in self.layers.values():
            x_BSD = block(x_BSD)
        if self.norm is None or self.head is None:
            return x_BSD
        logits_BSV: Tensor = self.head(self.norm(x_BSD))
        return logits_BSV

    @property
    def moes(self) -> dict[int, MoE]:
        """The mixture-of-experts layers by layer number."""
        return {int(number): block.moe for number, block in self.layers.items() if isinstance(block, Block)}

    @torch.no_grad()
    def _init_weights(self, model: ModelConfig, seed: int) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() == 1:  # norms
                weight.fill_(1.0)
                continue
            generator = torch.Generator().manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
            std = {"embedding.weight": 1.0, "head.weight": 0.02}.get(name, weight.shape[-1] ** -0.5)
            if name.endswith(("attention.output.weight", "down_EDF")):
                std /= math.sqrt(2 * model.layers)  # the residual stream sums 2 x layers of these
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * std)
