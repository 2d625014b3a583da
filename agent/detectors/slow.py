"""Slow ranks, pauses and slow networks, from a window of steps.

    StepWindow -> stragglers, pauses, workload_imbalance, slow_network -> findings

The measure is a rank's busy time beyond the median of its peers (`excess`): in synchronous training the late rank is
the one that waits least. Three questions decide: how large (share of the step), how often (share of steps), and how
steady (always the same rank, or each time another). A rank that is late every time is a straggler; ranks that take
turns are an imbalance of the workload; a few long gaps are pauses; the transfer of all ranks together is the network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranksight.agent.detectors.imbalance import token_seconds
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.steps.window import Floats, StepWindow, excess


@dataclass(frozen=True, slots=True)
class SlowLimits:
    """Thresholds with their reasons."""

    # (steps, share of the step, robust z of the median excess): a large slow-down is named within 20 steps, a small
    # one (5 % under 5 % noise within 200 steps) needs more steps to stand out. The z is higher for few steps, as the
    # MAD of 20 values can be half of what it should be.
    scales: tuple[tuple[int, float, float], ...] = ((20, 0.10, 8), (40, 0.06, 7), (80, 0.035, 6.5), (160, 0.035, 6))
    # A straggler is late nearly always; of ranks that take turns one is late in 1/R of the steps, and by chance in so
    # many standard deviations more.
    late_share: float = 0.65
    late_sigmas: float = 4.5
    late_part: float = 0.25  # a step is late from a quarter of the least delay on: noise lies on both sides of it
    critical_fraction: float = 0.10  # of the step
    recent_steps: int = 20
    floor_seconds: float = 0.002  # the scheduler of a busy host makes gaps of a millisecond by itself
    cause_share: float = 0.8  # a cause is named when it explains 80 % of the delay
    pause_seconds: float = 0.05  # a gap is a pause from here on ...
    pause_factor: float = 3.0  # ... and when it is 3 times the median step
    pause_cost: float = 0.02  # repeated pauses matter from 2 % of the time
    pause_single_seconds: float = 1.0  # a single one from 1 s
    rotating_fraction: float = 0.20  # of the step lost to whoever is late
    rotating_share: float = 0.5  # in half of the steps
    rotating_most: float = 0.6  # and no rank to blame for more than 60 % of them
    transfer_factor: float = 2.0  # transfers twice as slow as they were, in three of four of the recent steps
    transfer_fraction: float = 0.2  # and the difference is 20 % of the step


def _usable(window: StepWindow) -> StepWindow | None:
    """The window without steps in exempt phases; None when too little is left."""
    keep = ~window.exempt & ~np.isnan(window.busy).all(axis=1)
    if keep.sum() < 8 or window.shape[1] < 2:
        return None
    arrays = {
        name: getattr(window, name)[keep]
        for name in window.__dataclass_fields__
        if name not in {"ranks", "hosts", "peers"}
    }
    return StepWindow(ranks=window.ranks, hosts=window.hosts, peers=window.peers, **arrays)


def _step_seconds(window: StepWindow) -> float:
    with np.errstate(all="ignore"):
        return float(np.nanmedian(window.duration))


def cause_of(window: StepWindow, column: int, rows: slice | np.ndarray, delay: Floats, limits: SlowLimits) -> str:
    """What explains at least `cause_share` of the delay of one rank; "unknown" when nothing does."""
    total = float(np.nansum(delay))
    if total <= 0:
        return "unknown"
    for cause, part in (("gc", window.gc), ("input", window.data), ("io", window.checkpoint)):
        share = np.nansum(np.minimum(np.maximum(excess(part, window.peers)[rows, column], 0), np.maximum(delay, 0)))
        if share >= limits.cause_share * total:
            return cause
    burned = excess(window.cpu, window.peers)[rows, column]
    if np.nansum(burned) >= limits.cause_share * total:
        return "compute"
    return "unknown"


def stragglers(window: StepWindow, limits: SlowLimits = SlowLimits()) -> tuple[Finding, ...]:
    """Ranks that are late step after step."""
    usable = _usable(window)
    if usable is None:
        return ()
    late = excess(usable.busy, usable.peers) - token_seconds(usable)
    step = _step_seconds(usable)
    findings = []
    for column, rank in enumerate(usable.ranks):
        for count, fraction, z in reversed(limits.scales):  # the longest stretch that it has been slow for
            rows = slice(-count, None)
            mine = late[rows, column]
            if len(late) < count or not _steady(late[rows], column, fraction * step, z, limits):
                continue
            middle = float(np.nanmedian(mine))
            onset = _onset(mine >= limits.late_part * fraction * step)
            cause = cause_of(usable, column, rows, mine, limits)
            steps = usable.steps[rows]
            findings.append(
                Finding(
                    kind="straggler",
                    severity=Severity.CRITICAL if middle >= limits.critical_fraction * step else Severity.WARNING,
                    cause=cause,
                    ranks=(rank,),
                    hosts=(usable.hosts[column],),
                    first_step=int(steps[onset]),
                    last_step=int(steps[-1]),
                    detected_step=int(steps[-1]),
                    cost_seconds=float(np.nansum(np.maximum(mine[onset:], 0))),
                    message=(
                        f"Rank {rank} is slow: it comes {middle * 1e3:.1f} ms later than its peers in the median step "
                        f"({100 * middle / step:.0f} % of the step), and all wait for it."
                    ),
                    advice=_ADVICE[cause],
                    evidence={
                        "late_seconds_median": middle,
                        "step_seconds_median": step,
                        "steps": count,
                        "share_of_steps_last": _share_last(late[rows], column),
                    },
                )
            )
            break
    return tuple(findings)


def _onset(late: np.ndarray) -> int:
    """Where it began: the row from which on late steps outnumber the others by most."""
    return int(np.argmax(np.cumsum((late - 0.5)[::-1])[::-1]))


def _share_last(late: Floats, column: int) -> float:
    rows = ~np.isnan(late[:, column])
    return float(np.mean(np.nanargmax(late[rows], axis=1) == column)) if rows.any() else 0.0


def _steady(late: Floats, column: int, least: float, least_z: float, limits: SlowLimits) -> bool:
    """Whether one rank's delay is at least `least` seconds, beyond chance, nearly always there, and mostly the largest."""
    known = late[~np.isnan(late[:, column]), column]
    if len(known) < 0.9 * len(late):
        return False
    middle = float(np.median(known))
    if middle < max(least, limits.floor_seconds):
        return False
    ranks = late.shape[1]
    by_turns = 1 / ranks + limits.late_sigmas * np.sqrt((1 - 1 / ranks) / ranks / len(known))
    if np.mean(known >= limits.late_part * least) < max(limits.late_share, min(by_turns, 1.0)):
        return False
    spread = 1.4826 * float(np.median(np.abs(known - middle)))
    z = middle / max(spread / np.sqrt(len(known)), 1e-9)
    return bool(z >= least_z) and _share_last(late, column) >= min(0.5, 2 / ranks)


def pauses(window: StepWindow, limits: SlowLimits = SlowLimits()) -> tuple[Finding, ...]:
    """A few long gaps: one finding per cause, with the ranks only when a single rank had them."""
    usable = _usable(window)
    if usable is None:
        return ()
    late = excess(usable.busy, usable.peers)
    step = _step_seconds(usable)
    with np.errstate(invalid="ignore"):
        long = late >= max(limits.pause_seconds, limits.pause_factor * step)
    if not long.any() or long.any(axis=1).mean() > 0.3:
        return ()  # so often is not a pause
    by_cause: dict[str, list[tuple[int, int]]] = {}
    for row, column in zip(*np.nonzero(long), strict=True):
        cause = cause_of(usable, int(column), np.array([row]), late[[row], column], limits)
        by_cause.setdefault(cause, []).append((int(row), int(column)))
    findings = []
    for cause, places in by_cause.items():
        lost = [float(late[place]) for place in places]
        if max(lost) < limits.pause_single_seconds and (
            len(places) < 3 or sum(lost) < limits.pause_cost * step * len(usable.steps)
        ):
            continue
        columns = sorted({column for _, column in places})
        ranks = tuple(usable.ranks[column] for column in columns)
        steps = [int(usable.steps[row]) for row, _ in places]
        one = len(ranks) == 1
        where = f"rank {ranks[0]}" if one else f"ranks {', '.join(map(str, ranks))} in turn"
        findings.append(
            Finding(
                kind="input_stall" if cause == "input" else "pause",
                severity=Severity.WARNING,
                cause=cause,
                ranks=ranks if one else (),
                hosts=tuple(sorted({usable.hosts[column] for column in columns})),
                first_step=min(steps),
                last_step=max(steps),
                detected_step=max(steps) if len(steps) > 1 else min(steps),
                cost_seconds=sum(lost),
                message=(
                    f"{len(places)} pause{'s' * (len(places) > 1)} of up to {max(lost):.2f} s on {where}: "
                    f"{_PAUSE[cause]}. The other ranks waited {sum(lost):.2f} s in all."
                ),
                advice=_ADVICE[cause],
                evidence={"pauses": len(places), "longest_seconds": max(lost), "step_seconds_median": step},
            )
        )
    return tuple(findings)


def workload_imbalance(window: StepWindow, limits: SlowLimits = SlowLimits()) -> tuple[Finding, ...]:
    """Someone is late in most steps, but each time another rank: the work is dealt out unevenly."""
    usable = _usable(window)
    if usable is None or len(usable.steps) < limits.recent_steps:
        return ()
    late = excess(usable.busy, usable.peers) - token_seconds(usable)
    rows = ~np.isnan(late).all(axis=1)
    late, steps = late[rows], usable.steps[rows]
    step = _step_seconds(usable)
    worst, culprit = np.nanmax(late, axis=1), np.nanargmax(late, axis=1)
    bad = worst >= max(limits.rotating_fraction * step, limits.floor_seconds)
    if bad.mean() < limits.rotating_share:
        return ()
    shares = np.bincount(culprit[bad], minlength=len(usable.ranks)) / bad.sum()
    if shares.max() > limits.rotating_most or (shares > 0.1).sum() < 2:
        return ()
    lost = float(worst[bad].sum())
    return (
        Finding(
            kind="workload_imbalance",
            severity=Severity.WARNING,
            first_step=int(steps[bad][0]),
            last_step=int(steps[bad][-1]),
            detected_step=int(steps[-1]),
            cost_seconds=lost,
            message=(
                f"In {100 * bad.mean():.0f} % of the steps some rank is {1e3 * np.median(worst[bad]):.0f} ms late, each "
                f"time another one: the work of a step is dealt out unevenly. No rank is at fault."
            ),
            advice="Balance the batches by cost (for packed sequences the sum of squared lengths), not by count.",
            evidence={
                "share_of_steps": float(bad.mean()),
                "share_by_rank": {str(rank): float(share) for rank, share in zip(usable.ranks, shares, strict=True)},
                "late_seconds_median": float(np.median(worst[bad])),
                "step_seconds_median": step,
            },
        ),
    )


def slow_network(window: StepWindow, limits: SlowLimits = SlowLimits()) -> tuple[Finding, ...]:
    """Transfers of all ranks got slower while their own work did not."""
    usable = _usable(window)
    if usable is None or len(usable.steps) < 2 * limits.recent_steps:
        return ()
    rows = ~np.isnan(usable.transfer).all(axis=1)
    if rows.sum() < 2 * limits.recent_steps:
        return ()
    transfer, steps = np.nanmin(usable.transfer[rows], axis=1), usable.steps[rows]
    busy = np.nanmedian(usable.busy[rows], axis=1)
    now, before = slice(-limits.recent_steps, None), slice(0, -limits.recent_steps)
    recent, usual = float(np.percentile(transfer[now], 25)), float(np.percentile(transfer[before], 25))
    step = float(np.nanmedian(usable.duration[rows][before]))
    grown = recent - usual
    if recent < limits.transfer_factor * usual or grown < max(limits.transfer_fraction * step, limits.floor_seconds):
        return ()
    if np.median(busy[now]) > 1.25 * np.median(busy[before]) + limits.floor_seconds:
        return ()  # their own work grew too: not only the network
    return (
        Finding(
            kind="slow_network",
            severity=Severity.WARNING,
            first_step=int(steps[now][0]),
            last_step=int(steps[-1]),
            detected_step=int(steps[-1]),
            cost_seconds=grown * limits.recent_steps,
            message=(
                f"Transfers of all ranks take {1e3 * recent:.0f} ms a step, {1e3 * usual:.0f} ms before; their own work "
                f"did not change. The network is slow, and no rank is at fault."
            ),
            advice="Look at the fabric: congestion, a neighbour's traffic, a changed route. Excluding a rank won't help.",
            evidence={"transfer_seconds": recent, "transfer_seconds_before": usual, "step_seconds_before": step},
        ),
    )


_ADVICE = {
    "gc": "Collect garbage at the same step on all ranks: gc.disable(), then gc.collect() every N steps.",
    "input": "Look at the input of this rank: storage, decoding, number of loader workers, prefetch.",
    "io": "Write checkpoints asynchronously, or to faster storage.",
    "compute": "Compare clocks, temperature and power of this device with its peers; exclude the host if it stays slow.",
    "cpu_contention": "Look for other work on this host's cores, background threads and missing thread limits.",
    "memory": "Look at swapping and page faults of this host.",
    "unknown": "The delay is outside of input, garbage collection and checkpoints, and burns no CPU: look at the device.",
}
_PAUSE = {
    "gc": "garbage collection of Python",
    "input": "waiting for input",
    "io": "writing a checkpoint",
    "compute": "computing on the host",
    "unknown": "of unknown cause",
}
