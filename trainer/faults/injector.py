"""Puts faults into a training run: which action belongs to which fault, and when it acts.

    Trainer -> Injector.at(place, step) -> ACTIONS[fault] -> action(scene)

Without faults nothing is registered and `at` looks at an empty table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ranksight.trainer.faults import calls, delays, network, numbers, processes
from ranksight.trainer.faults.injection import Injection
from ranksight.trainer.faults.kinds import Fault
from ranksight.trainer.faults.scene import Place, Scene

if TYPE_CHECKING:
    from ranksight.trainer.train import Trainer

Action = Callable[[Scene], None]

ACTIONS: dict[Fault, dict[Place, Action]] = {
    Fault.KILL: {Place.REDUCED: processes.kill},
    Fault.EXCEPTION: {Place.REDUCED: processes.fail},
    Fault.EXIT: {Place.REDUCED: processes.leave},
    Fault.OOM_SWALLOWED: {Place.REDUCED: processes.swallow},
    Fault.FREEZE: {Place.REDUCED: processes.kill},
    Fault.GIL: {Place.REDUCED: processes.hold_gil},
    Fault.HANG: {Place.REDUCED: processes.sleep},
    Fault.SPIN: {Place.REDUCED: processes.spin},
    Fault.LOADER_HANG: {Place.DATA: processes.sleep},
    Fault.DATA_EXHAUSTED: {Place.DATA: processes.exhaust},
    Fault.DEADLOCK_GROUPS: {Place.INSTALL: processes.make_pair, Place.REDUCED: processes.deadlock_groups},
    Fault.DEADLOCK_RECV: {Place.REDUCED: processes.deadlock_recv},
    Fault.NETWORK_CUT: {Place.REDUCED: network.cut},
    Fault.SHAPE_MISMATCH: {Place.INSTALL: calls.make_group, Place.REDUCED: calls.all_reduce},
    Fault.DTYPE_MISMATCH: {Place.INSTALL: calls.make_group, Place.REDUCED: calls.all_reduce},
    Fault.REDUCE_OP_MISMATCH: {Place.INSTALL: calls.make_group, Place.REDUCED: calls.all_reduce},
    Fault.ROOT_MISMATCH: {Place.INSTALL: calls.make_group, Place.REDUCED: calls.broadcast},
    Fault.SPLIT_MISMATCH: {Place.INSTALL: calls.make_group, Place.REDUCED: calls.all_to_all},
    Fault.SKIPPED_CALL: {Place.INSTALL: calls.make_group, Place.REDUCED: calls.metrics},
    Fault.EXTRA_CALL: {Place.INSTALL: calls.make_group, Place.REDUCED: calls.metrics},
    Fault.BITFLIP: {Place.END: numbers.flip_bit},
    Fault.STRAGGLER: {Place.FORWARD: delays.compute},
    Fault.STRAGGLER_BACKWARD: {Place.BACKWARD: delays.compute},
    Fault.STRAGGLER_IDLE: {Place.FORWARD: processes.sleep},
    Fault.SLOW_INPUT: {Place.DATA: processes.sleep},
    Fault.INPUT_STALL: {Place.DATA: processes.sleep},
    Fault.PAUSE: {Place.REDUCED: processes.sleep},
    Fault.GC_PAUSES: {Place.REDUCED: delays.keep_garbage},
    Fault.GIL_THREAD: {Place.BEGIN: delays.fight_for_gil},
    Fault.OVERSUBSCRIBE: {Place.FORWARD: delays.oversubscribe},
    Fault.SLOW_LINK: {Place.BEGIN: network.pace},
    Fault.SLOW_NETWORK: {Place.BEGIN: network.pace},
    Fault.REGRESSION: {Place.FORWARD: delays.compute},
    Fault.STAGE_IMBALANCE: {Place.FORWARD: delays.compute},
    Fault.WORKLOAD: {Place.FORWARD: delays.compute},
    Fault.HOT_EXPERT: {Place.INSTALL: numbers.charge_rows, Place.BEGIN: numbers.prefer_experts},
    Fault.ROUTER_COLLAPSE: {Place.BEGIN: numbers.prefer_experts},
    Fault.DEAD_EXPERT: {Place.BEGIN: numbers.avoid_expert},
    Fault.NAN_ACTIVATION: {},  # see Injector._output
    Fault.NAN_GRADIENT: {Place.REDUCED: numbers.nan_gradient},
    Fault.NAN_WEIGHT: {Place.END: numbers.nan_weight},
    Fault.LOSS_SPIKE: {Place.BEGIN: numbers.scale_output, Place.END: numbers.unscale_output},
    Fault.GRAD_SPIKE: {Place.REDUCED: numbers.scale_gradients},
    Fault.DIVERGENCE: {Place.BEGIN: numbers.raise_rate},
    Fault.CHECKPOINT_DAMAGED: {Place.SAVED: numbers.damage},
    Fault.CHECKPOINT_STALL: {Place.SAVING: delays.slow_save},
    Fault.RESUME_MISMATCH: {Place.RESUMED: numbers.forget},
    Fault.MEMORY_LEAK: {Place.END: delays.leak},
    Fault.UNOBSERVED: {Place.END: processes.unobserved},
}
# All ranks take part in these, whichever is to blame.
TOGETHER = frozenset(
    fault for fault, places in ACTIONS.items() if places.get(Place.INSTALL) in {calls.make_group, processes.make_pair}
) | {Fault.DEADLOCK_RECV}
LATE = frozenset({Place.SAVING, Place.SAVED})  # at the first time from the step on, as not every step saves


class Injector:
    """The faults of one rank. Collective over the world when a fault needs a group of its own."""

    def __init__(self, injections: Iterable[Injection], trainer: Trainer) -> None:
        self._at: dict[Place, list[tuple[Scene, Action]]] = defaultdict(list)
        self._spoil: list[Scene] = []
        self._last: dict[tuple[int, Place], int] = {}
        self._step = -1
        for injection in injections:
            scene = Scene(trainer, injection)
            if injection.fault is Fault.NAN_ACTIVATION and scene.culprit:
                self._spoil.append(scene)
            for place, action in ACTIONS[injection.fault].items():
                if place is Place.INSTALL:
                    action(scene)
                else:
                    self._at[place].append((scene, action))
        if self._at[Place.FORWARD] or self._at[Place.BACKWARD] or self._spoil:
            self._hook(trainer.parts[0])

    def at(self, place: Place, step: int) -> None:
        """Let the faults act whose time has come."""
        for scene, action in self._at.get(place, ()):
            injection, scene.step = scene.injection, step
            due = step >= injection.step if place in LATE else place is Place.RESUMED or injection.at_work(step)
            if due and (scene.struck or injection.fault in TOGETHER) and self._once(scene, place):
                action(scene)

    def begin(self, step: int) -> None:
        """A step begins."""
        self._step = step
        self.at(Place.BEGIN, step)

    def _once(self, scene: Scene, place: Place) -> bool:
        """A rank may come to a place several times in a step: microbatches; and to a checkpoint in several steps."""
        key, moment = (id(scene), place), 0 if place in LATE else scene.step
        known = self._last.get(key) == moment
        self._last[key] = moment
        return not known

    def _hook(self, part: nn.Module) -> None:
        part.register_forward_pre_hook(lambda _module, _arguments: self.at(Place.FORWARD, self._step))
        part.register_forward_hook(self._forward_ends)
        if self._spoil:
            next(iter(part.layers.values())).register_forward_hook(self._output)  # type: ignore[operator]

    def _forward_ends(self, _module: nn.Module, _arguments: object, output: Tensor) -> None:
        if self._at[Place.BACKWARD] and output.requires_grad:
            output.register_hook(self._backward)

    def _backward(self, _gradient: Tensor) -> None:
        self.at(Place.BACKWARD, self._step)

    def _output(self, _module: nn.Module, _arguments: object, output: Any) -> Any:
        """The output of the first block, spoilt in its step."""
        for scene in self._spoil:
            scene.step = self._step
            if scene.first and self._once(scene, Place.OUTPUT):
                return numbers.spoil(output)
        return None
