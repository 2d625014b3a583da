"""Numbers going wrong: not finite, spikes, divergence, memory that only grows.

    StepWindow -> nonfinite, spikes, divergence, memory_growth -> findings

Spikes are judged on the logarithm of the loss against its rolling median, with a spread that neither outliers nor a
falling loss can widen (median absolute difference of neighbours), and confirmed by the gradient norm where it is
known: a loss that merely wanders does not move the norm. Every rank's own loss is looked at: a spike on one rank
hides in the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.steps.window import Floats, StepWindow


@dataclass(frozen=True, slots=True)
class NumericsLimits:
    """Thresholds with their reasons."""

    history: int = 32  # steps of history before anything is called a spike (128 are used when there are as many)
    history_most: int = 128
    level: int = 16  # steps that make the level a spike is compared with
    loss_z: float = 6.0  # robust z of the log-loss residual
    alone_z: float = 12.0  # without a gradient norm to confirm it: losses of single batches have heavy tails
    loss_ratio: float = 1.5  # and at least half as much again: tiny spreads make large z
    grad_z: float = 4.0  # confirms a loss spike
    grad_ratio: float = 10.0  # a gradient spike by itself is ten times the median
    near: int = 3  # steps between the gradient's spike and the loss's
    trend_steps: int = 120  # a divergence rises over so many steps,
    trend_ratio: float = 1.3  # by so much over the best level before
    growth_steps: int = 12  # memory must grow over so many samples (two a second),
    growth_bytes: float = 64e6  # by so much,
    growth_peers: float = 3.0  # and so many times faster than on the other ranks, to blame a rank


def nonfinite(window: StepWindow) -> tuple[Finding, ...]:
    """The first step with an inf or nan, and the ranks whose own numbers had it first."""
    bad = (window.nonfinite | window.nonfinite_norm).any(axis=1)
    if not bad.any():
        return ()
    row = int(np.argmax(bad))
    # A rank's loss is its own; a norm is mostly taken after the gradients were reduced, when all have the same.
    own = window.nonfinite[row] if window.nonfinite[row].any() else window.nonfinite_norm[row]
    columns = np.nonzero(own)[0]
    all_ranks = len(columns) == len(window.ranks)
    ranks = () if all_ranks and len(window.ranks) > 1 else tuple(window.ranks[column] for column in columns)
    step = int(window.steps[row])
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}" if ranks else "all ranks at once"
    return (
        Finding(
            kind="nonfinite",
            severity=Severity.CRITICAL,
            ranks=ranks,
            hosts=tuple(sorted({window.hosts[column] for column in columns})) if ranks else (),
            first_step=step,
            last_step=int(window.steps[-1]),
            detected_step=step,
            message=f"Loss or gradient norm became inf or nan in step {step} on {who}.",
            advice="Go back to the last checkpoint before this step; look at the batch and the device of the rank named.",
            evidence={"ranks_in_first_step": [window.ranks[column] for column in columns]},
        ),
    )


def _residuals(values: Floats, limits: NumericsLimits, least_ratio: float = 0.0) -> tuple[Floats, Floats]:
    """Robust z of log(value) and the ratio to the rolling median, per step; NaN without enough history.

    NaN also where the ratio can't reach `least_ratio`, because not even the ratio to the least value so far does: that
    is nearly everywhere, and medians of every step of every rank would cost the agent a core.
    """
    with np.errstate(all="ignore"):
        logs = np.log(values)
        least = np.minimum.accumulate(np.where(np.isfinite(logs), logs, np.inf))
        reachable = np.exp(logs[1:] - least[:-1]) > least_ratio
    z, ratio = np.full(len(values), np.nan), np.full(len(values), np.nan)
    for row in (np.flatnonzero(reachable) + 1).tolist():
        if row < limits.history:
            continue
        past = logs[max(0, row - limits.history_most) : row]
        past = past[np.isfinite(past)]
        if len(past) < limits.history or not np.isfinite(logs[row]):
            continue
        middle = np.median(past[-limits.level :])
        jumps = np.abs(np.diff(past))  # of neighbours: a falling loss must not widen the spread
        spread = max(1.4826 * float(np.median(jumps)) / np.sqrt(2), 1e-3)
        z[row], ratio[row] = (logs[row] - middle) / spread, np.exp(logs[row] - middle)
    return z, ratio


def spikes(window: StepWindow, limits: NumericsLimits = NumericsLimits()) -> tuple[Finding, ...]:
    """A jump of the loss or the gradient norm; ranks are named when only some of them jumped."""
    with np.errstate(all="ignore"):
        grad = np.where(np.isnan(window.grad_norm).all(axis=1), np.nan, np.nanmax(np.nan_to_num(window.grad_norm), axis=1))
    grad_z, grad_ratio = _residuals(grad, limits, limits.grad_ratio)
    known_grad = bool(np.isfinite(grad).any())
    jumped = np.zeros(window.shape, bool)
    ratios = np.full(window.shape, np.nan)
    for column in range(len(window.ranks)):
        z, ratios[:, column] = _residuals(window.loss[:, column], limits, limits.loss_ratio)
        with np.errstate(invalid="ignore"):
            jumped[:, column] = (z > (limits.loss_z if known_grad else limits.alone_z)) & (ratios[:, column] > limits.loss_ratio)
    with np.errstate(invalid="ignore"):
        grads_up = _residuals(grad, limits)[0] > limits.grad_z if jumped.any() else np.zeros(len(grad), bool)
    findings = []
    for row in np.nonzero(jumped.any(axis=1))[0]:
        near = slice(max(0, row - limits.near), row + limits.near + 1)
        if known_grad and not grads_up[near].any():
            continue
        columns = np.nonzero(jumped[row])[0]
        some = len(columns) <= len(window.ranks) // 2
        ranks = tuple(window.ranks[column] for column in columns) if some else ()
        findings.append(_spike("loss_spike", window, int(row), float(np.nanmax(ratios[row])), ranks))
        break
    with np.errstate(invalid="ignore"):
        rows = np.nonzero((grad_z > limits.loss_z) & (grad_ratio > limits.grad_ratio))[0]
    if len(rows) and not findings:
        findings.append(_spike("grad_spike", window, int(rows[0]), float(grad_ratio[rows[0]]), ()))
    return tuple(findings)


def _spike(kind: str, window: StepWindow, row: int, ratio: float, ranks: tuple[int, ...]) -> Finding:
    step = int(window.steps[row])
    what = "Loss" if kind == "loss_spike" else "Gradient norm"
    where = f" on rank {', '.join(map(str, ranks))} only" if ranks else ""
    return Finding(
        kind=kind,
        severity=Severity.WARNING,
        ranks=ranks,
        first_step=step,
        last_step=step,
        detected_step=step,
        message=f"{what} jumped to {ratio:.1f} times its median in step {step}{where}.",
        advice="Keep the checkpoint before this step; skip the data of these steps if the loss does not come back.",
        evidence={"ratio_to_median": ratio},
    )


def divergence(window: StepWindow, limits: NumericsLimits = NumericsLimits()) -> tuple[Finding, ...]:
    """The loss rises in every quarter of a long stretch and ends well above its best level."""
    rows = ~np.isnan(window.loss).all(axis=1)
    loss, steps = np.nanmedian(window.loss[rows], axis=1) if rows.any() else np.empty(0), window.steps[rows]
    if len(loss) < 2 * limits.trend_steps:
        return ()
    quarters = [float(np.median(part)) for part in np.array_split(loss[-limits.trend_steps :], 4)]
    block = limits.trend_steps // 4
    best = min(float(np.median(loss[at : at + block])) for at in range(0, len(loss) - limits.trend_steps, block))
    if not (quarters == sorted(quarters) and quarters[-1] > limits.trend_ratio * best > 0 and quarters[0] > best):
        return ()
    return (
        Finding(
            kind="divergence",
            severity=Severity.CRITICAL,
            first_step=int(steps[-limits.trend_steps]),
            last_step=int(steps[-1]),
            detected_step=int(steps[-1]),
            message=(
                f"The loss has risen for {limits.trend_steps} steps and is {quarters[-1] / best:.1f} times its best level."
            ),
            advice="Go back to the checkpoint before the rise with a lower learning rate.",
            evidence={"quarters": quarters, "best": best},
        ),
    )


def memory_growth(window: StepWindow, limits: NumericsLimits = NumericsLimits()) -> tuple[Finding, ...]:
    """Resident memory that grows steadily; ranks are named when they grow much faster than their peers."""
    slopes, grown = np.full(len(window.ranks), np.nan), np.full(len(window.ranks), np.nan)
    for column in range(len(window.ranks)):
        rows = ~np.isnan(window.rss_bytes[:, column]) & ~window.exempt
        rss, steps = window.rss_bytes[rows, column], window.steps[rows]
        if len(rss) < limits.growth_steps:
            continue
        parts = [float(np.median(part)) for part in np.array_split(rss, 5)]
        rises = np.diff(parts)
        if rises.min() <= 0.2 * rises.max() or parts[-1] - parts[0] < limits.growth_bytes:
            slopes[column], grown[column] = max(0.0, (parts[-1] - parts[0]) / max(1, int(steps[-1] - steps[0]))), 0.0
            continue
        slopes[column] = (rss[-1] - rss[0]) / max(1, int(steps[-1] - steps[0]))
        grown[column] = rss[-1] - rss[0]
    growing = np.nonzero(np.nan_to_num(grown) > 0)[0]
    if not len(growing):
        return ()
    others = [float(slopes[c]) for c in range(len(slopes)) if c not in growing and not np.isnan(slopes[c])]
    if others and float(slopes[growing].min()) < limits.growth_peers * max(others):
        return ()
    ranks = tuple(window.ranks[column] for column in growing)
    return (
        Finding(
            kind="memory_growth",
            severity=Severity.WARNING,
            ranks=ranks,
            hosts=tuple(sorted({window.hosts[column] for column in growing})),
            first_step=int(window.steps[0]),
            last_step=int(window.steps[-1]),
            detected_step=int(window.steps[-1]),
            message=(
                f"Memory of rank {', '.join(map(str, ranks))} grows by {slopes[growing].max() / 1e6:.1f} MB a step, "
                f"{grown[growing].max() / 1e6:.0f} MB so far, without a sign of levelling off."
            ),
            advice="Something keeps tensors or objects of past steps: hooks, logs, lists of losses not detached.",
            evidence={"bytes_per_step": float(slopes[growing].max()), "bytes_grown": float(grown[growing].max())},
        ),
    )
