"""The result of a what-if analysis as JSON for programs and as text for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ranksight.agent.whatif.attribution import Effect, WhatIf
from ranksight.agent.words import numbers_in_words

SHOWN = 8  # rows of a table for people; JSON has all of them


def to_json(result: WhatIf) -> dict[str, Any]:
    """Schema 1. Steps are parallel lists in the order of `steps.number`; shares are null when nothing is lost."""
    return {
        "schema": 1,
        "workers": len(result.by_worker),
        "dp_size": result.dp_size,
        "stages": len(result.by_stage),
        "operations": result.operations,
        "recorded_seconds": result.recorded_seconds,
        "replayed_seconds": result.replayed_seconds,
        "ideal_seconds": result.ideal_seconds,
        "slowdown": result.slowdown,
        "wasted_share": result.wasted_share,
        "launch_slowdown": result.launch_slowdown,
        "m_w": result.slowest_workers.regained,
        "m_s": result.last_stage.regained,
        "slowest_workers": _effect("ranks", result.slowest_workers),
        "last_stage": _effect("stage", result.last_stage),
        "by_type": [_effect("type", effect) for effect in result.by_type],
        "by_dp_rank": [_effect("dp_rank", effect) for effect in result.by_dp],
        "by_stage": [_effect("stage", effect) for effect in result.by_stage],
        "by_worker": [
            {"dp_rank": worker.dp, "stage": worker.stage, "heat": worker.heat} | _effect("rank", worker.effect)
            for worker in result.by_worker
        ],
        "steps": {
            "number": list(result.steps),
            "recorded_seconds": list(result.step_recorded_seconds),
            "replayed_seconds": list(result.step_replayed_seconds),
            "ideal_seconds": list(result.step_ideal_seconds),
        },
        "steps_left_out": list(result.steps_left_out),
    }


def _effect(kind: str, effect: Effect) -> dict[str, Any]:
    names = {
        "type": lambda: effect.name,
        "ranks": lambda: [int(rank) for rank in effect.name.split(", ")],
    }
    return {
        kind: names.get(kind, lambda: int(effect.name))(),
        "slowdown": effect.slowdown,
        "only_seconds": effect.only_seconds,
        "without_seconds": effect.without_seconds,
        "added_share": effect.added,
        "regained_share": effect.regained,
        "step_slowdowns": list(effect.step_slowdowns),
    }


def text(result: WhatIf) -> str:
    """Some forty lines: the loss, then what it comes from."""
    size = f"{len(result.by_worker)} workers (dp {result.dp_size} x {len(result.by_stage)} stages)"
    launch = f"without delays between operations (recorded / replayed = {result.launch_slowdown:.4f})"
    lines = [
        f"{size}, {len(result.steps)} steps, {result.operations} operations",
        "",
        f"  recorded step   {result.recorded_seconds:9.4f} s",
        f"  replayed step   {result.replayed_seconds:9.4f} s   {launch}",
        f"  ideal step      {result.ideal_seconds:9.4f} s   every operation as fast as its kind is elsewhere",
        f"  slowdown S      {result.slowdown:9.4f}     {round(result.wasted_share, 3) + 0.0:.1%} of the time is lost to stragglers",
        "",
        _regained("slowest workers", result.slowest_workers, "rank", "M_W"),
        _regained("last stage", result.last_stage, "stage", "M_S"),
        "  Shares can be below 0 or above 100%: ideal is the mean, which slow operations raise for the others.",
    ]
    lines += _table("operation type", result.by_type)
    lines += _table("stage", result.by_stage)
    lines += _table("dp rank", result.by_dp)
    lines += _table("rank", [worker.effect for worker in result.by_worker])
    if result.steps_left_out:
        lines += [
            "",
            f"steps left out, because their operations differ from those of the others: {numbers_in_words(result.steps_left_out)}",
        ]
    return "\n".join(lines)


def _regained(title: str, effect: Effect, kind: str, name: str) -> str:
    share = _share(effect.regained)
    return f"  {title:15} {share:>9}     of the loss goes away when {kind} {effect.name} is ideal ({name})"


def _table(title: str, effects: Iterable[Effect]) -> list[str]:
    rows = list(effects)
    lines = ["", f"  {title:28} slowdown when only it is slow   loss regained when it is ideal"]
    lines += [f"  {effect.name:28} {effect.slowdown:8.4f}                       {_share(effect.regained):>8}" for effect in rows[:SHOWN]]
    lines += [f"  ... and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return lines


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
