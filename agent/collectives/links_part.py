"""Watches the channels of the job for slow links: `Channels` filled from joined instances, judged once a second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ranksight.agent.collectives.channels import Channels
from ranksight.agent.detectors.links import slow_link
from ranksight.agent.findings import Finding
from ranksight.agent.parts import Part
from ranksight.agent.steps.table import WARM_UP_STEPS

if TYPE_CHECKING:
    from ranksight.agent.collectives.measures import Split
    from ranksight.agent.collectives.timeline import Joined
    from ranksight.agent.observer import Observer

INTERVAL_NS = 1_000_000_000
STEPS = 64  # whose median is the length of a step


class Links(Part):
    """Latches one finding per set of ranks."""

    def __init__(self) -> None:
        self.channels = Channels()
        self._joined: list[Joined] = []
        self._latched: dict[tuple[int, ...], Finding] = {}
        self._judged_ns = 0

    def add_joined(self, joined: Joined, split: Split) -> None:
        """Keep them for `roll`, which knows the groups."""
        self._joined.append(joined)

    def roll(self, observer: Observer, now_ns: int) -> None:
        """Judge, at most once a second."""
        for joined in self._joined:
            self.channels.add(joined, observer.registry)
        self._joined.clear()
        if now_ns - self._judged_ns < INTERVAL_NS:
            return
        self._judged_ns = now_ns
        window = observer.step_table.window(STEPS)
        if window is None or np.isnan(window.duration).all():
            return
        step_seconds = float(np.nanmedian(window.duration))
        warm = observer.step_table.first_step() + WARM_UP_STEPS
        for finding in slow_link(self.channels.all(), step_seconds, warm, observer.host.crowded):
            old = self._latched.get(finding.ranks)
            seconds = observer.step_table.seconds_since(finding.first_step, now_ns)
            self._latched[finding.ranks] = (
                replace(finding, detection_seconds=seconds)
                if old is None
                else replace(
                    finding, first_step=old.first_step, detected_step=old.detected_step,
                    detection_seconds=old.detection_seconds,
                )
            )  # fmt: skip

    def findings(self) -> Iterable[Finding]:
        """Slow links found so far."""
        return self._latched.values()
