"""Every way to spread the work gives the losses and gradient norms of one process.

The one process runs the same model, recipe and data, without any wrapper. In f64 only the order of additions may
differ; the per-expert loads, counted in whole tokens, must agree exactly.
"""

from __future__ import annotations

from typing import Any

import pytest

from ranksight.trainer.train import Report
from tests.trainer.forked import run_forked
from tests.trainer.tasks import config, train

pytestmark = pytest.mark.ranks

COMBINED = {"pp": 2, "dp": 2, "tp": 2, "ep": 4}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp": {"dp": 2},
    "ep": {"dp": 2, "ep": 2},
    "tp": {"tp": 2},
    "tp-ep": {"tp": 2, "ep": 2},
    "pp-1f1b": {"pp": 2},
    "pp-gpipe": {"pp": 2, "schedule": "GPipe"},
    "pp-interleaved": {"pp": 2, "schedule": "Interleaved1F1B"},
    "pp-breadth-first": {"pp": 2, "schedule": "LoopedBFS"},
    "pp-zero-bubble": {"pp": 2, "schedule": "InterleavedZeroBubble"},
    "pp-zbv": {"pp": 2, "schedule": "ZBVZeroBubble"},
    "pp-dualpipev": {"pp": 2, "schedule": "DualPipeV", "microbatches": 4},
    "combined": COMBINED,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "combined-zbv": {**COMBINED, "schedule": "ZBVZeroBubble"},
    "combined-ep2-interleaved": {**COMBINED, "ep": 2, "schedule": "Interleaved1F1B"},
    "replicate": {"dp": 2, "tp": 2, "ep": 2, "data_parallel": "replicate"},
    "replicate-pp": {"pp": 2, "dp": 2, "data_parallel": "replicate"},
    "recompute-ep": {"dp": 2, "ep": 2, "recompute": True},
    "recompute-zbv": {"pp": 2, "dp": 2, "ep": 2, "recompute": True, "schedule": "ZBVZeroBubble"},
    "aux-loss-tp": {"dp": 2, "tp": 2, "ep": 2, "balance": "aux"},
    "aux-loss-zbv": {"pp": 2, "dp": 2, "ep": 2, "balance": "aux", "schedule": "ZBVZeroBubble"},
}
REQUIRED_IN_F32 = ("dp", "ep", "tp-ep", "pp-1f1b", "pp-interleaved", "pp-zero-bubble", "pp-zbv", "combined")

_references: dict[tuple[Any, ...], list[Report]] = {}


def one_process(**options: Any) -> list[Report]:
    """The same recipe without any parallelism; every recipe runs once."""
    recipe = {key: value for key, value in options.items() if key in ("steps", "precision", "microbatches", "balance")}
    key = tuple(sorted(recipe.items()))
    if key not in _references:
        (_references[key],) = run_forked(train, 1, config(**recipe))
    return _references[key]


def many_ranks(**options: Any) -> list[Report]:
    """Reports of rank 0; all ranks must say the same, but for the time."""
    run = config(**options)
    everyone = run_forked(train, run.plan.world_size, run)
    for reports in everyone:
        assert [(r.loss, r.grad_norm, r.aux_loss) for r in reports] == [
            (r.loss, r.grad_norm, r.aux_loss) for r in everyone[0]
        ]
    return list(everyone[0])


def worst(reports: list[Report], reference: list[Report], what: str) -> float:
    """Largest difference over the steps."""
    differences = [abs(getattr(a, what) - getattr(b, what)) for a, b in zip(reports, reference, strict=True)]
    return float(max(differences))


@pytest.mark.parametrize("name", [*LAYOUTS, *VARIANTS])
def test_f64_over_6_steps(name: str) -> None:
    options = {"steps": 6, "precision": "f64", **(LAYOUTS | VARIANTS)[name]}
    reports, reference = many_ranks(**options), one_process(**options)
    for what in ("loss", "grad_norm", "aux_loss"):
        assert worst(reports, reference, what) <= 1e-12, what
    assert worst(reports, reference, "max_over_mean") == 0.0
    assert (reports[-1].aux_loss > 0) == ("aux" in name)


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUIRED_IN_F32)
def test_f32_over_25_steps(name: str) -> None:
    options = {"steps": 25, "precision": "f32", **LAYOUTS[name]}
    reports, reference = many_ranks(**options), one_process(**options)
    assert worst(reports, reference, "loss") <= 5e-6
    assert worst(reports, reference, "grad_norm") <= 5e-6
    assert reports[-1].loss < reports[0].loss - 1.5


@pytest.mark.slow
def test_bf16_trains_with_every_axis() -> None:
    options = {"steps": 6, "precision": "bf16", **COMBINED}
    reports, reference = many_ranks(**options), one_process(**options | {"precision": "f32"})
    assert worst(reports, reference, "loss") < 2e-2  # eight bits of mantissa
    assert reports[-1].loss < reports[0].loss - 0.3
