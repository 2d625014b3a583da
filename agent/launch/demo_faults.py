"""Faults that `ranksight demo --fault` puts into the reference trainer, so large that they show within two minutes.

    straggler           -> Put("straggler:rank=3,step=8,size=0.5")      rank, step and size of the table below
    straggler:rank=1    -> Put("straggler:rank=1")                      what the user says is taken as it is
    checkpoint-stall    -> Put(..., needs="checkpoints")                what the trainer must be told besides

The trainer knows what its faults do (docs/faults.md); the agent never loads it, so their names stand here once more, and a
test compares. The sizes are for eight ranks on two cores, where each rank is late by chance all the time.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from ranksight.agent.errors import RanksightError

_ONE = "rank=3,step=12"
# fault -> where and how large; "" leaves all to the trainer
FAULTS = {
    # A process dies or stands still.
    "kill": _ONE, "exception": _ONE, "exit": _ONE, "oom-swallowed": _ONE, "freeze": _ONE, "gil": _ONE,
    # All ranks wait.
    "hang": _ONE, "spin": _ONE, "loader-hang": _ONE, "data-exhausted": _ONE, "deadlock-groups": _ONE,
    "deadlock-recv": _ONE, "network-cut": _ONE,
    # Ranks do not do the same.
    "shape-mismatch": _ONE, "dtype-mismatch": _ONE, "reduce-op-mismatch": _ONE, "root-mismatch": _ONE,
    "split-mismatch": _ONE, "skipped-call": _ONE, "extra-call": _ONE, "bitflip": _ONE,
    # A rank, or all of them, are slow.
    "straggler": "rank=3,step=8,size=0.5", "straggler-backward": "rank=3,step=8,size=0.5",
    "straggler-idle": "rank=3,step=8,size=0.5", "slow-input": "rank=3,step=8,size=1", "input-stall": _ONE,
    "pause": _ONE, "gc-pauses": _ONE, "gil-thread": "rank=3,step=8", "oversubscribe": "step=8", "slow-link": _ONE,
    "slow-network": "step=12", "regression": "step=20,size=1",
    # The work is not shared evenly.
    "stage-imbalance": "rank=4,step=4,size=0.3", "workload": "step=4,size=1", "hot-expert": "rank=3,step=4",
    "router-collapse": "rank=3,step=4", "dead-expert": "step=4",
    # The numbers are wrong.
    "nan-activation": _ONE, "nan-gradient": _ONE, "nan-weight": _ONE, "loss-spike": "step=25", "grad-spike": "step=25",
    "divergence": "step=20",
    # Checkpoints, memory, and a rank that nobody watches.
    "checkpoint-damaged": "step=5", "checkpoint-stall": "rank=3,step=5", "memory-leak": "rank=3,step=4",
    "unobserved": _ONE,
}  # fmt: skip
_CHECKPOINTS = frozenset({"checkpoint-damaged", "checkpoint-stall"})
_REPLICAS = frozenset({"bitflip"})
HUNG_SECONDS = 60  # after which torch gives up a collective, so that a demo ends


@dataclass(frozen=True, slots=True)
class Put:
    """A fault as the trainer's options say it."""

    asked: str
    checkpoints: bool
    replicas: bool

    def options(self, folder: str) -> tuple[str, ...]:
        """For the trainer's command line; checkpoints, where they are needed, go to `folder`."""
        checkpoints = ("--folder", folder, "--every", "10") if self.checkpoints else ()
        replicas = ("--data-parallel", "replicate") if self.replicas else ()
        return ("--fault", self.asked, "--timeout", str(HUNG_SECONDS), *checkpoints, *replicas)


def put(text: str) -> Put:
    """The fault that `NAME[:rank=R,step=S,size=X]` asks for. RanksightError when there is none of that name."""
    name, colon, _ = text.partition(":")
    name = name.replace("_", "-")
    if name not in FAULTS:
        close = difflib.get_close_matches(name, FAULTS, 1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise RanksightError(f"--fault {text!r}: there is no such fault; {meant}Known are {', '.join(FAULTS)}")
    asked = text if colon else ":".join(filter(None, (name, FAULTS[name])))
    return Put(asked, name in _CHECKPOINTS, name in _REPLICAS)
