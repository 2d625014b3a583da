"""Ranks, sizes and calls in the words that findings are written in."""

from __future__ import annotations

from collections.abc import Iterable

from ranksight.hooks.records import Collective


def numbers_in_words(numbers: Iterable[int]) -> str:
    """`0, 2-5`: ascending, runs of three and more drawn together."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`Rank 3` or `Ranks 0-2, 5`."""
    known = sorted(set(ranks))
    return f"{'Rank' if len(known) == 1 else 'Ranks'} {numbers_in_words(known)}"


def call_in_words(call: Collective) -> str:
    """`all_reduce float32 [8] sum`: what must agree over the group."""
    parts = [call.op]
    if call.dtype:
        parts.append(call.dtype)
    if call.shape or call.numel:
        parts.append(f"[{', '.join(map(str, call.shape or (call.numel,)))}]")
    if call.reduce_op:
        parts.append(call.reduce_op)
    return " ".join(parts)


def site_in_words(call: Collective) -> str:
    """` at train.py:12 main`, or nothing where the call did not come from Python."""
    return f" at {call.call_site}" if call.call_site else ""
