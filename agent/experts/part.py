"""The part of the agent that looks at experts.

EXPERTS, DROPPED events    -> Layers   tokens per expert and layer, where the trainer says them
once a second              -> detectors.experts -> findings, latched
report.json <- "experts"   metrics <- tokens, balance, dead experts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ranksight.agent.detectors import experts as detectors
from ranksight.agent.experts import series
from ranksight.agent.experts.layers import Layers, LayerView
from ranksight.agent.experts.ranks import RankLoads, left_by_all
from ranksight.agent.export.exposition import Block
from ranksight.agent.findings import Finding
from ranksight.agent.parts import Part
from ranksight.hooks import wire

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer, Source
    from ranksight.agent.reading.reader import Batch

INTERVAL_NS = 1_000_000_000
_SAID = np.zeros(1 << 16, bool)
_SAID[[wire.EventKind.EXPERTS, wire.EventKind.DROPPED]] = True
Detector = Callable[[Sequence[LayerView]], tuple[Finding, ...]]
DETECTORS: tuple[Detector, ...] = (
    detectors.collapsed_routers, detectors.dead_experts, detectors.dropped_tokens,
)  # fmt: skip


class Experts(Part):
    """One for all ranks of the host."""

    def __init__(self) -> None:
        self.layers = Layers()
        self.loads = RankLoads()
        self._latched: dict[str, Finding] = {}
        self._judged_ns = 0

    def add(self, source: Source, batch: Batch) -> None:
        """See Part.add."""
        self.loads.add(source, batch)
        if len(batch.events):
            said = np.flatnonzero(_SAID[batch.events["kind"]])
            if len(said):
                self._add_said(source, batch, said)

    def roll(self, observer: Observer, now_ns: int) -> None:
        """Fold the steps that are over, and judge; at most once a second."""
        if now_ns - self._judged_ns < INTERVAL_NS:
            return
        self._judged_ns = now_ns
        self.loads.fold(observer, left_by_all(observer))
        self._judge(observer, now_ns)

    def close(self, observer: Observer, now_ns: int) -> None:
        """See Part.close."""
        self.loads.fold(observer, max((source.reader["step"] for source in observer.current()), default=-1))
        self._judge(observer, now_ns)

    def findings(self) -> Iterable[Finding]:
        """See Part.findings."""
        return self._latched.values()

    def sections(self, observer: Observer) -> dict[str, Any]:
        """The load of layers that a trainer speaks of, and of ranks that exchange tokens; nothing without either."""
        views, groups = self.layers.views(), self.loads.groups()
        if not views and not groups:
            return {}
        layers = [series.layer_row(view) for view in views]
        lost = series.spread(self.loads.lost_per_step())
        section = {
            "layers": layers,
            "folded": self.layers.folded_layers,
            "lost_seconds_per_step": lost and lost["mean"],
            "lost": lost,
            "ranks": series.rank_rows(groups),
            "groups": [series.group_row(view) for view in groups],
            "unmatched": self.loads.unmatched,
        }
        return {"experts": section}

    def blocks(self, observer: Observer) -> Iterator[Block]:
        """See Part.blocks."""
        yield from series.layer_blocks(self.layers.views(), self.layers.folded_layers)
        yield from series.rank_blocks(self.loads)

    def _add_said(self, source: Source, batch: Batch, at: np.ndarray) -> None:
        rank, generation = source.rank, source.reader["generation"]
        events = batch.events
        for row in at.tolist():
            event = events[row]
            layer, step, count = int(event["layer"]), int(event["step"]), int(event["n_values"])
            if step < 0 or not self.layers.wants(rank, generation, layer):
                continue
            inline = event["values"][:count]
            if event["kind"] == wire.EventKind.DROPPED:
                self.layers.add_dropped(rank, layer, step, float(inline.sum()))
                continue
            extra = batch.event_extras.get(int(event["ticket"]))
            tokens = inline if extra is None else np.concatenate((event["values"], extra))[:count]
            if len(tokens) == count:  # else a part of it was overwritten
                self.layers.add(rank, generation, layer, step, tokens)

    def _judge(self, observer: Observer, now_ns: int) -> None:
        views = self.layers.views()
        for detect in DETECTORS:
            for finding in detect(views):
                old = self._latched.get(finding.kind)
                if old is None:
                    seconds = observer.step_table.seconds_since(finding.first_step, now_ns)
                    self._latched[finding.kind] = replace(finding, detection_seconds=seconds)
                elif old.last_step != finding.last_step:
                    self._latched[finding.kind] = replace(
                        finding, first_step=old.first_step, detected_step=old.detected_step,
                        detection_seconds=old.detection_seconds,
                    )  # fmt: skip
