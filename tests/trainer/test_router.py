"""Routing and balancing on one rank."""

from __future__ import annotations

import pytest
import torch

from ranksight.trainer.model import Transformer
from ranksight.trainer.moe import MoE
from ranksight.trainer.router import Router
from tests.trainer.tasks import config


def router(**options: object) -> Router:
    made = Router(config(dim=16, experts=4, top_k=2, **options))
    torch.nn.init.normal_(made.gate.weight, generator=torch.Generator().manual_seed(0))
    return made.double()


def tokens(count: int = 64) -> torch.Tensor:
    return torch.randn(2, count // 2, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_bias_chooses_and_never_weighs() -> None:
    plain, biased = router(), router()
    biased.bias_E[3] = 10.0
    weights_TK, chosen_TK = biased(tokens())
    assert (chosen_TK == 3).any(dim=-1).all()
    scores_TE = torch.sigmoid(plain.gate(tokens())).flatten(0, 1)
    unbiased_TK = scores_TE.gather(1, chosen_TK)
    assert torch.equal(weights_TK, unbiased_TK / unbiased_TK.sum(-1, keepdim=True))


def test_busy_experts_lose_bias_and_idle_ones_gain_it() -> None:
    made = router(balance="bias", bias_rate=0.5)
    made.finish_step(torch.tensor([10.0, 20.0, 30.0, 20.0], dtype=torch.float64))
    assert made.bias_E.tolist() == [0.5, 0.0, -0.5, 0.0]


@pytest.mark.parametrize("balance", ["aux", "none"])
def test_only_bias_balancing_moves_the_bias(balance: str) -> None:
    made = router(balance=balance)
    made.finish_step(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    assert made.bias_E.tolist() == [0.0] * 4


def test_the_auxiliary_loss_is_the_formula_and_its_gradient_reaches_the_gate() -> None:
    made, x_BSD = router(balance="aux", aux_weight=0.5), tokens()
    made.finish_step(torch.tensor([5.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    weights_TK, _ = made(x_BSD)
    (weights_TK.sum() * 0.0).backward()  # nothing but the auxiliary loss has a gradient
    got = made.gate.weight.grad
    made.gate.weight.grad = None

    scores_TE = torch.sigmoid(made.gate(x_BSD)).flatten(0, 1)
    chances_TE = scores_TE / scores_TE.sum(-1, keepdim=True)
    share_E = torch.tensor([5 / 8, 1 / 8, 1 / 8, 1 / 8], dtype=torch.float64)
    per_step = config(dim=16).tokens_per_step
    expected = 0.5 * 4 * (chances_TE.sum(0) / per_step * share_E).sum()
    expected.backward()
    assert made.aux_loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(got, made.gate.weight.grad, rtol=1e-12, atol=1e-15)


def test_every_choice_is_counted_once_also_when_activations_are_recomputed() -> None:
    run = config(layers=2, recompute=True)
    model = Transformer(run, range(2))
    inputs_BS = torch.zeros(3, run.model.seq, dtype=torch.int64)
    model(inputs_BS).sum().backward()
    for moe in model.moes.values():
        assert moe.router.tokens_E.sum().item() == 3 * run.model.seq * run.model.top_k
        moe.router.start_step()
        assert moe.router.tokens_E.sum().item() == 0


def test_experts_agree_with_a_loop_over_tokens() -> None:
    run = config(dim=16, experts=4, top_k=2, hidden=8)
    moe = MoE(run).double()
    generator = torch.Generator().manual_seed(2)
    for weight in moe.parameters():
        torch.nn.init.normal_(weight, generator=generator)
    x_BSD = tokens(32)
    weights_TK, chosen_TK = moe.router(x_BSD)
    rows = []
    for token_D, weights_K, chosen_K in zip(x_BSD.flatten(0, 1), weights_TK, chosen_TK, strict=True):
        row_D = torch.zeros(16, dtype=torch.float64)
        for weight, expert in zip(weights_K, chosen_K, strict=True):
            gate_FD, up_FD, down_DF = (w[expert] for w in moe.experts.parameters())
            row_D += weight * (down_DF @ (torch.nn.functional.silu(gate_FD @ token_D) * (up_FD @ token_D)))
        rows.append(row_D)
    torch.testing.assert_close(moe(x_BSD).flatten(0, 1), torch.stack(rows), rtol=1e-10, atol=1e-10)
