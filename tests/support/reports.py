"""A report with every section filled, by the schema that docs and pages hold on to."""

from __future__ import annotations

from typing import Any

from ranksight.agent.findings import Finding, Severity
from ranksight.agent.report.verdict import judge


def tail(scale: float) -> dict[str, float]:
    return {"p50": scale, "p95": 2 * scale, "p99": 3 * scale, "p999": 4 * scale, "max": 5 * scale}


def full(ranks: int = 4, steps: int = 40) -> dict[str, Any]:
    """A straggler among `ranks` ranks; numbers follow from the rank, so that none can stand for another."""
    finding = Finding(
        kind="straggler", severity=Severity.CRITICAL, cause="compute", ranks=(1,), hosts=("h0",), call_site="train.py:12 main",
        message="Rank 1 is late: 0.2 s a step <script>alert(1)</script>.", advice="Look at its host.", first_step=20,
        last_step=39, detected_step=27, detection_seconds=2.5, cost_seconds=4.25, evidence={"late_seconds": [0.1, 0.2]},
    )  # fmt: skip
    parts = ["data", "forward", "backward", "optimizer", "transfer", "wait", "bubble", "checkpoint", "pause", "other"]
    return {
        "schema": 1,
        "run": {"id": "run-7", "exit_code": 0, "world_size": ranks, "steps": steps, "tap": "native"},
        "verdict": judge((finding,), ranks, steps).to_json(),
        "findings": [finding.to_json()],
        "completeness": {
            "ranks_expected": ranks, "ranks_seen": ranks, "ranks_silent": [], "records_written": 1000,
            "records_captured": 999, "records_dropped": 1, "records_skipped": 0, "events_dropped": 0,
            "instances_incomplete": 0, "instances_partial": 0, "operations_folded": 0, "per_rank": [],
            "notes": ["rank 0: no <compiler>"],
        },
        "collectives": {
            "by_op": [
                {
                    "axis": axis, "op": "all_reduce", "count": 100 + at, "unfinished": 0, "upper_bound": 0, "bytes": 1 << 20,
                    "duration_seconds": tail(0.011 + at), "wait_seconds": tail(0.007 + at),
                    "transfer_seconds": tail(0.003 + at), "skew_seconds": tail(0.005), "wait_seconds_total": 1.0,
                    "transfer_seconds_total": 1.0, "exposed_seconds_total": None, "exposed_unknown": 0, "instances": 25,
                    "algbw_bytes_per_second": 1e6, "busbw_bytes_per_second": 1.5e6,
                }
                for at, axis in enumerate(("dp", "tp"))
            ],
            "by_size": [], "in_flight": [],
            "blame_seconds": {axis: {str(rank): rank + 0.25 for rank in range(ranks)} for axis in ("dp", "tp")},
        },
        "steps": {
            "per_rank": [
                {
                    "rank": rank, "steps": steps, "last_step": steps - 1, "seconds": tail(0.1 + rank / 1000), "loss": 2.5 + rank,
                    "grad_norm": 1.0, "samples": 8, "tokens": 512, "job_tokens": 2048.0, "step_seconds": 4.0, "exception": None,
                }
                for rank in range(ranks)
            ]
        },
        "history": {
            "width": 1, "steps": list(range(steps)), "ranks": ranks,
            "seconds": {"mean": [0.1] * steps, "max": [0.2] * steps, "nonfinite": [0] * steps},
            "loss": {"mean": [3.0] * (steps - 1) + [None], "max": [3.5] * (steps - 1) + [None], "nonfinite": [0] * (steps - 1) + [1]},
            "grad_norm": None,
        },
        "overhead": {"hook_seconds": 0.1, "fraction": 0.005, "per_rank": [], "agent_seconds": 0.5},
        "ranks": [],
        "budget": {
            "parts": parts,
            "per_rank": [
                {
                    "rank": rank, "steps": steps, "seconds": {part: at + rank / 10 for at, part in enumerate(parts)},
                    "other_fraction": 0.01, "distribution": {part: tail(0.01) for part in parts},
                }
                for rank in range(ranks)
            ],
            "per_axis": [], "per_stage": [], "phases": [],
        },
        "pipeline": {
            "schedule": "1F1B", "stages": 2, "microbatches": 4, "per_stage": [], "balance": 0.875, "saving_seconds_per_step": 0.0625,
            "per_rank": [
                {
                    "rank": rank, "fraction": 0.125, "distribution": {"measured": tail(0.03)},
                    "bubble": {
                        "measured": 0.5 + rank, "ideal": 0.25, "excess": 0.25 + rank,
                        "causes": {"warmup_cooldown": 0.25, "stage_imbalance": 0.125, "transfer": None, "other": rank + 0.125},
                    },
                }
                for rank in range(ranks)
            ],
            "last_step": {
                "step": steps - 1,
                "actions": [
                    {
                        "rank": rank, "stage": rank % 2, "microbatch": mb, "action": action,
                        "begin": 5.0 + mb + at / 2, "end": 5.4 + mb + at / 2,
                    }
                    for rank in range(ranks) for mb in range(4) for at, action in enumerate(("forward", "backward"))
                ],
            },
        },
        "experts": {
            "layers": [
                {
                    "layer": 1, "axis": "ep", "tokens_per_expert": [], "max_over_mean": 1.75, "cv": 0.5, "entropy": 0.875, "gini": 0.25,
                    "max_vio": 0.75, "dead": [3], "dropped": 0,
                }
            ],
            "ranks": [
                {"rank": rank, "tokens": 100 + rank, "imbalance": 1.0, "seconds_per_token": 1e-4, "slow_because": None}
                for rank in range(ranks)
            ],
            "lost_seconds_per_step": 0.03125, "folded": 0,
        },
        "goodput": {
            "wall_seconds": 100.0, "ettr": 0.75, "tokens": 1000, "useful_tokens": 900, "tokens_per_second": 10.0,
            "samples_per_second": 1.0, "mfu": None,
            "buckets": {
                "startup": 10.0, "productive": 75.0, "wasted": 5.0, "checkpoint": 4.0, "stall": 3.0, "restart": 2.0, "other": 1.0,
            },
            "cost": {
                "price_per_rank_hour": 2.0, "total": 0.5, "per_useful_million_tokens": 555.5, "lost_by_cause": {"straggler": 0.125},
            },
            "checkpoint_advice": {},
        },
        "stop": {
            "state": "stopped", "decision": "d1", "step": 39, "action": "checkpoint_and_stop", "reason": "a straggler", "finding": 0,
            "acknowledged": [0, 1, 2, 3], "exit_code": 75, "evidence_dir": "evidence",
        },
    }  # fmt: skip
