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
CAUSES = ("compute", "input", "gc", "cpu_contention", "io", "memory", "unknown")


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
