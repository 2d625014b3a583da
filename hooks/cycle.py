"""Which optimizers make up one training step: pure bookkeeping over keys, no torch.

    expected = the optimizers that exist; those that do not take part in every step are dropped on the way
    stepped(key): key for the first time in this step  -> the step is complete when all expected ones have stepped
                  key again                            -> the step had been complete already: nobody else was to come

One optimizer: complete at each of its steps. A GAN's two: complete at the second. An optimizer that steps rarely or
never is dropped at the first repeat of another one, so only that one boundary is noticed late.
"""

from __future__ import annotations

from typing import NamedTuple


class Boundary(NamedTuple):
    """What the end of an optimizer's step says about the training step."""

    missed: bool  # the training step had ended before this optimizer's step began
    complete: bool  # the training step ends here


class OptimizerCycle:
    """The optimizers of a step, by any hashable key."""

    def __init__(self) -> None:
        self._expected: set[int] = set()
        self._stepped: set[int] = set()
        self._irregular: set[int] = set()  # exist, but do not take part in every step

    def __len__(self) -> int:
        return len(self._expected)

    def add(self, key: int) -> None:
        """An optimizer exists from now on."""
        self._expected.add(key)

    def drop(self, key: int) -> None:
        """An optimizer is gone."""
        for known in (self._expected, self._stepped, self._irregular):
            known.discard(key)

    def inner(self, key: int) -> None:
        """An optimizer steps as part of another one."""
        self.drop(key)
        self._irregular.add(key)

    def stepped(self, key: int) -> Boundary:
        """An optimizer has made its step."""
        missed = key in self._stepped
        if missed:
            self._irregular |= self._expected - self._stepped
            self._expected &= self._stepped
            self._stepped = {key}
        else:
            if key not in self._irregular:
                self._expected.add(key)
            self._stepped.add(key)
        complete = self._expected <= self._stepped
        if complete:
            self._stepped = set()
        return Boundary(missed, complete)
