"""How much of the lost time goes to which operation types, replicas, stages and workers. Pure.

T is the mean step replayed with recorded work, T_ideal with ideal work, S = T / T_ideal. For a set X of operations:

    slowdown  T with only X as recorded, over T_ideal   what X alone does to a job that is otherwise ideal
    regained  (T - T without X's slowness) / (T - T_ideal)   which share of the loss goes away when X is ideal

M_W is `regained` of the slowest 3 % of the workers: near 1 when a few workers explain the loss. M_S is that of the last
stage: large when the model is unevenly cut. Both can leave 0 to 1, because ideal work is the mean, which the slow ones
raise for everybody else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ranksight.agent.whatif import graph as graphs
from ranksight.agent.whatif import replay as replays
from ranksight.agent.whatif.operations import TYPES, Floats, Operations, OpType, Steps, TraceError, equal_steps

SLOWEST_SHARE = 0.03

_TOGETHER = {  # both ends of a transfer are one type in the result
    OpType.FORWARD_SEND: "forward-pp-comm", OpType.FORWARD_RECV: "forward-pp-comm",
    OpType.BACKWARD_SEND: "backward-pp-comm", OpType.BACKWARD_RECV: "backward-pp-comm",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effect:
    """A set of operations. Seconds are of the mean step; shares are None when nothing is lost."""

    name: str  # type, or number of the replica, stage or ranks
    only_seconds: float  # only these as recorded
    without_seconds: float  # only these ideal
    slowdown: float
    added: float | None  # share of the loss that these alone bring about
    regained: float | None
    step_slowdowns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Worker:
    """One place in the grid. `heat` is the smaller slowdown of its replica and stage, which large jobs use instead."""

    rank: int
    dp: int
    stage: int
    heat: float
    effect: Effect


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The result for one trace. Seconds are means over steps unless the name says otherwise."""

    dp_size: int
    operations: int
    steps: tuple[int, ...]
    steps_left_out: tuple[int, ...]
    recorded_seconds: float
    replayed_seconds: float  # without delays between operations: T
    ideal_seconds: float
    step_recorded_seconds: tuple[float, ...]
    step_replayed_seconds: tuple[float, ...]
    step_ideal_seconds: tuple[float, ...]
    by_type: tuple[Effect, ...]  # slowest first
    by_dp: tuple[Effect, ...]
    by_stage: tuple[Effect, ...]
    by_worker: tuple[Worker, ...]
    slowest_workers: Effect
    last_stage: Effect

    @property
    def slowdown(self) -> float:
        """S: 1 when no operation is slower than its peers."""
        return self.replayed_seconds / self.ideal_seconds

    @property
    def launch_slowdown(self) -> float:
        """Recorded over replayed: the part that no recorded operation explains."""
        return self.recorded_seconds / self.replayed_seconds

    @property
    def wasted_share(self) -> float:
        return 1 - 1 / self.slowdown


def analyse(operations: Operations) -> WhatIf:
    """Replay a trace with and without each of its parts. Raises TraceError when it can't be."""
    steps = equal_steps(operations)
    return _Analysis(steps).result()


class _Analysis:
    """One trace, ready for any number of replays."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.graph = graphs.build(steps)
        self.work = replays.work(steps, self.graph)
        self.ideal = replays.ideal(steps, self.work)
        everything = np.ones((self.work.shape[0], self.work.shape[2]), bool)
        self.replayed, self.best = replays.replay(self.graph, self.work, self.ideal, [everything, ~everything])
        if self.best.mean() <= 0:
            raise TraceError("all operations together take 0 seconds; expected durations")

    def result(self) -> WhatIf:
        stages, dp_size = self.steps.ranks.shape
        by_type, by_dp, by_stage, by_rank = map(self.effects, self.sets())
        workers = [
            Worker(
                rank := int(self.steps.ranks[stage, dp]), dp, stage,
                min(by_dp[str(dp)].slowdown, by_stage[str(stage)].slowdown), by_rank[str(rank)],
            )
            for stage in range(stages) for dp in range(dp_size)
        ]  # fmt: skip
        workers.sort(key=lambda worker: (-worker.heat, worker.rank))
        recorded = replays.recorded(self.steps)
        return WhatIf(
            dp_size=dp_size,
            operations=self.steps.grid.size,
            steps=tuple(self.steps.steps.tolist()),
            steps_left_out=tuple(self.steps.left_out.tolist()),
            recorded_seconds=float(recorded.mean()),
            replayed_seconds=float(self.replayed.mean()),
            ideal_seconds=float(self.best.mean()),
            step_recorded_seconds=tuple(recorded.tolist()),
            step_replayed_seconds=tuple(self.replayed.tolist()),
            step_ideal_seconds=tuple(self.best.tolist()),
            by_type=_slowest_first(by_type),
            by_dp=_slowest_first(by_dp),
            by_stage=_slowest_first(by_stage),
            by_worker=tuple(workers),
            slowest_workers=self.together(workers[: math.ceil(len(workers) * SLOWEST_SHARE)]),
            last_stage=by_stage[str(stages - 1)],
        )

    def sets(self) -> tuple[dict[str, replays.Choice], ...]:
        """The operations of each type, replica, stage and worker."""
        ranks = self.steps.ranks
        key, dp = np.indices((self.work.shape[0], self.work.shape[2]))
        stage = replays.stages(self.steps)[key]
        type_ = np.array([_TOGETHER.get(TYPES[code], TYPES[code].value) for code in replays.types(self.steps)])[key]
        return (
            {str(name): type_ == name for name in np.unique(type_)},
            {str(at): dp == at for at in range(ranks.shape[1])},
            {str(at): stage == at for at in range(ranks.shape[0])},
            {str(rank): (stage == at[0]) & (dp == at[1]) for at, rank in np.ndenumerate(ranks)},
        )

    def together(self, workers: list[Worker]) -> Effect:
        name = ", ".join(str(worker.rank) for worker in workers)
        ranks = self.sets()[-1]
        theirs = np.logical_or.reduce([ranks[str(worker.rank)] for worker in workers])
        return self.effects({name: theirs})[name]

    def effects(self, sets: dict[str, replays.Choice]) -> dict[str, Effect]:
        choices = [*sets.values(), *(~choice for choice in sets.values())]
        seconds = replays.replay(self.graph, self.work, self.ideal, choices)
        pairs = zip(sets, seconds[: len(sets)], seconds[len(sets) :], strict=True)
        return {name: self._effect(name, only, without) for name, only, without in pairs}

    def _effect(self, name: str, only: Floats, without: Floats) -> Effect:
        replayed, best = float(self.replayed.mean()), float(self.best.mean())
        lost = replayed - best
        # A loss that is rounding in the replay has no shares.
        known = lost > 1e-9 * best
        return Effect(
            name=name,
            only_seconds=float(only.mean()),
            without_seconds=float(without.mean()),
            slowdown=float(only.mean()) / best,
            added=(float(only.mean()) - best) / lost if known else None,
            regained=(replayed - float(without.mean())) / lost if known else None,
            step_slowdowns=tuple((only / self.best).tolist()),
        )


def _slowest_first(effects: dict[str, Effect]) -> tuple[Effect, ...]:
    return tuple(sorted(effects.values(), key=lambda effect: -effect.slowdown))
