"""Which experts a token goes to, and how the load is kept even.

    scores = sigmoid(gate(x))           how much a token likes each expert
    chosen = top_k(scores + bias)       the bias only chooses; it never scales an output
    weights = scores[chosen] / sum      how the experts' outputs are mixed

Two ways to balance, both fed by the token counts that the step's one all-reduce already carries:

bias  After each step an expert with fewer tokens than the mean gets a higher bias, one with more a lower one. No
      gradient is disturbed (auxiliary-loss-free balancing, arXiv:2408.15664).
aux   The auxiliary loss of the Switch transformer, weight * E * sum_e share_e * mean_t p_te. The shares come from the
      step before: the gradient never flows through them, and shares of the step in progress would cost an extra
      all-reduce in every layer, and differ between microbatchings. It is zero-sum in the same place: even shares.

Shape suffixes: B sequences, S positions, D model width, T = B * S tokens, E experts, K chosen experts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ranksight.trainer.config import Config


class AddLoss(torch.autograd.Function):
    """Hand `carrier` on unchanged, and add `loss` to whatever is minimised downstream.

    The extra loss needs no path to the end of the model, which may lie on another pipeline stage.
    """

    @staticmethod
    def forward(ctx: Any, carrier: Tensor, loss: Tensor) -> Tensor:
        """`carrier`."""
        ctx.like = loss.new_ones(())
        return carrier.view_as(carrier)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """The loss is added with weight 1."""
        return grads[0], ctx.like


class NotCounting(AbstractContextManager[None]):
    """Around recomputed activations: a token must not be counted again.

    May be entered many times: schedules that split the backward pass recompute for each half.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    def __enter__(self) -> None:
        self._router.counting = False

    def __exit__(self, *raised: object) -> None:
        self._router.counting = True


class Router(nn.Module):
    """Chooses `top_k` of `experts` for each token and counts the choices of this rank since `start_step`."""

    bias_E: Tensor
    share_E: Tensor
    tokens_E: Tensor
    aux_loss: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        model = config.model
        self.experts, self.top_k = model.experts, model.top_k
        self.balance, self.bias_rate = config.train.balance, config.train.bias_rate
        self._aux_scale = config.train.aux_weight * model.experts / config.tokens_per_step
        self.gate = nn.Linear(model.dim, model.experts, bias=False)
        # bias and shares are state of the training: they travel with checkpoints
        self.register_buffer("bias_E", torch.zeros(model.experts))
        self.register_buffer("share_E", torch.full((model.experts,), 1 / model.experts))
        self.register_buffer("tokens_E", torch.zeros(model.experts, dtype=torch.int64), persistent=False)
        self.register_buffer("aux_loss", torch.zeros((), dtype=torch.float64), persistent=False)
        self.counting = True  # see NotCounting

    def forward(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Mixing weights and numbers of the chosen experts, both [T, K]."""
        scores_TE = torch.sigmoid(self.gate(x_BSD)).flatten(0, 1)
        chosen_TK = (scores_TE.detach() + self.bias_E).topk(self.top_k, dim=-1).indices
        weights_TK = scores_TE.gather(1, chosen_TK)
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
        aux = None
        if self.balance == "aux":
            chances_TE = scores_TE / scores_TE.sum(-1, keepdim=True)
            aux = self._aux_scale * (chances_TE * self.share_E).sum()
            weights_TK = AddLoss.apply(weights_TK, aux)  # type: ignore[no-untyped-call]
        if self.counting:
            with torch.no_grad():
                self.tokens_E += torch.bincount(chosen_TK.flatten(), minlength=self.experts)
                if aux is not None:
                    self.aux_loss += aux
        return weights_TK, chosen_TK

    def start_step(self) -> None:
        """Forget the counts of the step before."""
        self.tokens_E.zero_()
        self.aux_loss.zero_()

    @torch.no_grad()
    def finish_step(self, load_E: Tensor) -> None:
        """Balance after a step in which the whole job sent `load_E` tokens to each expert."""
        if self.balance == "bias":
            self.bias_E += self.bias_rate * torch.sign(load_E.mean() - load_E).to(self.bias_E)
        elif self.balance == "aux":
            self.share_E.copy_(load_E / load_E.sum())
