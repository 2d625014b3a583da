"""Where an action finds itself: the trainer, the fault, and the step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ranksight.trainer.faults.injection import Injection
from ranksight.trainer.faults.kinds import Who

if TYPE_CHECKING:
    from ranksight.trainer.train import Trainer


class Place(Enum):
    """Moments of the training loop at which faults act."""

    INSTALL = auto()  # once, when everything is built; on all ranks
    BEGIN = auto()  # a step begins
    DATA = auto()  # the batch is wanted
    FORWARD = auto()  # before the first forward of a step
    OUTPUT = auto()  # after the first forward of a step's first block
    BACKWARD = auto()  # before the first backward of a step
    REDUCED = auto()  # gradients are there, the all-reduce of the step is next
    END = auto()  # the step is reported
    SAVING = auto()  # a checkpoint is written next
    SAVED = auto()  # a checkpoint was written
    RESUMED = auto()  # a checkpoint was loaded


@dataclass(slots=True)
class Scene:
    """One fault on this rank. `kept` is the action's own: groups, objects that leak."""

    trainer: Trainer
    injection: Injection
    rank: int = field(default_factory=dist.get_rank)
    world_size: int = field(default_factory=dist.get_world_size)
    step: int = -1
    kept: list[Any] = field(default_factory=list)

    @property
    def size(self) -> float:
        """How large the fault is, in the unit of its kind."""
        return self.injection.size

    @property
    def first(self) -> bool:
        """Whether this is the first step of the fault."""
        return self.step == self.injection.step

    @property
    def culprit(self) -> bool:
        """Whether this rank is the one to blame."""
        return self.rank == self.injection.rank

    @property
    def next_rank(self) -> int:
        """The rank after the culprit."""
        return (self.injection.rank + 1) % self.world_size

    @property
    def struck(self) -> bool:
        """Whether this rank is among those that the fault strikes in this step."""
        plan = self.trainer.config.plan
        stage_ranks = plan.dp * plan.tp
        match self.injection.fault.spec.who:
            case Who.ONE:
                return self.culprit
            case Who.STAGE:
                return self.rank // stage_ranks == self.injection.rank // stage_ranks
            case Who.TURNS:
                return self.step % self.world_size == self.rank
            case Who.ALL | Who.FAVOURED:
                return True


def burn(seconds: float) -> None:
    """Keep the processor busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
