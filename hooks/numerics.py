"""Loss and gradient norm of each step, without a line of user code and without waiting for a device.

    loss.backward()        -> the scalar it is called on; scaler.scale(loss) -> the loss before scaling
    clip_grad_norm_(...)   -> the total norm
    an optimizer's step()  -> LOSS and GRAD_NORM events of the step; code: how many optimizers stepped before in it

Several backward() calls before one step() are accumulation: losses that end in a division or multiplication have been
scaled by their user for that and are summed, others are averaged. Several norms are those of parts: the root of the sum
of squares. A CPU scalar is read at once. A device scalar is copied into pinned memory on its stream and read at a
later step's end, when the copy is done.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ranksight.hooks import wire
from ranksight.hooks.recorder import Recorder

LOSS, GRAD_NORM = wire.EventKind.LOSS, wire.EventKind.GRAD_NORM
_SUSPICIOUS = frozenset({LOSS, GRAD_NORM})
_SCALED = ("DivBackward0", "MulBackward0")
_PENDING_MOST = 4096  # events that wait for a device; more means that the device is far behind


class Reading:
    """The elements of a tensor as float64: here, or on their way from a device."""

    __slots__ = ("_event", "_host", "values")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.values: list[float] = []
        self._host: torch.Tensor | None = None
        self._event: Any = None
        tensor = tensor.detach()
        if tensor.device.type == "cpu":
            self.values = [float(tensor.item())] if tensor.numel() == 1 else tensor.double().flatten().tolist()
            return
        self._host = torch.empty(tensor.numel(), dtype=torch.float64, pin_memory=True)
        with torch.cuda.device(tensor.device):
            self._host.copy_(tensor.flatten().to(torch.float64), non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def ready(self) -> bool:
        """Whether `values` may be read without waiting."""
        if self._host is not None and self._event.query():
            self.values, self._host = self._host.tolist(), None
        return self._host is None


class _Said(NamedTuple):
    """An event that waits for its numbers."""

    kind: wire.EventKind
    at_ns: int
    step: int
    readings: Sequence[Reading]
    code: int = 0
    layer: int = -1
    summed: bool = False

    def result(self) -> tuple[float, ...]:
        if len(self.readings) == 1:
            return tuple(self.readings[0].values)
        values = [reading.values[0] for reading in self.readings]
        if self.kind is wire.EventKind.GRAD_NORM:
            return (math.sqrt(sum(value * value for value in values)),)
        return (sum(values) if self.summed else sum(values) / len(values),)


class Numerics:
    """Collects the scalars of a step and writes them as events."""

    def __init__(self, recorder: Recorder) -> None:
        self.suspect: list[Callable[[int], None]] = []  # called with the step of a number that is not finite
        self._recorder = recorder
        self._losses: list[Reading] = []
        self._norms: list[Reading] = []
        self._seen_loss = False  # by the last backward()
        self._all_scaled = True
        self._pending: list[_Said] = []
        self._scaled_from: tuple[weakref.ref[torch.Tensor], torch.Tensor] | None = None
        self._told: set[wire.EventKind] = set()
        self._segment = (-1, 0)  # step, flushes in it
        self._unreadable: set[str] = set()

    def scaled(self, before: object, after: object) -> None:
        """A GradScaler made `after` from the loss `before`."""
        if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor) and before is not after:
            self._scaled_from = (weakref.ref(after), before.detach())

    def backward_on(self, root: object) -> None:
        """backward() is called on `root`: a loss, when it is one real number."""
        self._seen_loss = False
        if LOSS in self._told:
            return
        if isinstance(root, (list, tuple)):
            root = root[0] if len(root) == 1 else None
        if not isinstance(root, torch.Tensor) or root.numel() != 1 or not root.is_floating_point():
            return
        node = root.grad_fn
        scaled_from, self._scaled_from = self._scaled_from, None
        if scaled_from is not None and scaled_from[0]() is root:
            root = scaled_from[1]
            node = None
        reading = self._read(root, "loss")
        if reading is not None:
            self._seen_loss = True
            self._losses.append(reading)
            self._all_scaled = self._all_scaled and node is not None and node.name() in _SCALED

    def backward_raised(self) -> None:
        """That backward() made no gradients; it may be tried again."""
        if self._seen_loss:
            self._losses.pop()

    def clipped_to(self, norm: object) -> None:
        """Gradients were clipped; `norm` is their total norm before."""
        if GRAD_NORM not in self._told and isinstance(norm, torch.Tensor) and norm.numel() == 1:
            reading = self._read(norm, "gradient norm")
            if reading is not None:
                self._norms.append(reading)

    def flush(self, step: int) -> None:
        """Write what came together since the last flush, and what has arrived from devices."""
        if self._losses or self._norms:
            now = self._recorder.clock_ns()
            code = self._segment[1] + 1 if self._segment[0] == step else 0
            self._segment = (step, code)
            if self._losses:
                self._pending.append(_Said(LOSS, now, step, self._losses, code, summed=self._all_scaled))
            if self._norms:
                self._pending.append(_Said(GRAD_NORM, now, step, self._norms, code))
            self._losses, self._norms, self._all_scaled = [], [], True
        if self._pending:
            self._write()

    def _write(self) -> None:
        """Write what has arrived, in order."""
        while self._pending and all(reading.ready() for reading in self._pending[0].readings):
            said = self._pending.pop(0)
            self._put(said.kind, said.at_ns, said.step, said.code, said.layer, said.result())
        del self._pending[:-_PENDING_MOST]

    def _put(
        self, kind: wire.EventKind, at_ns: int, step: int, code: int, layer: int, values: tuple[float, ...]
    ) -> None:
        self._recorder.event(kind, at_ns, at_ns, step=step, code=code, layer=layer, values=values)
        if kind in _SUSPICIOUS and not all(map(math.isfinite, values)):
            for suspect in self.suspect:
                suspect(step)

    def say(self, kind: wire.EventKind, step: int, value: Any) -> None:
        """Write what the trainer gives; from now on it stands instead of what would be seen."""
        self._told.add(kind)
        self._later(kind, step, value, -1)

    def experts(self, layer: int, tokens: Any, dropped: Any = None) -> None:
        """Write the tokens per expert of a layer, and those that it dropped."""
        self._later(wire.EventKind.EXPERTS, self._recorder.step, tokens, layer)
        if dropped is not None:
            self._later(wire.EventKind.DROPPED, self._recorder.step, dropped, layer)

    def checksum(self, step: int, optimizer: int, part: int, halves: torch.Tensor) -> None:
        """Write the checksum of a slice of an optimizer's parameters; code: the optimizer, layer: the slice."""
        reading = self._read(halves, "checksum")
        if reading is not None:
            now = self._recorder.clock_ns()
            self._pending.append(_Said(wire.EventKind.CHECKSUM, now, step, [reading], code=optimizer, layer=part))

    def _later(self, kind: wire.EventKind, step: int, value: Any, layer: int) -> None:
        now = self._recorder.clock_ns()
        if isinstance(value, torch.Tensor):
            reading = self._read(value, kind.name.lower())
            if reading is not None:
                self._pending.append(_Said(kind, now, step, [reading], layer=layer))
                self._write()
            return
        values = (value,) if isinstance(value, (int, float)) else value
        self._put(kind, now, step, 0, layer, tuple(float(each) for each in values))

    def _read(self, tensor: torch.Tensor, what: str) -> Reading | None:
        placements = getattr(tensor, "placements", None)  # a DTensor, without importing it
        if placements is not None and all(placement.is_replicate() for placement in placements):
            tensor = tensor._local_tensor  # type: ignore[attr-defined]
        device = tensor.device.type
        if type(tensor) not in {torch.Tensor, torch.nn.Parameter}:
            self._skip(what, f"a {type(tensor).__name__} that is not replicated")
            return None
        if device == "cpu":
            return Reading(tensor)
        if device != "cuda":
            self._skip(what, f"on device {device}")
            return None
        return None if torch.cuda.is_current_stream_capturing() else Reading(tensor)

    def _skip(self, what: str, why: str) -> None:
        if what not in self._unreadable:
            self._unreadable.add(what)
            self._recorder.note(f"the {what} is {why}; reading it would add work to training, so it is not recorded")
