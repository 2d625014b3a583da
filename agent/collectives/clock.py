"""Offset and drift between the clocks of two hosts, from the collectives that their ranks finish together. Pure.

    exits of the same instances on two hosts -> estimate(reference, other) -> ClockModel -> to_reference(times)

All members leave an all-reduce (all-gather, barrier, ...) within a few network delays of each other, so the difference
of two exits is the offset of the clocks plus a small jitter, with rare outliers when one of them was held up after the
end. A line through the differences gives offset and drift; it is fitted again on what lies near it. Only instances of
operations that end on all members together may be given: not broadcast, reduce, scatter, gather or point-to-point.

Skew between hosts may be claimed only above twice the uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SYNCHRONISING_OPS = frozenset(
    {
        "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "barrier",
        "all_to_all", "all_to_all_single", "all_reduce_coalesced", "all_gather_coalesced",
        "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced",
    }
)  # fmt: skip
MIN_INSTANCES = 8
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class ClockModel:
    """Another host's clock against the reference: other = reference + offset + drift * (reference - at).

    `uncertainty_ns` bounds the error of a corrected time within the span of the instances that were used.
    """

    at_ns: int  # reference time at which the offset holds
    offset_ns: float
    drift: float  # nanoseconds gained per nanosecond; 50 ppm is 5e-5
    uncertainty_ns: float
    instances: int

    def to_reference(self, other_ns: Ints) -> Ints:
        """Times of the other host on the clock of the reference."""
        since = (other_ns - self.at_ns - round(self.offset_ns)) / (1 + self.drift)
        corrected: Ints = self.at_ns + np.rint(since).astype(np.int64)
        return corrected

    @property
    def least_skew_ns(self) -> float:
        """Skew between the hosts below this is not evidence of anything."""
        return 2 * self.uncertainty_ns


def estimate(reference_exit_ns: Ints, other_exit_ns: Ints) -> ClockModel | None:
    """Fit the clock of another host to the exits of the same instances on both; None for too few instances.

    Exits are given in the same order; the instances need not be.
    """
    if len(reference_exit_ns) != len(other_exit_ns):
        raise ValueError(f"{len(reference_exit_ns)} reference exits do not pair with {len(other_exit_ns)}")
    if len(reference_exit_ns) < MIN_INSTANCES:
        return None
    at = int(np.median(reference_exit_ns))
    base = int(np.median(other_exit_ns - reference_exit_ns))
    time = (reference_exit_ns - at).astype(float)
    difference = (other_exit_ns - reference_exit_ns - base).astype(float)
    drift, offset = _theil_sen(time, difference)
    kept = np.ones(len(time), bool)
    for _ in range(_ROUNDS):
        residual = difference - (offset + drift * time)
        spread = float(np.median(np.abs(residual[kept] - np.median(residual[kept]))))
        near = np.abs(residual - np.median(residual[kept])) <= 4.5 * max(spread, 1.0)
        if near.sum() < MIN_INSTANCES // 2 or bool((near == kept).all()):
            break
        kept = near
        drift, offset = _line(time[kept], difference[kept])
    residual = difference[kept] - (offset + drift * time[kept])
    # Jitter may lie on one side only (one host always told later), which no fit can see: the whole band counts.
    uncertainty = float(np.percentile(np.abs(residual), 95)) + float(np.ptp(residual)) / 2
    return ClockModel(at, base + offset, drift, uncertainty, int(kept.sum()))


def _theil_sen(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Line through the medians of slopes: a third of the points may be wrong."""
    order = np.argsort(x)
    x, y = x[order], y[order]
    half = len(x) // 2
    run = x[-half:] - x[:half]
    slopes = (y[-half:] - y[:half])[run > 0] / run[run > 0]
    drift = float(np.median(slopes)) if len(slopes) else 0.0
    return drift, float(np.median(y - drift * x))


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Least squares (slope, value at 0)."""
    middle = x.mean()
    centred = x - middle
    power = float(centred @ centred)
    drift = float(centred @ y) / power if power else 0.0
    return drift, float(y.mean() - drift * middle)
