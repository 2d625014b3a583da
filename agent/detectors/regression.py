"""`regression`: the work of all ranks got slower at once, so no rank is at fault but something that they share.

    StepWindow -> the level of each rank's busy time before and after a change -> one finding without ranks

The program, its settings, a library, or the machine room changed. It is none when the ranks were given more to work
on, or when only some of them got slower.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.steps.window import Floats, StepWindow


@dataclass(frozen=True, slots=True)
class RegressionLimits:
    """Thresholds with their reasons."""

    recent: int = 20  # steps after the change: a shorter slow stretch is a hiccup
    before: int = 20  # and before it
    factor: float = 1.2  # the median rank works so much longer
    least: float = 1.1  # and every rank so much
    share: float = 0.8  # in so many of the recent steps
    step_fraction: float = 0.1  # and the difference is so much of the step before
    floor_seconds: float = 0.002
    same_input: float = 0.02  # the ranks got the same amount of data, this close


def regression(window: StepWindow, limits: RegressionLimits = RegressionLimits()) -> tuple[Finding, ...]:
    """At most one finding, while the change is within the window."""
    rows = ~window.exempt & ~np.isnan(window.busy).any(axis=1)
    if rows.sum() < limits.before + limits.recent or window.shape[1] < 2:
        return ()
    busy, steps = window.busy[rows], window.steps[rows]
    change = _change(np.median(busy, axis=1), limits)
    before, after = busy[:change], busy[change:]
    usual, now = np.median(before, axis=0), np.median(after[-limits.recent :], axis=0)
    grown = float(np.median(now - usual))
    with np.errstate(all="ignore"):
        step = float(np.nanmedian(window.duration[rows][:change]))
        ratios = now / np.maximum(usual, 1e-9)
    if np.median(ratios) < limits.factor or ratios.min() < limits.least:
        return ()
    if grown < max(limits.step_fraction * step, limits.floor_seconds):
        return ()
    late = (after[-limits.recent :] > limits.least * usual).mean(axis=0)
    if late.min() < limits.share or _more_input(window.elements[rows], change, limits):
        return ()
    last = int(steps[-1])
    return (
        Finding(
            kind="regression",
            severity=Severity.WARNING,
            first_step=int(steps[change]),
            last_step=last,
            detected_step=last,
            cost_seconds=grown * len(after),
            message=(
                f"The work of all {len(window.ranks)} ranks takes {100 * (np.median(ratios) - 1):.0f} % longer since step "
                f"{steps[change]}: {1e3 * np.median(now):.0f} ms a step, {1e3 * np.median(usual):.0f} ms before. No rank "
                f"is at fault."
            ),
            advice="Look at what all ranks share: a change of code, settings or libraries, clocks of the whole machine.",
            evidence={
                "busy_seconds_before": float(np.median(usual)),
                "busy_seconds": float(np.median(now)),
                "least_ratio": float(ratios.min()),
                "most_ratio": float(ratios.max()),
                "step_seconds_before": step,
            },
        ),
    )


def _change(middle: Floats, limits: RegressionLimits) -> int:
    """Where the level changes most: the rank-sum split whose two sides differ most."""
    rank = np.argsort(np.argsort(middle)) - (len(middle) - 1) / 2  # of ranks, so that single long steps don't decide
    sums = np.cumsum(rank)
    at = np.arange(1, len(middle))
    score = -sums[:-1] / np.sqrt(at * (len(middle) - at))
    score[: limits.before - 1] = -np.inf
    score[len(middle) - limits.recent :] = -np.inf
    return int(np.argmax(score)) + 1


def _more_input(elements: Floats, change: int, limits: RegressionLimits) -> bool:
    """Whether the ranks are known to have been given more, or less, since the change."""
    with np.errstate(all="ignore"):
        before, after = np.nansum(elements[:change], axis=1), np.nansum(elements[change:], axis=1)
    if not before.any() or not after.any():
        return False
    usual, now = float(np.median(before[before > 0])), float(np.median(after[after > 0]))
    return abs(now - usual) > limits.same_input * usual
