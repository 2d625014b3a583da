"""Work that is dealt out unevenly by design of the model: experts and pipeline stages.

    StepWindow -> token_seconds (what tokens explain) -> expert_imbalance, router_collapse
    StepWindow -> stage_imbalance

A rank that is slow because its expert got more tokens is not broken. `token_seconds` fits the time of a rank to the
rows that it received, over all ranks and steps; what the fit explains is imbalance, and only the rest can make a
straggler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.steps.window import Floats, StepWindow, excess


@dataclass(frozen=True, slots=True)
class ImbalanceLimits:
    """Thresholds with their reasons."""

    steps: int = 20
    max_over_mean: float = 1.3  # below it padding and noise are as large
    lost_fraction: float = 0.05  # of the step: imbalance that costs no time is not a fault
    same_rank: float = 0.7  # of the steps: else the hot rank changes, and balancing over time hides it
    collapse_share: float = 0.9  # of all rows to one rank of four or more
    collapse_steps: int = 8
    stage_ratio: float = 1.25  # busy time of the slowest stage against the median stage
    floor_seconds: float = 0.002


def token_seconds(window: StepWindow) -> Floats:
    """Seconds of each rank's excess that its excess of received rows explains, [S, R]; 0 where nothing does.

    Least squares of the busy excess on the row excess over all ranks and steps, slope at least 0.
    """
    if np.isnan(window.received_rows).all():
        return np.zeros(window.shape)  # no all-to-all with splits
    rows = excess(window.received_rows, window.peers)
    late = excess(window.busy, window.peers)
    usable = ~np.isnan(rows) & ~np.isnan(late) & ~window.exempt[:, None]
    if usable.sum() < 8 * len(window.ranks):
        return np.zeros(window.shape)
    x, y = rows[usable], late[usable]
    x, y = x - x.mean(), y - y.mean()
    variance = float(x @ x)
    # A fit that explains little is chance: most of the excess must follow the rows.
    if variance <= 0 or (x @ y) ** 2 < 0.5 * variance * float(y @ y):
        return np.zeros(window.shape)
    slope = max(0.0, float(x @ y) / variance)
    return np.nan_to_num(slope * rows)


def expert_imbalance(window: StepWindow, limits: ImbalanceLimits = ImbalanceLimits()) -> tuple[Finding, ...]:
    """One expert-parallel rank gets more tokens than its share, and the others wait for it."""
    keep = ~window.exempt & ~np.isnan(window.received_rows).any(axis=1)
    if keep.sum() < limits.steps or window.shape[1] < 2:
        return ()
    received = window.received_rows[keep][-limits.steps :]
    steps = window.steps[keep][-limits.steps :]
    lost = token_seconds(window)[keep][-limits.steps :].max(axis=1)
    with np.errstate(all="ignore"):
        ratio = received.max(axis=1) / received.mean(axis=1)
        step = float(np.nanmedian(window.duration[keep]))
    hot, share = _usual(received.argmax(axis=1))
    rank = window.ranks[hot]
    evidence = {
        "max_over_mean": float(np.nanmedian(ratio)),
        "share_of_rows": {str(r): float(v) for r, v in zip(window.ranks, received.sum(0) / received.sum(), strict=True)},
        "lost_seconds_per_step": float(np.median(lost)),
        "step_seconds_median": step,
    }
    where = {
        "ranks": (rank,), "hosts": (window.hosts[hot],), "first_step": int(steps[0]), "last_step": int(steps[-1]),
        "detected_step": int(steps[-1]), "evidence": evidence, "cost_seconds": float(lost.sum()),
    }  # fmt: skip
    part = received[-limits.collapse_steps :, hot] / received[-limits.collapse_steps :].sum(axis=1)
    if len(window.ranks) >= 4 and part.min() >= limits.collapse_share:
        return (
            Finding(
                kind="router_collapse",
                severity=Severity.CRITICAL,
                message=f"The router sends {100 * part.mean():.0f} % of all tokens to the experts of rank {rank}.",
                advice="Look at the router's bias and logits; go back to a checkpoint before the collapse.",
                **where,  # type: ignore[arg-type]
            ),
        )
    if share < limits.same_rank or np.nanmedian(ratio) < limits.max_over_mean:
        return ()
    if np.median(lost) < max(limits.lost_fraction * step, limits.floor_seconds):
        return ()
    return (
        Finding(
            kind="expert_imbalance",
            severity=Severity.WARNING,
            message=(
                f"The experts of rank {rank} get {np.nanmedian(ratio):.1f} times their share of tokens; all others wait "
                f"{1e3 * np.median(lost):.0f} ms a step for it ({100 * np.median(lost) / step:.0f} %). It is the routing, "
                f"not the hardware."
            ),
            advice="Balance the router (bias update or auxiliary loss), or give hot experts replicas.",
            **where,  # type: ignore[arg-type]
        ),
    )


def _usual(culprits: np.ndarray) -> tuple[int, float]:
    """The most frequent value and its share."""
    values, counts = np.unique(culprits, return_counts=True)
    return int(values[counts.argmax()]), float(counts.max() / len(culprits))


def stage_imbalance(
    window: StepWindow, stages: dict[int, int], limits: ImbalanceLimits = ImbalanceLimits()
) -> tuple[Finding, ...]:
    """One pipeline stage is busy longer than the others on every one of its replicas. `stages`: rank to stage."""
    columns = [at for at, rank in enumerate(window.ranks) if rank in stages]
    numbers = sorted({stages[window.ranks[at]] for at in columns})
    keep = ~window.exempt & ~np.isnan(window.busy).any(axis=1)
    if len(numbers) < 2 or keep.sum() < limits.steps // 2:
        return ()
    busy = np.median(window.busy[keep][-limits.steps :], axis=0)
    of_stage = {number: [busy[at] for at in columns if stages[window.ranks[at]] == number] for number in numbers}
    means = {number: float(np.mean(values)) for number, values in of_stage.items()}
    slowest = max(means, key=lambda number: means[number])
    rest = [value for number, value in means.items() if number != slowest]
    usual = float(np.median(rest))
    if min(of_stage[slowest]) < limits.stage_ratio * usual or means[slowest] - usual < limits.floor_seconds:
        return ()
    average = float(np.mean(list(means.values())))
    steps = window.steps[keep]
    ranks = tuple(window.ranks[at] for at in columns if stages[window.ranks[at]] == slowest)
    used = min(len(steps), limits.steps)
    return (
        Finding(
            kind="stage_imbalance",
            severity=Severity.WARNING,
            ranks=ranks,
            hosts=tuple(sorted({window.hosts[at] for at in columns if stages[window.ranks[at]] == slowest})),
            stage=slowest,
            first_step=int(steps[0]),
            last_step=int(steps[-1]),
            detected_step=int(steps[-1]),
            cost_seconds=used * (means[slowest] - average),
            message=(
                f"Pipeline stage {slowest} is busy {1e3 * means[slowest]:.0f} ms a step, the others {1e3 * usual:.0f} ms: "
                f"balance {100 * average / means[slowest]:.0f} %. It is so on all its replicas: partitioning, not hardware."
            ),
            advice=(
                f"Move layers away from stage {slowest}: balanced stages would save up to "
                f"{100 * (1 - average / means[slowest]):.0f} % of the time of the slowest."
            ),
            evidence={
                "busy_seconds_by_stage": {str(number): value for number, value in means.items()},
                "balance": average / means[slowest],
            },
        ),
    )
