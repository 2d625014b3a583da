"""Pipeline stages and their actions, in unmodified code that uses torch.distributed.pipelining.

    stage is made                 ring["stage"]: the stage that this rank holds (the last one made, when several)
    schedule.step()               one forward and one backward of the step, whatever passes are within
    forward_one_chunk             F     PIPELINE span with stage and microbatch
    backward_one_chunk            B, or I when the weight gradients come later
    backward_weight_one_chunk     W

All schedules of torch go through these methods. While one of the stage runs, the ring says its stage and microbatch, so
the collectives within it carry them. Nothing is imported: the patches wait for the user's own import.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ranksight.hooks import wire
from ranksight.hooks.patch import Before, Patches
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.steps import Steps
from ranksight.hooks.wire import Action

# Members by name of their own: in Python 3.11 each `Phase.DATA` is a call, and the hooks run between kernels, with cold caches.
_BACKWARD = Action.BACKWARD
_FORWARD = Action.FORWARD
_INPUT_GRAD = Action.INPUT_GRAD
_SCHEDULE = Action.SCHEDULE
_WEIGHT_GRAD = Action.WEIGHT_GRAD
_KIND_PIPELINE = wire.EventKind.PIPELINE


class _Running(NamedTuple):
    """An action in progress, and the microbatch that the ring named before it."""

    begin_ns: int
    action: Action
    stage: int
    microbatch: int
    outer_microbatch: int


class Pipeline:
    """Watches the stages and schedules of this rank."""

    def __init__(self, recorder: Recorder, steps: Steps) -> None:
        self._recorder, self._steps = recorder, steps

    def install(self, patches: Patches) -> None:
        """Patch stages and schedules when the user's code has imported them."""
        patches.after_import("torch.distributed.pipelining.stage", lambda module: self._patch_stage(patches, module))
        patches.after_import(
            "torch.distributed.pipelining.schedules", lambda module: self._patch_schedules(patches, module)
        )

    def _patch_stage(self, patches: Patches, module: Any) -> None:
        stage = module._PipelineStageBase
        patches.wrap(stage, "__init__", after=self._made)
        for name, before in (
            ("forward_one_chunk", self._begins("fwd_chunk_id", lambda args, kwargs: _FORWARD)),
            ("backward_one_chunk", self._begins("bwd_chunk_id", _backward_action)),
            ("backward_weight_one_chunk", self._begins("bwd_chunk_id", lambda args, kwargs: _WEIGHT_GRAD)),
        ):
            patches.wrap(stage, name, before=before, after=self._ended)

    def _patch_schedules(self, patches: Patches, module: Any) -> None:
        for schedule in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
            patches.wrap(schedule, "step", before=self._schedule_begins, after=self._schedule_ended)

    def _made(self, _token: Any, args: tuple[Any, ...], _result: Any) -> None:
        self._recorder.ring["stage"] = int(args[0].stage_index)

    def _begins(self, parameter: str, action: Any) -> Before:
        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Running:
            ring = self._recorder.ring
            stage, microbatch = int(args[0].stage_index), int(kwargs[parameter] if parameter in kwargs else args[1])
            outer = ring["microbatch"]
            ring["stage"], ring["microbatch"] = stage, microbatch
            return _Running(self._recorder.clock_ns(), action(args, kwargs), stage, microbatch, outer)

        return before

    def _ended(self, running: _Running, _args: tuple[Any, ...], _result: Any) -> None:
        self._recorder.ring["microbatch"] = running.outer_microbatch
        self._recorder.ring.events.write(
            _KIND_PIPELINE, running.begin_ns, self._recorder.clock_ns(), step=self._recorder.step,
            code=running.action, stage=running.stage, microbatch=running.microbatch,
        )  # fmt: skip

    def _schedule_begins(self, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> int:
        begin = self._recorder.clock_ns()
        self._steps.schedule(begin, begins=True)
        return begin

    def _schedule_ended(self, begin: int, _args: tuple[Any, ...], _result: Any) -> None:
        now = self._recorder.clock_ns()
        self._steps.schedule(now, begins=False)
        self._recorder.event(_KIND_PIPELINE, begin, now, code=_SCHEDULE)


def _backward_action(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Action:
    """Action of backward_one_chunk(self, bwd_chunk_id, loss=None, full_backward=True, ...)."""
    full = kwargs.get("full_backward", args[3] if len(args) > 3 else True)
    return _BACKWARD if full else _INPUT_GRAD
