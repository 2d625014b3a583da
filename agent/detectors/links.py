"""`slow_link`: transfers between certain ranks are slow, while others of the same kind are not.

    Channels -> slow channels (against the others of their family) -> the rank or pair that they have in common

Sizes and operations being the same, channels of one axis should take equally long. One that takes several times as long
again and again has a slow link under it. A rank whose channels are slow on several axes has a slow network card; two
ranks with one slow channel have a slow path between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ranksight.agent.collectives.channels import Channel
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.steps.window import Floats, median_of_others


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Thresholds with their reasons."""

    looks: int = 10  # the last looks at a channel,
    steps: int = 8  # over so many steps: several looks at one step are no persistence
    factor: float = 3.0  # three of four of them as slow as this, against the others of the family
    own_factor: float = 2.0  # and against its own past, when the family has only one other to compare with
    step_fraction: float = 0.05  # of the step lost on it
    extreme: float = 10.0  # times the others: no busy host does that
    floor_seconds: float = 0.002  # a busy host makes a transfer a millisecond late by itself


@dataclass(frozen=True, slots=True)
class _Slow:
    channel: Channel
    seconds: float  # a quarter of the recent looks is faster
    usual: float  # of the others
    per_step: float  # transfers


def slow_link(
    channels: Sequence[Channel],
    step_seconds: float,
    warm_step: int,
    crowded: bool = False,
    limits: LinkLimits = LinkLimits(),
) -> tuple[Finding, ...]:
    """At most one finding. Looks before `warm_step` don't count: connections are made when they are first used.

    On a crowded host completions are late by themselves: it is a remark unless the difference is extreme.
    """
    families: dict[tuple[str, str, int], list[Channel]] = defaultdict(list)
    for channel in channels:
        looks = channel.samples
        if len(looks) < limits.looks:
            continue
        oldest = looks[-limits.looks].step
        if oldest >= warm_step and looks[-1].step - oldest >= limits.steps:
            families[channel.family].append(channel)
    slow = [
        found
        for members in families.values()
        if len(members) > 1
        for found in _judge(members, step_seconds, warm_step, limits)
    ]
    judged = [channel for members in families.values() if len(members) > 1 for channel in members]
    ranks = _common(slow, judged)
    if not ranks:
        return ()
    worst = max(slow, key=lambda one: (one.seconds - one.usual) * one.per_step)
    lost = (worst.seconds - worst.usual) * worst.per_step
    last = worst.channel.samples[-1].step
    first = _onset(worst, limits)
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return (
        Finding(
            kind="slow_link",
            severity=Severity.INFO if crowded and worst.seconds < limits.extreme * worst.usual else Severity.WARNING,
            ranks=ranks,
            group=worst.channel.group,
            op=worst.channel.op,
            first_step=first,
            last_step=last,
            detected_step=last,
            cost_seconds=lost * (last - first + 1),
            message=(
                f"Transfers of {who} are slow: {worst.channel.op} on {worst.channel.axis or worst.channel.group} takes "
                f"{1e3 * worst.seconds:.1f} ms, the same between other ranks {1e3 * worst.usual:.1f} ms."
            ),
            advice=(
                "Look at the network card, cable and switch port of this host."
                if len(ranks) == 1
                else "Look at the path between these ranks: cable, switch port, route."
            ),
            evidence={
                "transfer_seconds": worst.seconds,
                "transfer_seconds_of_others": worst.usual,
                "lost_seconds_per_step": lost,
                "slow_channels": [
                    {"axis": one.channel.axis, "op": one.channel.op, "ranks": list(one.channel.ranks)} for one in slow[:16]
                ],
            },
        ),
    )


def _judge(members: list[Channel], step_seconds: float, warm_step: int, limits: LinkLimits) -> list[_Slow]:
    """The channels of one family that are slow against the others of it. All at once: this runs every second."""
    recent = np.array([[look.seconds for look in islice(reversed(one.samples), limits.looks)] for one in members])
    ordered = np.sort(recent, axis=1)
    seconds = _quantile(ordered, 0.25)
    usual = median_of_others(_quantile(ordered, 0.5)[None])[0]
    return [
        _Slow(members[at], float(seconds[at]), float(usual[at]), per_step)
        for at in np.flatnonzero(seconds >= limits.factor * usual).tolist()
        if (per_step := _per_step(members[at], limits))
        and (seconds[at] - usual[at]) * per_step >= max(limits.step_fraction * step_seconds, limits.floor_seconds)
        and (len(members) > 2 or _was_faster(members[at], float(seconds[at]), warm_step, limits))
    ]


def _quantile(ordered: Floats, share: float) -> Floats:
    """A quantile of each sorted row, between its neighbours in proportion, as np.quantile gives it."""
    place = share * (ordered.shape[1] - 1)
    low = int(place)
    high = min(low + 1, ordered.shape[1] - 1)
    mixed: Floats = ordered[:, low] + (place - low) * (ordered[:, high] - ordered[:, low])
    return mixed


def _per_step(channel: Channel, limits: LinkLimits) -> float:
    """Transfers of a channel in each of the recent steps."""
    recent = list(channel.samples)[-limits.looks :]
    return sum(look.transfers for look in recent[1:]) / max(1, recent[-1].step - recent[0].step)


def _was_faster(channel: Channel, seconds: float, warm_step: int, limits: LinkLimits) -> bool:
    past = [look.seconds for look in channel.samples if look.step >= warm_step][: -limits.looks]
    return len(past) >= limits.looks and seconds >= limits.own_factor * float(np.median(past))


def _common(slow: Sequence[_Slow], judged: Sequence[Channel]) -> tuple[int, ...]:
    """The ranks that the slow channels have in common; empty when they have none, or it is everybody."""
    if not slow:
        return ()
    common = set(slow[0].channel.ranks).intersection(*(one.channel.ranks for one in slow[1:]))
    if not common or common >= {rank for channel in judged for rank in channel.ranks}:
        return ()
    # Of those in common the ones that have no channel which is as it should be, in the families that show the fault.
    families = {one.channel.family for one in slow}
    bad = [one.channel for one in slow]
    well = {rank for channel in judged if channel.family in families and channel not in bad for rank in channel.ranks}
    return tuple(sorted(common - well or common))


def _onset(worst: _Slow, limits: LinkLimits) -> int:
    """The first step of the last run of looks that were slow."""
    first = worst.channel.samples[-1].step
    for look in reversed(worst.channel.samples):
        if look.seconds < limits.factor * worst.usual * 0.5:
            break
        first = look.step
    return first
