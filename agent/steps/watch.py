"""Has ranks look for the module in which a number first stops being finite.

    a finding of SUSPICIOUS kinds, or `[numerics] watch = "always"`  -> watch_until_step in every control block
    the ranks (hooks.origin) write ORIGIN events                     -> detectors.origins names module, layer, microbatch

A rank whose own loss is not finite begins by itself; this part takes the others along, before a spike becomes worse.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ranksight.agent.config import NumericsSection
from ranksight.agent.parts import Part
from ranksight.agent.policy.control import ControlBlock

if TYPE_CHECKING:
    from ranksight.agent.observer import Observer

log = logging.getLogger(__name__)

SUSPICIOUS = frozenset({"nonfinite", "loss_spike", "grad_spike", "divergence"})
WATCH_STEPS = 50  # after the step in which the suspicion came up
ALWAYS, NEVER = (1 << 62) - 1, -1


class OriginWatch(Part):
    """Asks once for each new suspicion; rings that appear later are asked, too."""

    def __init__(self, config: NumericsSection) -> None:
        self._fixed = {"always": ALWAYS, "never": NEVER}.get(config.watch)
        self._until = self._fixed or 0
        self._suspicions: set[tuple[str, int | None]] = set()
        self._asked: dict[int, int] = {}  # number of the ring -> until

    def roll(self, observer: Observer, now_ns: int) -> None:
        """Look for new suspicions, and ask the ranks that have not been asked."""
        current = [source for source in observer.current() if not source.released]
        if self._fixed is None:
            self._suspect(observer, max((source.reader["step"] for source in current), default=0))
        for source in current:
            if self._asked.get(source.number, 0) != self._until:
                self._asked[source.number] = self._until
                try:
                    block = ControlBlock(source.reader.path)
                    block["watch_until_step"] = self._until
                    block.close()
                except OSError as error:
                    log.warning("rank %d can't be asked to watch its modules: %s", source.rank, error)

    def _suspect(self, observer: Observer, step: int) -> None:
        found = {
            (finding.kind, finding.first_step) for finding in observer.slowdowns.findings if finding.kind in SUSPICIOUS
        }
        if found - self._suspicions:
            self._suspicions |= found
            self._until = max(self._until, step + WATCH_STEPS)
