"""Keeps the tap within its budget: looks at what it costs every rank, and asks for less or more detail.

    ring headers --every WINDOW_NS--> Window per rank -> Governor -> Change -> detail_wanted in every control block
    report.json <- "detail"     metrics <- budget, changes     findings <- one remark that lists the changes

The ranks take the new level in at the end of their step. What a level withholds is counted by the ranks and said by
the completeness of the report. A rank that never trains is never measured. The Python hooks cost besides what the tap
costs; no level of detail changes that, so it is said and does not lower the level.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ranksight.agent.catalog import BY_NAME
from ranksight.agent.config import OverheadSection
from ranksight.agent.export.exposition import Block
from ranksight.agent.findings import Finding, Severity
from ranksight.agent.overhead.governor import Change, Governor, Window, name
from ranksight.agent.parts import Part
from ranksight.agent.policy.control import ControlBlock
from ranksight.hooks.wire import Detail

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer, Source

log = logging.getLogger(__name__)

WINDOW_NS = 10_000_000_000
MAX_CHANGES = 50  # kept; all are counted


@dataclass(frozen=True, slots=True)
class _Reading:
    at_ns: int
    tap_ns: int
    operations: int


class DetailKeeper(Part):
    """One governor for all ranks of the host."""

    def __init__(self, config: OverheadSection) -> None:
        self.governor = Governor(config.budget)
        self.changes: list[Change] = []
        self.lowered = self.raised = 0
        self._asked = False
        self._readings: dict[int, _Reading] = {}  # by number of the ring
        self._looked_ns = 0
        self._finding: tuple[Finding, ...] = ()

    def roll(self, observer: Observer, now_ns: int) -> None:
        """Once a window: measure, decide, ask. Rings that appear later are asked with the next window."""
        if now_ns - self._looked_ns < WINDOW_NS:
            return
        first, self._looked_ns = not self._looked_ns, now_ns
        training = [source for source in observer.current() if source.reader["step"] >= 0 and not source.released]
        if first and training:
            self.governor.level = Detail(max(source.reader["detail"] for source in training))
        windows = self._windows(training, now_ns)
        change = self.governor.update(windows, max((source.reader["step"] for source in training), default=0))
        if change is not None:
            self._note(change)
        if self._asked:
            self._ask(training)

    def findings(self) -> Iterable[Finding]:
        """One remark with all changes."""
        return self._finding

    def sections(self, observer: Observer) -> dict[str, Any]:
        """What is in force, why, and the budget; `fractions` of the ranks are those of the last window."""
        return {
            "detail": {
                "level": name(self.governor.level),
                "budget": self.governor.budget,
                "lowered": self.lowered,
                "raised": self.raised,
                "changes": [change.sentence(self.governor.budget) for change in self.changes],
            }
        }

    def blocks(self, observer: Observer) -> Iterator[Block]:
        """The budget, and how often the level moved."""
        yield Block(BY_NAME["ranksight_overhead_budget_ratio"], [()], [self.governor.budget])
        yield Block(BY_NAME["ranksight_detail_changes_total"], [("lower",), ("raise",)], [self.lowered, self.raised])

    def _windows(self, training: list[Source], now_ns: int) -> list[Window]:
        """What has happened since the last look, of ranks that were looked at before."""
        windows = []
        for source in training:
            reader = source.reader
            operations = reader["collectives_count"] + reader["collectives_skipped"]
            new = _Reading(now_ns, reader["tap_cost_ns"], operations)
            old = self._readings.get(source.number)
            self._readings[source.number] = new
            if old is not None and new.at_ns > old.at_ns:
                spent = new.tap_ns - old.tap_ns
                windows.append(Window(source.rank, new.at_ns - old.at_ns, spent, new.operations - old.operations))
        return windows

    def _note(self, change: Change) -> None:
        self._asked = True
        lower = change.after > change.before
        self.lowered += lower
        self.raised += not lower
        self.changes = [*self.changes, change][-MAX_CHANGES:]
        sentence = change.sentence(self.governor.budget)
        log.info("%s", sentence)
        self._finding = (
            Finding(
                kind="incomplete_data",
                severity=Severity.INFO,
                message=" ".join(kept.sentence(self.governor.budget) for kept in self.changes[-3:]),
                advice="Raise `budget` in `[overhead]` of the configuration, or accept samples and counters.",
                evidence={"level": name(self.governor.level), "lowered": self.lowered, "raised": self.raised},
            ),
        )

    def _ask(self, sources: list[Source]) -> None:
        """Store the level wherever another one is in force."""
        for source in sources:
            if source.reader["detail"] == self.governor.level:
                continue
            try:
                block = ControlBlock(source.reader.path)
                block["detail_wanted"] = self.governor.level
                block.close()
            except OSError as error:
                log.warning("rank %d can't be asked for its detail: %s", source.rank, error)
