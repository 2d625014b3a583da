"""Where one training step ends and the next begins, from what the training thread is seen doing.

    optimizers          a step ends when the last optimizer of the cycle has made its step (see `cycle`); an optimizer
                        that steps inside another one, or inside backward(), does not end a step by itself
    a skipped step      one optimizer, backward() done, then zero_grad() instead of step(): the step ends there
    no optimizer        a step ends when data, forward or backward begins after a backward() (outside a schedule)
    record_step(...)    from the first call on, only these calls end steps

`step` counts from 0: it is 0 from the first optimizer, forward or backward on, and grows the moment a step ends. So in
a plain loop it equals the loop index from the line after `optimizer.step()` of the iteration before up to the next
`optimizer.step()`: gradients reduced, clipped or zeroed by hand belong to the step whose backward() came before, while
a metric reduced after `optimizer.step()` belongs to the next one, as a record made then can't know better.

Limits: the first boundary of a cycle with an optimizer that rarely steps is noticed one step late. A critic that steps
five times for each step of its generator makes five steps. `record_step` says otherwise where that is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ranksight.hooks import wire
from ranksight.hooks.cycle import OptimizerCycle
from ranksight.hooks.phases import Phases
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.wire import Phase

# Members by name of their own: in Python 3.11 each `Phase.DATA` is a call, and the hooks run between kernels, with cold caches.
_OTHER = Phase.OTHER
_STARTUP = Phase.STARTUP
_KIND_STEP = wire.EventKind.STEP


class Steps:
    """The state machine. `flush(step)` is called when an optimizer or a step ends, `at_end` after each step."""

    def __init__(
        self,
        recorder: Recorder,
        phases: Phases,
        flush: Callable[[int], None],
        cpu_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        self.at_end: list[Callable[[int, int], None]] = []  # (step that ended, when)
        self.before_end: list[Callable[[], None]] = []  # what belongs to the step that is about to end
        self.finished = 0
        self.explicit = False
        self._recorder, self._phases, self._flush, self._cpu_seconds = recorder, phases, flush, cpu_seconds
        self._cycle = OptimizerCycle()
        self._optimizers: list[int] = []  # those whose step() is running, the outermost first
        self._started = self._due = False
        self.backward_depth = 0
        self._schedule_depth = self._backwards = 0
        self._begin = self._settled = 0
        self._cpu_begin = 0.0

    @property
    def in_optimizer(self) -> bool:
        """Whether an optimizer's step() is running."""
        return bool(self._optimizers)

    def nested(self, key: int) -> bool:
        """Whether this optimizer's step() runs inside another one."""
        return bool(self._optimizers) and self._optimizers[0] != key

    # what the hooks see

    def optimizer_made(self, key: int, now: int) -> None:
        """An optimizer was constructed: training is near, records made from now on belong to step 0."""
        self._cycle.add(key)
        if self._recorder.step < 0:
            self._enter(0, now)

    def optimizer_gone(self, key: int) -> None:
        """An optimizer was collected."""
        self._cycle.drop(key)

    def work(self, now: int) -> None:
        """Data, forward or backward of training begins."""
        if not self._started:
            self._start(now)
        elif self._backwards and not len(self._cycle) and not self._busy():
            self._end(now)

    def schedule(self, now: int, *, begins: bool) -> None:
        """A pipeline schedule begins or ends: the passes within are one forward and one backward of the step."""
        if begins:
            self.work(now)
        self._schedule_depth += 1 if begins else -1

    def backward_begins(self, now: int) -> bool:
        """True when it is the outermost one."""
        outermost = self.backward_depth == 0
        if outermost:
            self.work(now)
        self.backward_depth += 1
        return outermost

    def backward_ends(self, now: int, *, raised: bool = False) -> bool:
        """True when it was the outermost one. One that raised has made no gradients."""
        self.backward_depth -= 1
        if self.backward_depth:
            return False
        self._backwards += not raised
        if self._due:
            self._due = False
            self._end(now)
        return True

    def optimizer_begins(self, key: int, now: int) -> bool:
        """True when it is the outermost one. A key that is in progress already had raised: it starts afresh."""
        if key in self._optimizers:
            del self._optimizers[self._optimizers.index(key) :]
        self._optimizers.append(key)
        if len(self._optimizers) > 1:
            return False
        if not self._started:
            self._start(now)
        return True

    def optimizer_ends(self, key: int, now: int) -> bool:
        """True when it was the outermost one."""
        if key not in self._optimizers:
            return False
        del self._optimizers[self._optimizers.index(key) :]
        if self._optimizers:
            self._cycle.inner(key)
            return False
        boundary = self._cycle.stepped(key)
        if boundary.missed and not self.explicit:
            self._end(self._settled)
        self._flush(self._recorder.step)
        self._settled = now
        if boundary.complete and not self.explicit:
            self._due = self.backward_depth > 0
            if not self._due:
                self._end(now)
        return True

    def gradients_zeroed(self, now: int) -> None:
        """optimizer.zero_grad() was called."""
        if self._backwards and len(self._cycle) == 1 and not self._busy() and not self.explicit:
            self._end(now)

    # what the trainer says

    def count_from(self, step: int, now: int) -> None:
        """The trainer ends steps itself, and `step` is the one in progress."""
        self.explicit = True
        self._enter(step, now)

    def record(self, step: int | None, tokens: float | None, now: int) -> int:
        """The trainer says that a step has ended; returns its number. `step` None: the one in progress."""
        first, self.explicit = not self.explicit, True
        if first and self.finished:
            # The optimizer's own step() has just ended this step; from here on only the trainer does.
            if step is not None and step + 1 != self._recorder.step:
                self._enter(step + 1, now)
            return self._recorder.step - 1
        if not self._started:
            self._start(now)
        if step is not None and step != self._recorder.step:
            self._recorder.step = step
        ended = self._recorder.step
        self._end(now, tokens)
        return ended

    def _busy(self) -> bool:
        return bool(self._optimizers or self.backward_depth or self._schedule_depth or self._due or self.explicit)

    def _start(self, now: int) -> None:
        """Training begins: what came before was start-up."""
        self._started = True
        self._enter(max(self._recorder.step, 0), now)
        if self._phases.flow is _STARTUP:
            self._phases.set_flow(_OTHER, now)

    def _enter(self, step: int, now: int) -> None:
        self._recorder.step, self._begin, self._backwards = step, now, 0
        self._cpu_begin = self._cpu_seconds()
        self._recorder.ring.enter_step(step, now)

    def _end(self, now: int, tokens: float | None = None) -> None:
        step = self._recorder.step
        self._flush(step)
        for write in self.before_end:
            write()
        cpu = self._cpu_seconds() - self._cpu_begin
        values = (cpu,) if tokens is None else (cpu, float(tokens))
        self._recorder.event(_KIND_STEP, self._begin, now, step=step, values=values)
        self.finished += 1
        self._enter(step + 1, now)
        for callback in self.at_end:
            try:
                callback(step, now)
            except Exception:
                self._recorder.failed("end of step")
        self._recorder.say_cost()
