"""What a rank runs with and no launcher's command line tells: facts for run.json, said at the end of its first step."""

from __future__ import annotations

import torch

from ranksight.hooks import wire
from ranksight.hooks.recorder import Recorder


class Settings:
    """Says it once: by the first step's end a script has made its settings."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._said = False

    def step_ended(self, _step: int, now: int) -> None:
        """Write the facts at the first call."""
        if not self._said:
            self._said = True
            self._recorder.event(wire.EventKind.FACT, now, now, name=f"intra_op_threads={torch.get_num_threads()}")
