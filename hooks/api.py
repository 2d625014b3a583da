"""The public functions: guarded, and no-ops while nothing is attached. `ranksight.hooks` exports them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ranksight.hooks import attachment, ring
from ranksight.hooks.attachment import Attachment
from ranksight.hooks.wire import TAINTED_FILE, EventKind, Phase

_WORK = frozenset({Phase.DATA, Phase.FORWARD, Phase.BACKWARD})


def attach(ring_dir: Path | None = None, *, tap: str = "native", first_step: int | None = None) -> bool:
    """Attach this process, once; True when it is attached now. Never raises.

    `ring_dir` is where the agent looks (default: RANKSIGHT_RING_DIR, else a folder of this user on tmpfs), `tap` one of
    "native", "python", "none". With `first_step` the trainer says that it calls `record_step` at every step's end and
    which number comes first; that holds for an attachment made earlier by `ranksight run`, too.
    """
    return attachment.attach(ring_dir, tap=tap, first_step=first_step)


def detach() -> None:
    """Take all hooks out of torch again. The ring file stays for the agent."""
    attachment.detach()


class _PhaseSpan:
    """`with phase(...)`; on other threads than the one that trains it does nothing."""

    __slots__ = ("_attached", "_begin", "_depth", "_phase")

    def __init__(self, attached: Attachment | None, phase: Phase) -> None:
        self._attached, self._phase = attached, phase
        self._depth: int | None = None
        self._begin = 0

    def __enter__(self) -> None:
        _guarded(self._attached, self._enter)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._depth is not None:
            _guarded(self._attached, self._exit)

    def _enter(self, attached: Attachment) -> None:
        if attached.recorder.on_training_thread():
            self._begin = attached.recorder.clock_ns()
            if self._phase in _WORK:
                attached.steps.work(self._begin)
            self._depth = attached.phases.push(self._phase, self._begin)

    def _exit(self, attached: Attachment) -> None:
        now = attached.recorder.clock_ns()
        assert self._depth is not None
        attached.phases.pop(self._depth, now)
        if self._phase is Phase.DATA:
            attached.recorder.event(EventKind.DATA, self._begin, now)


_NO_PHASE = _PhaseSpan(None, Phase.OTHER)


def phase(which: Phase | str) -> _PhaseSpan:
    """Say what the rank does inside the block: a `wire.Phase`, or its name in lower case such as "data"."""
    attached = attachment.current
    if attached is None:
        return _NO_PHASE
    if isinstance(which, str):
        known = Phase.__members__.get(which.upper())
        if known is None:
            attached.recorder.note(f"phase({which!r}): no such phase; it counts as other")
        which = known or Phase.OTHER
    return _PhaseSpan(attached, which)


def record_step(
    step: int | None = None, *, loss: Any = None, grad_norm: Any = None, tokens: float | None = None
) -> None:
    """Say that a step has ended: the one in progress, or number `step`. From the first call on, only these calls do.

    `loss` and `grad_norm` are numbers or tensors of one element (a device is not waited for), `tokens` those that the
    whole job trained on in this step.
    """

    def body(attached: Attachment) -> None:
        ended = attached.steps.record(step, tokens, attached.recorder.clock_ns())
        for kind, value in ((EventKind.LOSS, loss), (EventKind.GRAD_NORM, grad_norm)):
            if value is not None:
                attached.numerics.say(kind, ended, value)

    _guarded(attachment.current, body)


def record_experts(layer: int, tokens: Any, *, dropped: Any = None) -> None:
    """Say how many tokens each expert of a model layer got in this step, over all ranks that share the experts.

    `tokens` is a sequence of numbers or a tensor; `dropped` is how many routed tokens no expert took, where a capacity
    limits them. Padding is no token, and a token whose activation is computed again is no second one. Of ranks that say
    the same layer only the lowest is listened to. A device is not waited for.
    """
    _guarded(attachment.current, lambda attached: attached.numerics.experts(layer, tokens, dropped))


def record_batch(*, samples: int, tokens: int, cursor: int | None = None, fingerprint: int | None = None) -> None:
    """Say what this rank trains on in this step: its samples, tokens, data cursor, and a number made from the data."""

    def body(attached: Attachment) -> None:
        values: Sequence[float] = (samples, tokens)
        if cursor is not None or fingerprint is not None:
            values = (*values, math.nan if cursor is None else cursor)
        if fingerprint is not None:
            values = (*values, fingerprint)
        now = attached.recorder.clock_ns()
        attached.recorder.event(EventKind.BATCH, now, now, values=tuple(float(value) for value in values))

    _guarded(attachment.current, body)


def record_fact(key: str, value: str) -> None:
    """Say something about the run that run.json should keep, such as a digest of the data. The last value counts."""

    def body(attached: Attachment) -> None:
        now = attached.recorder.clock_ns()
        attached.recorder.event(EventKind.FACT, now, now, name=f"{key}={value}")

    _guarded(attachment.current, body)


def stop_requested() -> int | None:
    """The step after which all ranks are asked to leave; None while training may go on.

    From the first call on it is the trainer that leaves: when this names the step in progress or one before it, end
    that step, save, and end the process with exit code 0. Ask in every step, at the same place on every rank.
    """
    answer: list[int | None] = [None]

    def body(attached: Attachment) -> None:
        attached.stop.asked = True
        answer[0] = attached.stop.requested(attached.recorder.step)

    _guarded(attachment.current, body)
    return answer[0]


def checkpoint_wanted() -> bool:
    """Whether a checkpoint may be written now: False on the way out of a stop because what is in memory may be wrong."""
    answer = [True]

    def body(attached: Attachment) -> None:
        answer[0] = attached.stop.saves(attached.recorder.step)

    _guarded(attachment.current, body)
    return answer[0]


def on_stop(callback: Callable[[int], None]) -> None:
    """Have `callback(step)` save a checkpoint when all ranks leave after `step`, just before the hooks end the process.

    It runs on the thread that trains, on all ranks after the same step, so it may use collectives. It is not called for
    stops without a checkpoint, nor in a trainer that asks `stop_requested`.
    """
    _guarded(attachment.current, lambda attached: attached.stop.callbacks.append(callback))


def update_allowed(*values: Any) -> bool:
    """Whether the optimizer may step on what gave these numbers: False when one of them is inf or nan.

    Give numbers that all ranks share, such as the norm that clip_grad_norm_ returned or a loss after its all-reduce:
    then all ranks skip the same step, without a collective of its own. Tensors on a device are waited for. Works
    without an attachment, too.
    """
    return all(math.isfinite(float(value)) for value in values)


def clean_steps() -> int | None:
    """So many steps were done before the agent saw the first sign of wrong numbers; None while it has seen none.

    A checkpoint of more steps is tainted. Retention must keep the newest one that is not. Reads a small file: ask where
    checkpoints are removed or loaded, not in every step.
    """
    answer: list[int | None] = [None]

    def body(_: Attachment) -> None:
        path = ring.default_directory() / TAINTED_FILE
        if path.exists():
            answer[0] = int(json.loads(path.read_bytes())["clean_steps"])

    _guarded(attachment.current, body)
    return answer[0]


def name_axis(group: Any, axis: str) -> None:
    """Give a process group (None: the default one) the name of the axis that it serves, such as "dp"."""
    _guarded(attachment.current, lambda attached: attached.groups.name_axis(group, axis))


def _guarded(attached: Attachment | None, body: Callable[[Attachment], None]) -> None:
    """Run `body` if there is an attachment; count its time and what it raises."""
    if attached is None or not attached.recorder.active:
        return
    recorder = attached.recorder
    entered = recorder.clock_ns()
    try:
        body(attached)
    except Exception:
        recorder.failed("public API")
    recorder.cost_ns += recorder.clock_ns() - entered

