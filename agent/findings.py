"""What ranksight says when something is wrong: one finding per fault, with the fields of report.json.

Detectors make findings; the observer latches them (one per fault, first detection kept), policy acts on them, and the
report prints them. `CATEGORIES` is the whole vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

CATEGORIES: dict[str, tuple[str, ...]] = {
    "process": ("rank_dead", "rank_frozen"),
    "hang": ("rank_not_joined", "collective_stuck", "deadlock", "data_exhausted"),
    "desync": ("collective_mismatch", "collective_skipped", "replica_desync"),
    "slow": (
        "straggler", "pause", "input_stall", "slow_link", "slow_network", "cpu_oversubscribed", "regression",
    ),
    "imbalance": ("stage_imbalance", "workload_imbalance", "expert_imbalance", "dead_expert", "router_collapse"),
    "numerics": ("nonfinite", "loss_spike", "grad_spike", "divergence"),
    "checkpoint": ("checkpoint_incomplete", "checkpoint_stall", "resume_mismatch"),
    "resources": ("memory_growth",),
    "observer": ("incomplete_data",),
}  # fmt: skip
CATEGORY_OF = {kind: category for category, kinds in CATEGORIES.items() for kind in kinds}
MEANINGS: dict[str, str] = {
    "rank_dead": "A process of the job died, or an exception left its main thread, before anything else failed.",
    "rank_frozen": "A process lives but its Python does not run: stopped (state T), or something holds the GIL.",
    "rank_not_joined": "Some ranks wait in a collective that the named ranks have not called.",
    "collective_stuck": "All ranks joined a collective and it does not complete.",
    "deadlock": "Ranks wait for each other in a cycle over groups or point-to-point operations.",
    "data_exhausted": "A rank ran out of batches and left the loop while the others go on.",
    "collective_mismatch": "Ranks met in one collective with different operation, shape, dtype, reduction or root.",
    "collective_skipped": "A rank left out (or added) a collective; later ones pair up wrongly, perhaps silently.",
    "replica_desync": "Parameters that should be the same on several ranks are not.",
    "straggler": "A rank is late step after step and all wait for it.",
    "pause": "A few long gaps of one rank, or of several in turn.",
    "input_stall": "A gap spent in the input of the rank.",
    "slow_link": "Transfers between certain ranks are slow.",
    "slow_network": "Transfers of all ranks got slower while their own work did not.",
    "cpu_oversubscribed": "The host runs more threads than it has cores; all its ranks suffer.",
    "regression": "The work of all ranks got slower at once.",
    "stage_imbalance": "A pipeline stage is busy longer than the others on all its replicas.",
    "workload_imbalance": "In most steps some rank is late, each time another one.",
    "expert_imbalance": "The experts of a rank get more than their share of tokens, and that costs time.",
    "dead_expert": "An expert has had no tokens for a long time.",
    "router_collapse": "The router sends nearly all tokens to one place.",
    "nonfinite": "A loss or gradient norm is inf or nan.",
    "loss_spike": "The loss jumped.",
    "grad_spike": "The gradient norm jumped.",
    "divergence": "The loss rises and does not come back.",
    "checkpoint_incomplete": "A checkpoint is not whole.",
    "checkpoint_stall": "Writing a checkpoint takes far longer than it did.",
    "resume_mismatch": "What was loaded does not continue what was saved.",
    "memory_growth": "Resident memory only grows.",
    "incomplete_data": "ranksight did not see everything: records dropped, ranks silent, a tap missing.",
}
# In the vocabulary, and not looked for by this version: their absence from a report says nothing.
NOT_DETECTED: frozenset[str] = frozenset()
CAUSES = ("compute", "input", "gc", "cpu_contention", "io", "memory", "unknown")


def markdown() -> str:
    """The table of finding kinds in docs/findings.md."""
    lines = ["| category | kind | meaning | looked for |", "|---|---|---|---|"]
    for kind, meaning in MEANINGS.items():
        lines.append(f"| {CATEGORY_OF[kind]} | `{kind}` | {meaning} | {'no' if kind in NOT_DETECTED else 'yes'} |")
    return "\n".join(lines) + "\n"


class Severity(StrEnum):
    """How bad; everything above INFO makes a verdict unhealthy."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def order(self) -> int:
        """0 for info, 2 for critical."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault. Ranks are global ranks of the culprits, not of the victims; steps count from 0; None is unknown."""

    kind: str
    severity: Severity
    message: str
    advice: str
    cause: str | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    group: str | None = None
    stage: int | None = None
    layer: int | None = None
    experts: tuple[int, ...] = ()
    op: str | None = None
    group_seq: int | None = None
    call_site: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    detected_step: int | None = None
    detection_seconds: float | None = None
    cost_seconds: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    action: str = "observe"

    def __post_init__(self) -> None:
        if self.kind not in CATEGORY_OF:
            raise ValueError(f"finding kind {self.kind!r} is not one of {sorted(CATEGORY_OF)}")
        if self.cause is not None and self.cause not in CAUSES:
            raise ValueError(f"cause {self.cause!r} of {self.kind} is not one of {CAUSES}")

    @property
    def category(self) -> str:
        """The category that the kind belongs to."""
        return CATEGORY_OF[self.kind]

    def to_json(self) -> dict[str, Any]:
        """The object that stands in report.json."""
        return {"kind": self.kind, "category": self.category, "severity": str(self.severity)} | {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if key not in {"kind", "severity"}
        }


if __name__ == "__main__":
    print(markdown(), end="")
