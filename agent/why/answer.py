"""The answer to "why was step N bad?": the symptom, the way back to its origin, and what the origin touched.

    Window, findings of the report -> answer -> dict (printed as JSON) -> text

Only one host's ranks share a clock. Those of several hosts are corrected by the collectives that they share; where these
are too few there is no way back through time: then only numbers and findings speak, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ranksight.agent.why.origin import Origin, origin, symptom, way_back
from ranksight.agent.why.path import Leg
from ranksight.agent.why.records import Window
from ranksight.agent.why.touched import touched
from ranksight.agent.why.usual import Usual
from ranksight.agent.words import numbers_in_words

LEGS = 8  # of the way back, those that took longest
_CORRUPTS = frozenset({"nonfinite", "jump"})


def answer(window: Window, findings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What is known; null where it is not."""
    found = symptom(window)
    one_clock = window.one_clock
    legs = way_back(window) if one_clock else []
    began = origin(window, found, legs)
    notes = _about_clocks(window)
    if began is None and found.kind != "none":
        notes.append("nothing on the way back took longer than it usually does, or too little is known to say")
    return {
        "step": window.step,
        "symptom": {"kind": found.kind, "text": found.text},
        "origin": _origin(began, window) if began else None,
        "way_back": [_leg(leg, usual) for leg, usual in _longest(window, legs)],
        "touched": _touched(window, began) if began and one_clock else None,
        "findings": [
            {"kind": finding["kind"], "message": finding["message"]} for finding in findings if _about(finding, window.step)
        ],
        "clocks": window.clocks.to_json() if window.clocks and len(window.clocks.hosts) > 1 else None,
        "notes": notes,
    }


def _about_clocks(window: Window) -> list[str]:
    count = len(set(window.hosts.values()))
    if not window.one_clock:
        return [f"records of {count} hosts have {count} clocks, and share too few collectives to compare them: no way back in time"]
    if count < 2 or window.clocks is None:
        return []
    doubts = [clock.uncertainty_ns or 0.0 for clock in window.clocks.hosts.values()]
    return [f"the clocks of {count} hosts were compared to within {max(doubts) / 1e6:.2f} ms; of twice that and less nothing is said"]


def text(told: Mapping[str, Any]) -> str:
    """The answer for people."""
    lines = [f"step {told['step']}: {told['symptom']['text']}"]
    began = told["origin"]
    if began:
        lines.append(f"began: {began['text']}")
        lines += [f"  at {began['call_site']}"] if began["call_site"] else []
    if told["way_back"]:
        lines.append("the way back, longest parts first:")
        for leg in told["way_back"]:
            usual = f", usually {leg['usual_seconds'] * 1e3:.1f}" if leg["usual_seconds"] is not None else ""
            lines.append(f"  rank {leg['rank']:<4} {leg['seconds'] * 1e3:8.1f} ms{usual:<16} {leg['text']}")
    reached = told["touched"]
    if reached:
        others = [f"rank {one['rank']} after {one['seconds_after']:.3f} s" for one in reached["ranks"][1:5]]
        more = f" and {len(reached['ranks']) - 5} more" if len(reached["ranks"]) > 5 else ""
        lines.append(f"reached: {', '.join(others) or 'no other rank'}{more}")
        if reached["ranks_not_reached"]:
            lines.append(f"not reached: ranks {numbers_in_words(reached['ranks_not_reached'])}")
        for written in reached["checkpoints"]:
            state = "tainted, it was written after the origin" if written["tainted"] else "written later, nothing speaks against it"
            lines.append(f"checkpoint {written['path']} of step {written['step']}: {state}")
    lines += [f"finding {finding['kind']}: {finding['message']}" for finding in told["findings"]]
    return "\n".join([*lines, *(f"note: {note}" for note in told["notes"])])


def _origin(began: Origin, window: Window) -> dict[str, Any]:
    begins = [span.begin_ns for rank in window.calls for step, span in window.steps_of(rank).items() if step == window.step]
    return {
        "kind": began.kind,
        "rank": began.rank,
        "step": began.step,
        "call_site": began.site,
        "seconds": began.seconds,
        "usual_seconds": began.usual_seconds,
        "seconds_into_step": (began.at_ns - min(begins)) / 1e9 if begins else None,
        "text": began.text,
    }


def _longest(window: Window, legs: list[Leg]) -> list[tuple[Leg, float | None]]:
    usual = Usual(window)
    return [(leg, usual.of(leg)) for leg in sorted(legs, key=lambda leg: -leg.seconds)[:LEGS]]


def _leg(leg: Leg, usual: float | None) -> dict[str, Any]:
    if leg.transfer:
        text = f"transfer of {leg.transfer.op} ({leg.transfer.axis})"
    else:
        after = f"from {leg.after.op} ({leg.after.axis})" if leg.after else "from the begin"
        text = f"work {after} to {f'{leg.before.op} ({leg.before.axis})' if leg.before else 'the end of the step'}"
    return {"rank": leg.rank, "seconds": leg.seconds, "usual_seconds": usual, "text": text}


def _touched(window: Window, began: Origin) -> dict[str, Any]:
    found = touched(window, began)
    return {
        "ranks": [
            {"rank": one.rank, "seconds_after": (one.at_ns - began.at_ns) / 1e9, "through": one.through, "by": one.by}
            for one in found.ranks
        ],
        "ranks_not_reached": list(found.unreached),
        "checkpoints": [
            {"step": one.step, "path": one.path, "ranks": list(one.ranks), "tainted": began.kind in _CORRUPTS}
            for one in found.checkpoints
        ],
    }


def _about(finding: Mapping[str, Any], step: int) -> bool:
    """Whether a finding of the report speaks of the step: from its first step to its last, or from then on."""
    first, last = finding.get("first_step"), finding.get("last_step")
    return first is not None and first <= step and (last is None or step <= last)
