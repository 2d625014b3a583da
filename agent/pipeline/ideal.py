"""The ideal bubble of a pipeline schedule: its own action order, simulated with given times. Pure.

    {rank: ["0F0", "0F1", "0B0", ...]} -> read_order -> Order + seconds per (stage, kind) -> simulate -> Simulated

Each rank runs its actions in their order, without gaps of its own; transfers take no time. An action waits for

    F of stage s   F of the same microbatch on stage s - 1
    B or I         F on its own stage, and B or I on stage s + 1
    W              I on its own stage

so whatever a rank waits here, the schedule itself costs. With each kind's mean time over all stages (`balanced`) that is
the ideal bubble; with each stage's own mean it has the stage imbalance on top. For schedules whose bubble is known as a
formula, `closed_form` is the cross-check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of action that compute, by the letters that torch.distributed.pipelining gives them."""

    FORWARD = "F"
    BACKWARD = "B"  # whole
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


@dataclass(frozen=True, slots=True)
class Action:
    """One compute of a microbatch on a stage."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


Order = Mapping[int, Sequence[Action]]  # rank -> its actions
Seconds = Mapping[tuple[int, Kind], float]  # (stage, kind) -> mean seconds

_COMPUTE = re.compile(r"(\d+)([FBIW])(\d+)")
_OTHER = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")
_PAIR = re.compile(r"\((.*)\)OVERLAP_F_B")
_BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)


@dataclass(frozen=True, slots=True)
class Span:
    """When an action runs, in seconds from the first action of the step."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class RankTime:
    """Seconds of one rank. The three kinds of waiting are its bubble, and sum with `busy` to the whole."""

    rank: int
    busy: float
    warm_up: float  # before its first action
    inside: float  # between its first and last action
    cool_down: float  # after its last action

    @property
    def bubble(self) -> float:
        return self.warm_up + self.inside + self.cool_down


@dataclass(frozen=True, slots=True)
class Simulated:
    """A step of the pipeline: from the first action of any rank to the last."""

    seconds: float
    ranks: tuple[RankTime, ...]
    spans: tuple[Span, ...]  # in the order of their ranks

    @property
    def bubble_fraction(self) -> float:
        """Share of all ranks' time that is bubble; 0 when nothing takes time."""
        whole = self.seconds * len(self.ranks)
        return sum(rank.bubble for rank in self.ranks) / whole if whole else 0.0


def read_actions(texts: Iterable[str | None]) -> tuple[Action, ...]:
    """The computes among actions in torch's notation: `2F0`, `(1F3;6B0)OVERLAP_F_B`; empty ones are waits.

    An overlapped pair counts as one after the other, which is how torch runs it unless told otherwise. Transfers and
    parameter movements are left out: ideally they hide behind compute. Raises ValueError for anything else.
    """
    found: list[Action] = []
    for text in texts:
        if not text:
            continue
        if pair := _PAIR.fullmatch(text):
            found += read_actions(pair[1].split(";"))
        elif compute := _COMPUTE.fullmatch(text):
            found.append(Action(int(compute[1]), Kind(compute[2]), int(compute[3])))
        elif not _OTHER.fullmatch(text):
            raise ValueError(f"action {text!r}; expected stage, kind and microbatch as in 2F0")
    return tuple(found)


def read_order(texts: Mapping[int, Iterable[str | None]]) -> dict[int, tuple[Action, ...]]:
    """The computes of each rank; see `read_actions`."""
    return {rank: read_actions(actions) for rank, actions in sorted(texts.items())}


def balanced(seconds: Seconds) -> dict[tuple[int, Kind], float]:
    """The same work spread evenly: each kind takes its mean over stages everywhere."""
    of_kind: dict[Kind, list[float]] = {}
    for (_, kind), value in seconds.items():
        of_kind.setdefault(kind, []).append(value)
    return {(stage, kind): sum(of_kind[kind]) / len(of_kind[kind]) for stage, kind in seconds}


def simulate(order: Order, seconds: Seconds) -> Simulated:
    """Run an order. Raises ValueError for an action without a time, and for an order that never ends."""
    stages = {action.stage for actions in order.values() for action in actions}
    if not stages:
        raise ValueError("the order has no computes; expected actions such as 0F0 for at least one rank")
    last_stage = max(stages)
    ended: dict[tuple[int, str, int], float] = {}  # (stage, F, B or W, microbatch) -> end; I ends as a B
    spans: dict[int, list[Span]] = {rank: [] for rank in sorted(order)}
    progress = True
    while progress:
        progress = False
        for rank, done in spans.items():
            for action in order[rank][len(done) :]:
                needs = [ended.get(need) for need in _needs(action, last_stage)]
                if None in needs:
                    break
                start = max((end for end in needs if end is not None), default=0.0)
                start = max(start, done[-1].end if done else 0.0)
                end = start + _time(seconds, action)
                ended[action.stage, _counts_as(action), action.microbatch] = end
                done.append(Span(rank, action, start, end))
                progress = True
    stuck = {rank: order[rank][len(done)] for rank, done in spans.items() if len(done) < len(order[rank])}
    if stuck:
        waits = ", ".join(f"rank {rank} at {action}" for rank, action in stuck.items())
        raise ValueError(f"the order never ends: {waits} wait for what does not come")
    return _simulated(spans)


def _needs(action: Action, last_stage: int) -> list[tuple[int, str, int]]:
    stage, microbatch = action.stage, action.microbatch
    if action.kind == Kind.FORWARD:
        return [(stage - 1, "F", microbatch)] if stage else []
    if action.kind == Kind.BACKWARD_WEIGHT:
        return [(stage, "B", microbatch)]
    return [(stage, "F", microbatch), *([(stage + 1, "B", microbatch)] if stage < last_stage else [])]


def _counts_as(action: Action) -> str:
    return "B" if action.kind in _BACKWARDS else action.kind.value


def _time(seconds: Seconds, action: Action) -> float:
    try:
        return seconds[action.stage, action.kind]
    except KeyError:
        raise ValueError(f"no time for {action.kind} of stage {action.stage}, which {action} needs") from None


def _simulated(spans: Mapping[int, Sequence[Span]]) -> Simulated:
    last = max(done[-1].end for done in spans.values() if done)
    ranks = []
    for rank, done in spans.items():
        busy = sum(span.end - span.start for span in done)
        first, end = (done[0].start, done[-1].end) if done else (last, last)
        ranks.append(RankTime(rank, busy, warm_up=first, inside=end - first - busy, cool_down=last - end))
    return Simulated(last, tuple(ranks), tuple(span for done in spans.values() for span in done))


def closed_form(schedule: str, ranks: int, microbatches: int, chunks: int, f: float, i: float, w: float) -> float | None:
    """Bubble of every rank in seconds, or None where no formula holds.

    `schedule` is the name of its class in torch.distributed.pipelining; `f`, `i` and `w` are the seconds of one forward,
    input gradient and weight gradient of one chunk, the same on all stages, of which each rank has `chunks`. Per chunk,
    the formulas of GPipe, Narayanan (SC'21) and zero bubble (ZB-H1) look alike; ZBV and DualPipeV, as torch orders them,
    have none that holds for all times.
    """
    if schedule in {"ScheduleGPipe", "Schedule1F1B"}:
        return (ranks - 1) * (f + i + w) if chunks == 1 else None
    if schedule == "ScheduleLoopedBFS":
        return (ranks - 1) * (f + i + w) if microbatches >= ranks else None
    if schedule == "ScheduleInterleaved1F1B":
        return (ranks - 1) * (f + i + w) if microbatches % ranks == 0 else None
    if schedule == "ScheduleInterleavedZeroBubble":
        # Weight gradients fill the gaps only when one fits into what it fills.
        return (ranks - 1) * (f + i - w) if microbatches % ranks == 0 and w <= min(f, i) else None
    return None
