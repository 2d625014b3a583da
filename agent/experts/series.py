"""Views of experts as rows of the report and as metrics, both bounded.

LayerView -> layer_row    a row of report.json's experts.layers
          -> layer_blocks series by layer; of each layer's experts the TOP hottest, the rest added up as "other"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from ranksight.agent.catalog import BY_NAME, TOP_EXPERTS
from ranksight.agent.experts.balance import Balance, Floats
from ranksight.agent.experts.layers import LayerView
from ranksight.agent.experts.ranks import GroupView, RankLoads
from ranksight.agent.export.exposition import Block

MEASURES = tuple(field.name for field in fields(Balance))
MOST_RANKS = 64  # with series of their own
MOST_PLACES = 64
MOST_SHOWN = 256  # experts of a layer in the report


def layer_row(view: LayerView) -> dict[str, Any]:
    """One layer over its window; measures are None when no token was routed, `dropped` when nobody says it."""
    balance = view.balance
    return {
        "layer": view.layer,
        "rank": view.rank,
        "steps": view.steps,
        "last_step": view.last_step,
        "tokens_per_expert": [round(tokens / view.steps, 3) for tokens in view.tokens[:MOST_SHOWN].tolist()],
        "experts": len(view.tokens),
        **(asdict(balance) if balance else dict.fromkeys(MEASURES)),
        "max_vio": balance.max_violation if balance else None,
        "max_vio_step": view.step_violation,
        "dead": list(view.dead),
        "dropped": view.dropped,
        "dropped_fraction": view.dropped_fraction,
    }


def layer_blocks(views: Sequence[LayerView], folded_layers: int) -> Iterator[Block]:
    """Metrics of the layers."""
    if not views:
        return
    tokens: list[tuple[tuple[str, str], float]] = []
    measures: list[tuple[tuple[str, str], float]] = []
    folded = 0
    for view in views:
        layer, per_step = str(view.layer), view.tokens / view.steps
        hottest = np.argsort(-per_step, kind="stable")[:TOP_EXPERTS]
        tokens += [((layer, str(expert)), float(per_step[expert])) for expert in sorted(hottest.tolist())]
        if len(per_step) > TOP_EXPERTS:
            folded += len(per_step) - TOP_EXPERTS
            tokens.append(((layer, "other"), float(per_step.sum() - per_step[hottest].sum())))
        measured = asdict(view.balance) if view.balance else {}
        found: dict[str, float | None] = {
            **measured,
            "max_violation": view.step_violation,
            "dropped": view.dropped_fraction,
        }
        measures += [((layer, name), value) for name, value in found.items() if value is not None]
    yield _block("ranksight_expert_tokens", tokens)
    yield _block("ranksight_expert_balance", measures)
    yield _block("ranksight_dead_experts", [((str(view.layer),), len(view.dead)) for view in views])
    yield _block("ranksight_folded_experts", [((), folded)])
    yield _block("ranksight_folded_layers", [((), folded_layers)])


def spread(values: Floats) -> dict[str, float] | None:
    """Mean and tails; None of nothing."""
    if not len(values):
        return None
    p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99)).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p95": p95, "p99": p99, "max": float(values.max())}


def rank_rows(groups: Sequence[GroupView]) -> list[dict[str, Any]]:
    """Each expert-parallel rank over its window, per step; `tokens` are rows that its experts got."""
    found = {}
    for view in groups:
        rows, seconds = view.rows.mean(axis=0), view.seconds.mean(axis=0)
        for at, rank in enumerate(view.ranks):
            slow = view.slowness[at] if view.slowness else None
            found[rank] = {
                "rank": rank,
                "tokens": float(rows[at]),
                "imbalance": float(rows[at] / rows.mean()) if rows.any() else None,
                "seconds": float(seconds[at]),
                "seconds_per_token": float(seconds[at] / rows[at]) if rows[at] else None,
                "slow_because": slow and slow.because,
                "excess_seconds": slow and slow.excess,
                "token_seconds": slow and slow.tokens,
                "hardware_seconds": slow and slow.hardware,
            }
    return [found[rank] for rank in sorted(found)]


def group_row(view: GroupView) -> dict[str, Any]:
    """One group over its window; `places` are its layers with experts in the order of the calls."""
    return {
        "ranks": list(view.ranks),
        "steps": len(view.steps),
        "last_step": int(view.steps[-1]),
        "lost": spread(view.lost),
        "places": [
            {"rows": rows.tolist(), "max_over_mean": float(rows.max() / rows.mean()) if rows.any() else None}
            for rows in view.places[:MOST_PLACES]
        ],
    }


def rank_blocks(loads: RankLoads) -> Iterator[Block]:
    """Metrics of the ranks, of the first MOST_RANKS."""
    ranks = sorted(loads.rows_total)[:MOST_RANKS]
    if not ranks:
        return
    ratios = {row["rank"]: row["imbalance"] for row in rank_rows(loads.groups())}
    yield _block("ranksight_expert_rank_rows_total", [((str(rank),), loads.rows_total[rank]) for rank in ranks])
    yield _block("ranksight_expert_rank_seconds_total", [((str(rank),), loads.seconds_total[rank]) for rank in ranks])
    yield _block(
        "ranksight_expert_rank_imbalance_ratio",
        [((str(rank),), ratios[rank]) for rank in ranks if ratios.get(rank) is not None],
    )
    yield _block("ranksight_expert_lost_seconds_total", [((), loads.lost_total)])


def _block(name: str, pairs: Sequence[tuple[tuple[str, ...], float]]) -> Block:
    return Block(BY_NAME[name], [labels for labels, _ in pairs], [value for _, value in pairs])
