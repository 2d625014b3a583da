"""What was bad about a step, and the first thing that went wrong before it.

    Window -> symptom -> slow, unfinished:         the way back (path), the earliest leg that took unusually long
                         nonfinite, loss, gradient: the earliest bad number of the run of bad steps that ends here
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from ranksight.agent.why.path import Leg, critical_path, last_arriver
from ranksight.agent.why.records import Call, Number, Span, Window
from ranksight.agent.why.usual import Usual

SLOW = 1.2  # a step is slow beyond this multiple of the usual one
JUMP = 3.0  # a loss or gradient norm has jumped beyond this multiple of its median
SHARE = 0.2  # of the leg that lost most: what a leg must have lost to be an origin
LOST_SHARE = 0.1  # of the way: what a leg must have lost to be more than noise
_WHOLE = ("gc", "data", "checkpoint")
_PHASES = frozenset({"data", "checkpoint", "evaluation", "load", "compile"})


@dataclass(frozen=True, slots=True)
class Symptom:
    """What is bad about the step: slow, unfinished, nonfinite, loss_jump, grad_jump, or none."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The first thing that went wrong."""

    kind: str
    rank: int
    step: int
    at_ns: int
    text: str
    site: str | None = None
    seconds: float | None = None
    usual_seconds: float | None = None


def symptom(window: Window) -> Symptom:
    """The worst that can be said of the step: numbers before time."""
    bad = _bad_numbers(window, window.step)
    if bad:
        worst = min(bad, key=lambda number: (math.isfinite(number.value), number.at_ns))
        kind = "nonfinite" if not math.isfinite(worst.value) else "loss_jump" if worst.kind == "loss" else "grad_jump"
        return Symptom(kind, f"the {worst.name} of rank {worst.rank} is {worst.value:.4g}")
    spans = {rank: window.steps_of(rank) for rank in window.calls}
    mine = [steps[window.step] for steps in spans.values() if window.step in steps]
    if len(mine) < len(window.calls):
        left = [rank for rank, steps in spans.items() if window.step not in steps]
        return Symptom("unfinished", f"the step did not end on {len(left)} of {len(window.calls)} ranks")
    others = [_seconds(span) for steps in spans.values() for step, span in steps.items() if step != window.step]
    if not mine or not others:
        return Symptom("none", "there is nothing to compare the step with")
    took, usual = max(map(_seconds, mine)), median(others)
    if took > SLOW * usual:
        return Symptom("slow", f"the step took {took:.3f} s, usually {usual:.3f} s")
    return Symptom("none", f"the step took {took:.3f} s, which is usual ({usual:.3f} s)")


def way_back(window: Window) -> list[Leg]:
    """The legs from the end of the step to its begin; empty when nothing is known of it."""
    begins = [span.begin_ns for rank in window.calls for step, span in window.steps_of(rank).items() if step == window.step]
    ends = [span for rank in window.calls for step, span in window.steps_of(rank).items() if step == window.step]
    calls = [call for mine in window.calls.values() for call in mine if call.step == window.step]
    if not calls:
        return []
    begin = min([*begins, *(call.enqueue_ns for call in calls)])
    stuck = [call for call in calls if call.complete_ns is None]
    if stuck and len(ends) < len(window.calls):
        first = last_arriver(min(stuck, key=lambda call: call.enqueue_ns), window.members())
        return critical_path(window, first.rank, first.enqueue_ns, begin, into=first)
    if not ends:
        last = max(calls, key=lambda call: call.enqueue_ns)
        return critical_path(window, last.rank, last.enqueue_ns, begin, into=last)
    end = max(ends, key=lambda span: span.end_ns)
    return critical_path(window, end.rank, end.end_ns, begin)


def origin(window: Window, found: Symptom, legs: list[Leg]) -> Origin | None:
    """The earliest anomaly that explains the symptom; None when all was as usual or nobody can tell."""
    if found.kind in {"nonfinite", "loss_jump", "grad_jump"}:
        return _first_bad_number(window)
    usual = Usual(window)
    excesses = [(leg, usual.excess(leg) or 0.0) for leg in legs]
    least = max(
        SHARE * max((excess for _, excess in excesses), default=0.0), LOST_SHARE * sum(leg.seconds for leg in legs)
    )
    above = [leg for leg, excess in excesses if excess > 0 and excess >= least]
    if not above:
        return None
    leg = min(above, key=lambda leg: leg.begin_ns)
    return _of_leg(window, leg, usual.of(leg))


def _of_leg(window: Window, leg: Leg, usual: float | None) -> Origin:
    took = f"took {leg.seconds:.3f} s" + (f", usually {usual:.3f} s" if usual is not None else "")
    if leg.transfer:
        call = leg.transfer
        text = f"after its last member had come, {_name(call)} {took}"
        return Origin("slow_transfer", leg.rank, leg.step, leg.begin_ns, text, call.site, leg.seconds, usual)
    between = " and ".join(_name(call) for call in (leg.after, leg.before) if call)
    inside = _inside(window, leg)
    text = f"rank {leg.rank} {took}, for its own work between {between}{inside}"
    site = leg.before.site if leg.before else leg.after.site if leg.after else None
    return Origin("slow_work", leg.rank, leg.step, leg.begin_ns, text, site, leg.seconds, usual)


def _inside(window: Window, leg: Leg) -> str:
    """What the rank is known to have done meanwhile."""
    seconds: dict[str, float] = {}
    for span in window.spans:
        name = span.kind if span.kind in _WHOLE else span.what if span.what in _PHASES else None
        overlap = min(span.end_ns, leg.end_ns) - max(span.begin_ns, leg.begin_ns)
        if name and span.rank == leg.rank and overlap > 0:
            seconds[name] = max(seconds.get(name, 0.0), 0.0) + overlap / 1e9
    told = [f"{value:.3f} s in {name}" for name, value in sorted(seconds.items(), key=lambda item: -item[1]) if value > 0.001]
    return f" ({', '.join(told)})" if told else ""


def _name(call: Call) -> str:
    return f"{call.op} of {call.axis}" + (f" at {call.site}" if call.site else "")


def _bad_numbers(window: Window, step: int) -> list[Number]:
    return [number for number in window.numbers if number.step == step and _is_bad(window, number)]


def _is_bad(window: Window, number: Number) -> bool:
    if not math.isfinite(number.value):
        return True
    before = [
        other.value
        for other in window.numbers
        if other.kind == number.kind and number.step - 50 <= other.step < number.step and math.isfinite(other.value)
    ]
    return len(before) >= 5 and number.value > JUMP * median(before) > 0


def _first_bad_number(window: Window) -> Origin | None:
    """The earliest bad number of the steps without a good one between it and the step asked about."""
    step = window.step
    while _bad_numbers(window, step - 1):
        step -= 1
    bad = _bad_numbers(window, step)
    if not bad:
        return None
    first = min(bad, key=lambda number: (math.isfinite(number.value), number.at_ns))
    alike = {number.rank for number in bad if math.isfinite(number.value) == math.isfinite(first.value)}
    finite = math.isfinite(first.value)
    what = f"the first {'jump' if finite else 'value that is not finite'} is the {first.name} of rank {first.rank}"
    others = f"{len(alike)} ranks have such a value" if len(alike) > 1 else "no other rank has such a value"
    text = f"{what} in step {step}, {first.value:.4g}; {others} in this step"
    kind = "jump" if finite else "nonfinite"
    return Origin(kind, first.rank, step, first.at_ns, text)


def _seconds(span: Span) -> float:
    return (span.end_ns - span.begin_ns) / 1e9
