"""A mixture-of-experts layer: route, send each token to the ranks of its experts, compute, bring it home, mix.

    x [T, D] -> copies [T * K, D], sorted by expert -> all_to_all over ep -> experts of this rank -> all_to_all -> mix

Tokens are never dropped and never padded: the all-to-alls have uneven splits, and a rank may get none.

Shape suffixes: B sequences, S positions, D model width, T = B * S tokens, K chosen experts, R = T * K routed rows,
Q rows that arrived, E experts, L experts of this rank, W ranks of the ep group, F hidden width of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import _functional_collectives as funcol
from torch.distributed.tensor import DTensor

from ranksight.trainer.config import Config, ModelConfig
from ranksight.trainer.router import Router


class Experts(nn.Module):
    """SwiGLU feed-forwards, one per expert, on rows that are sorted by expert."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.gate_EFD = nn.Parameter(torch.empty(model.experts, model.hidden, model.dim))
        self.up_EFD = nn.Parameter(torch.empty(model.experts, model.hidden, model.dim))
        self.down_EDF = nn.Parameter(torch.empty(model.experts, model.dim, model.hidden))

    def forward(self, rows_QD: Tensor, rows_per_expert: Sequence[int]) -> Tensor:
        """`rows_per_expert` says how many rows each expert of this rank has, in order."""
        weights = (_local(self.gate_EFD), _local(self.up_EFD), _local(self.down_EDF))
        outputs = []
        for rows_D, gate_FD, up_FD, down_DF in zip(rows_QD.split(list(rows_per_expert)), *weights, strict=True):
            outputs.append((F.silu(rows_D @ gate_FD.T) * (rows_D @ up_FD.T)) @ down_DF.T)
        return torch.cat(outputs)


class MoE(nn.Module):
    """The layer. `ep_group` is set when the experts are spread over ranks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = Experts(config.model)
        self.ep_group: dist.ProcessGroup | None = None

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Same shape as the input."""
        weights_TK, chosen_TK = self.router(x_BSD)
        tokens, top_k = chosen_TK.shape
        x_TD = x_BSD.flatten(0, 1)
        expert_R = chosen_TK.flatten()
        order_R = expert_R.argsort(stable=True)
        copies_RD = x_TD.unsqueeze(1).expand(-1, top_k, -1).flatten(0, 1)[order_R]
        rows_E = torch.bincount(expert_R, minlength=self.router.experts)
        if self.ep_group is None:
            outputs_RD = self.experts(copies_RD, rows_E.tolist())
        else:
            outputs_RD = self._spread(copies_RD, rows_E, self.ep_group)
        outputs_TKD = outputs_RD[_inverse(order_R)].view(tokens, top_k, -1)
        mixed_TD: Tensor = (outputs_TKD * weights_TK.to(outputs_TKD).unsqueeze(-1)).sum(1)
        return mixed_TD.view_as(x_BSD)

    def _spread(self, copies_RD: Tensor, rows_E: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Run rows on the ranks that own their experts; the result is in the order of `copies_RD`."""
        arriving_E = torch.empty_like(rows_E)
        dist.all_to_all_single(arriving_E, rows_E, group=group)
        rows_WL, arriving_WL = rows_E.view(group.size(), -1), arriving_E.view(group.size(), -1)
        sent, received = rows_WL.sum(1).tolist(), arriving_WL.sum(1).tolist()

        rows_QD = funcol.wait_tensor(funcol.all_to_all_single(copies_RD, received, sent, group))
        # Rows arrive sorted by source rank, then by expert; the experts want them sorted by expert alone.
        local = torch.arange(arriving_WL.shape[1], device=rows_E.device).repeat(group.size())
        order_Q = local.repeat_interleave(arriving_E).argsort(stable=True)
        outputs_QD = self.experts(rows_QD[order_Q], arriving_WL.sum(0).tolist())
        home_RD: Tensor = funcol.wait_tensor(
            funcol.all_to_all_single(outputs_QD[_inverse(order_Q)], sent, received, group)
        )
        return home_RD


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    return inverse
