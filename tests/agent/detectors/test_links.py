"""Slow transfers between some ranks name what these have in common; slow everywhere, or a little, names nobody."""

from collections.abc import Iterable

import numpy as np

from ranksight.agent.collectives.channels import Channel, Sample
from ranksight.agent.detectors.links import slow_link
from ranksight.agent.findings import Finding

STEP = 0.1
# pp 2 x dp 2 x tp 2: rank = 4 pp + 2 dp + tp
TENSOR = [(0, 1), (2, 3), (4, 5), (6, 7)]
DATA = [(0, 2), (1, 3), (4, 6), (5, 7)]
PIPES = [(0, 4), (1, 5), (2, 6), (3, 7)]


def channel(axis: str, ranks: tuple[int, ...], seconds: Iterable[float], op: str = "all_reduce") -> Channel:
    """One look a step, four transfers in each."""
    made = Channel(axis, op, 20, f"{axis}{ranks}", ranks)
    made.samples.extend(Sample(step, value, 4) for step, value in enumerate(seconds))
    return made


def job(slow: Iterable[tuple[str, tuple[int, ...]]], factor: float = 10.0, since: int = 20) -> tuple[Finding, ...]:
    """Every channel takes 1 ms with noise, the slow ones `factor` ms from a step on."""
    rng = np.random.default_rng(0)
    bad = set(slow)
    channels = []
    for axis, groups in (("tp", TENSOR), ("dp", DATA), ("pp", PIPES)):
        for ranks in groups:
            seconds = 0.001 * rng.uniform(0.7, 1.5, 60)
            if (axis, ranks) in bad:
                seconds[since:] *= factor
            channels.append(channel(axis, ranks, seconds))
    return slow_link(channels, STEP, 5)


def test_one_slow_pair_is_a_link_between_two_ranks() -> None:
    (finding,) = job([("pp", (1, 5))])
    assert (finding.kind, finding.ranks, finding.first_step) == ("slow_link", (1, 5), 20)
    assert finding.evidence["transfer_seconds"] > 5 * finding.evidence["transfer_seconds_of_others"]


def test_a_rank_whose_channels_are_slow_on_all_axes_is_named_alone() -> None:
    (finding,) = job([("tp", (2, 3)), ("dp", (1, 3)), ("pp", (3, 7))])
    assert finding.ranks == (3,)


def test_slow_everywhere_is_no_link() -> None:
    assert job([("tp", ranks) for ranks in TENSOR] + [("dp", ranks) for ranks in DATA]) == ()


def test_slow_channels_with_nothing_in_common_name_nobody() -> None:
    assert job([("tp", (0, 1)), ("dp", (4, 6))]) == ()


def test_healthy_or_a_little_slower_is_none() -> None:
    assert job([]) == job([("pp", (1, 5))], factor=2.0) == ()


def test_connections_that_are_slow_at_first_use_do_not_count() -> None:
    first = channel("tp", (0, 1), [0.5] * 5 + [0.001] * 6)
    others = [channel("tp", ranks, [0.001] * 11) for ranks in TENSOR[1:]]
    assert slow_link([first, *others], STEP, 5) == ()


def test_with_one_other_to_compare_with_the_own_past_must_be_better() -> None:
    always = channel("dp", (0, 1), [0.02] * 40)
    lately = channel("dp", (0, 1), [0.001] * 20 + [0.02] * 20)
    other = channel("dp", (2, 3), [0.001] * 40)
    assert slow_link([always, other], STEP, 0) == ()
    assert [finding.ranks for finding in slow_link([lately, other], STEP, 0)] == [(0, 1)]
