"""What ranks do in these tests."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from ranksight.trainer import observe
from ranksight.trainer.config import Config
from ranksight.trainer.options import build
from ranksight.trainer.stats import local
from ranksight.trainer.stop import StopSignal
from ranksight.trainer.train import Report, Trainer


def config(**options: Any) -> Config:
    """A config from options by their names, without sections."""
    return build({}, options)


def train(run: Config, resume: str = "") -> list[Report]:
    """Train from the start, or from a checkpoint, to the end; the reports of this rank."""
    trainer = Trainer(run, torch.device("cpu"), StopSignal())
    if resume:
        trainer.resume(resume, print)
    return trainer.run(lambda report: None)


def train_until_ranksight_stops_rank(run: Config, rank: int, after: int) -> list[Report]:
    """Train; from the beginning, the hooks of one rank know of a request to leave after step number `after`."""
    if dist.get_rank() == rank:
        observe.stop_after = lambda: after
    return train(run)


def train_through_nan(run: Config, rank: int) -> list[tuple[int, bool, bool]]:
    """Three steps; in the second, one rank holds a NaN. Per step: ranks that saw it, loss is NaN, weights changed."""
    trainer = Trainer(run, torch.device("cpu"), StopSignal())
    weight = local(trainer.parameters["layers.1.attention.query.weight"].detach())
    told = []
    for step in range(3):
        saved = weight.clone()
        if step == 1 and dist.get_rank() == rank:
            weight[0, 0] = float("nan")
        before = weight.clone()
        report, _ = trainer.train_step()
        told.append(
            (report.nonfinite_ranks, math.isnan(report.loss), not torch.equal(*map(torch.nan_to_num, (weight, before))))
        )
        if step == 1:
            weight.copy_(saved)
    return told
