"""What imbalance costs, and whether a rank is slow because of its tokens or because of its hardware. Pure.

    seconds of an instance's members -> lost                 max - mean: all wait for the slowest
    rows, seconds [steps, ranks]     -> explain -> Slowness  per rank

If the work of an instance were dealt out evenly, each rank would need the mean; so the group loses `max - mean` in each.

`explain` asks what the other ranks would have needed for this rank's rows. Over all steps their expert time is fitted to
their rows, `seconds = a + b * rows` (least squares, b >= 0). What that predicts for the rank's rows beyond the mean time
is due to tokens, what the rank needs beyond the prediction to hardware. The rank itself takes no part in the fit: one
that is always hot and always slow would pull the line to itself. A cause is named when it explains MOST of the excess.
When the fit explains little, tokens are ruled out only for a rank that has its even share of rows; else it is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST = 0.8  # of the excess
SLOW = 0.1  # of the mean expert time; less is noise
FLOOR_SECONDS = 0.001
STEPS = 20  # before anything is said
EXPLAINED = 0.5  # of the variance, by a fit that is to be used
EVEN = 0.05  # rows this near to the mean are an even share


@dataclass(frozen=True, slots=True)
class Slowness:
    """Seconds per step of one rank beyond the mean of its group; parts None when no fit holds."""

    excess: float
    tokens: float | None
    hardware: float | None
    because: str | None  # "tokens", "hardware", "both", "unknown"; None: not slow


def lost(seconds: Floats, starts: NDArray[np.int64]) -> Floats:
    """Seconds that each instance loses; members lie behind each other, `starts` holds the first of each instance."""
    counts = np.diff(starts, append=len(seconds))
    return np.maximum.reduceat(seconds, starts) - np.add.reduceat(seconds, starts) / counts


def explain(rows: Floats, seconds: Floats) -> list[Slowness] | None:
    """Of each rank, from its rows and expert seconds per step, both [steps, ranks]; None with too few steps."""
    if len(rows) < STEPS or rows.shape[1] < 2:
        return None
    usual = np.median(seconds, axis=0)
    return [_of(at, rows, seconds, usual) for at in range(rows.shape[1])]


def _of(at: int, rows: Floats, seconds: Floats, usual: Floats) -> Slowness:
    mean = float(usual.mean())
    excess = float(usual[at]) - mean
    others = np.arange(rows.shape[1]) != at
    line = _fit(rows[:, others].ravel(), seconds[:, others].ravel())
    slow = excess > max(SLOW * mean, FLOOR_SECONDS)
    mine = float(np.median(rows[:, at]))
    if line is None:
        even = abs(mine / max(float(np.median(rows.mean(axis=1))), 1e-9) - 1) <= EVEN
        return Slowness(excess, None, None, ("hardware" if even else "unknown") if slow else None)
    predicted = line[0] + line[1] * mine
    tokens, hardware = predicted - mean, float(usual[at]) - predicted
    because = "tokens" if tokens >= MOST * excess else "hardware" if hardware >= MOST * excess else "both"
    return Slowness(excess, tokens, hardware, because if slow else None)


def _fit(rows: Floats, seconds: Floats) -> tuple[float, float] | None:
    """Intercept and slope; None when the line explains little."""
    x, y = rows - rows.mean(), seconds - seconds.mean()
    xx, xy, yy = float(x @ x), float(x @ y), float(y @ y)
    if xx <= 0 or yy <= 0 or xy <= 0 or xy * xy < EXPLAINED * xx * yy:
        return None
    slope = xy / xx
    return float(seconds.mean() - slope * rows.mean()), slope
