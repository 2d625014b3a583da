"""Which stages and layers a rank holds, and that stages are cut from one model."""

from __future__ import annotations

import pytest
import torch

from ranksight.trainer.config import ParallelPlan
from ranksight.trainer.model import Transformer
from ranksight.trainer.pipeline import layers_of_stage, stages_of_rank
from tests.trainer.tasks import config


@pytest.mark.parametrize(
    ("plan", "stages"),
    [
        (ParallelPlan(), [[0]]),
        (ParallelPlan(pp=3, schedule="GPipe"), [[0], [1], [2]]),
        (ParallelPlan(pp=2, schedule="1F1B"), [[0], [1]]),
        (ParallelPlan(pp=2, schedule="LoopedBFS", stages_per_rank=3), [[0, 2, 4], [1, 3, 5]]),
        (ParallelPlan(pp=3, schedule="ZBVZeroBubble"), [[0, 5], [1, 4], [2, 3]]),
    ],
)
def test_stages_of_ranks(plan: ParallelPlan, stages: list[list[int]]) -> None:
    assert [stages_of_rank(plan, rank) for rank in range(plan.pp)] == stages


@pytest.mark.parametrize(("layers", "stages"), [(4, 1), (4, 4), (7, 3), (9, 4)])
def test_every_layer_is_in_one_stage(layers: int, stages: int) -> None:
    parts = [list(layers_of_stage(stage, stages, layers)) for stage in range(stages)]
    assert [layer for part in parts for layer in part] == list(range(layers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_stages_one_after_the_other_are_the_whole_model() -> None:
    run = config(layers=3)
    inputs_BS = torch.arange(2 * run.model.seq).view(2, -1) % 256
    whole = Transformer(run, range(3))
    first = Transformer(run, range(1), last=False)
    second = Transformer(run, range(1, 3), first=False)
    assert torch.equal(second(first(inputs_BS)), whole(inputs_BS))
    names = {name for part in (first, second) for name, _ in part.named_parameters()}
    assert names == {name for name, _ in whole.named_parameters()}


def test_a_byte_sees_only_bytes_before_it() -> None:
    run = config()
    model = Transformer(run, range(run.model.layers)).double()
    inputs_BS = torch.arange(run.model.seq).view(1, -1)
    changed_BS = inputs_BS.clone()
    changed_BS[0, 40:] = 7
    before, after = model(inputs_BS), model(changed_BS)
    # experts see their rows in other company, so sums may round differently
    torch.testing.assert_close(before[:, :40], after[:, :40], rtol=1e-10, atol=1e-10)
    assert (before[:, 40:] - after[:, 40:]).abs().max() > 1e-2
