"""Numerics: whether the model is still learning, and whether all ranks say the same."""

from __future__ import annotations

from ranksight.dashboards import judgements
from ranksight.dashboards.panels import RANK, Board, Panel, exported


def rows() -> list[tuple[str, list[Panel]]]:
    """Titles of rows and the panels in them."""
    return [
        (
            "Is it learning?",
            [
                Panel("timeseries", "Loss", "The last loss that backward() was called on: a rank's own, one microbatch's under pipelining. A gap is a loss that is not finite or not known.", [(f"max by (run, rank) ({exported('loss', RANK)})", "{{run}} rank {{rank}}")], "short", 12, 9),
                Panel("timeseries", "Gradient norm", "What clip_grad_norm_ returned, before clipping. It rises before the loss does.", [(f"max by (run, rank) ({exported('gradient_norm', RANK)})", "{{run}} rank {{rank}}")], "short", 12, 9, log=True),
            ],
        ),
        (
            "Do the ranks agree?",
            [
                Panel("timeseries", "Spread of the gradient norm", "Largest minus smallest over the ranks, divided by the largest. After the reduction all ranks that hold the same parameters have the same norm; in tensor and pipeline parallel jobs the level is not zero, and a change of it is what to look at.", [(f"(max by (run) ({exported('gradient_norm')}) - min by (run) ({exported('gradient_norm')})) / (max by (run) ({exported('gradient_norm')}) > 0)", "{{run}}")], "percentunit", 12),
                Panel("timeseries", "Spread of the loss", "Standard deviation over the ranks: data parallel ranks see different batches.", [(f"stddev by (run) ({exported('loss')})", "{{run}}")], "short", 12),
            ],
        ),
        (
            "What was found?",
            [
                judgements.findings(24, judgements.kinds(("numerics", "desync", "checkpoint"))),
            ],
        ),
        (
            "How much was learned from?",
            [
                Panel("timeseries", "Tokens per second", "Where the trainer says how many tokens a batch has.", [(f"sum by (run) ({exported('tokens_total', function='rate')})", "{{run}}")], "short", 12),
                Panel("timeseries", "Memory of the ranks", "Resident memory of each rank's process. A straight line upwards is a leak.", [(f"max by (run, rank) ({exported('rank_resident_memory_bytes', RANK)})", "{{run}} rank {{rank}}")], "bytes", 12),
            ],
        ),
    ]  # fmt: skip


BOARD = Board("numerics", "numerics", "Loss, gradient norm, agreement of the ranks.", rows, ("rank",))
