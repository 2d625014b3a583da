"""What ranks do in these tests."""

from __future__ import annotations

from typing import Any

import torch

from ranksight.trainer.config import Config
from ranksight.trainer.options import build
from ranksight.trainer.stop import StopSignal
from ranksight.trainer.train import Report, Trainer


def config(**options: Any) -> Config:
    """A config from options by their names, without sections."""
    return build({}, options)


def train(run: Config, resume: str = "") -> list[Report]:
    """Train from the start, or from a checkpoint, to the end; the reports of this rank."""
    trainer = Trainer(run, torch.device("cpu"), StopSignal())
    trainer.resume(resume, print)
    return trainer.run(lambda report: None)
