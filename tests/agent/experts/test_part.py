"""The part in an observer over synthetic rings: what the trainer says comes out of report, metrics and findings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranksight.agent import catalog
from ranksight.agent.experts.layers import DEAD_STEPS
from ranksight.hooks import wire
from ranksight.hooks.ring import Sizes
from tests.agent.conftest import BEGIN, MS, Host

ROOMY = Sizes(256, 4096, 1 << 14, 1 << 14)


def say(writer: Any, step: int, layer: int, tokens: list[float]) -> None:
    begin = BEGIN + step * 10 * MS
    writer.ring["step"] = step + 1
    writer.ring.events.write(wire.EventKind.EXPERTS, begin, begin, step=step, layer=layer, values=tuple(tokens))


def lines(host: Host, name: str) -> dict[str, float]:
    """Samples of a metric by their labels."""
    text = host.observer.exposition()[0].decode()
    return {
        line[len(name) : line.rindex(" ")]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith((f"{name}{{", f"{name} "))
    }


def test_many_experts_come_whole_through_the_ring_and_are_folded_in_the_metrics(host: Host) -> None:
    writers = [host.rank(rank, 2, local_world_size=2, sizes=ROOMY) for rank in range(2)]
    tokens = [float(number) for number in range(100)]
    for step in range(4):
        for writer in writers:
            say(writer, step, 3, tokens)
            writer.ring.events.write(wire.EventKind.DROPPED, BEGIN, BEGIN, step=step, layer=3, values=(50.0,))
    host.poll()
    (row,) = host.observer.report_sections()["experts"]["layers"]  # type: ignore[index]
    assert (row["layer"], row["experts"], row["tokens_per_expert"], row["dropped"]) == (3, 100, tokens, 200.0)
    assert row["max_over_mean"] == pytest.approx(2.0)
    assert row["dropped_fraction"] == pytest.approx(50 / 5000)
    shown = lines(host, "ranksight_expert_tokens")
    assert shown['{layer="3",expert="99"}'] == 99.0
    assert shown['{layer="3",expert="other"}'] == sum(range(92))
    assert len(shown) == catalog.TOP_EXPERTS + 1
    assert lines(host, "ranksight_folded_experts") == {"": 92.0}
    assert lines(host, "ranksight_expert_balance")['{layer="3",measure="max_violation"}'] == pytest.approx(1.0)


def test_series_of_64_layers_with_256_experts_stay_within_the_documented_bound(host: Host) -> None:
    writer = host.rank(0, 1, local_world_size=1, sizes=Sizes(64, 4096, 1 << 14, 1 << 14))
    random = np.random.default_rng(0)
    for layer in range(70):
        say(writer, 0, layer, random.integers(0, 100, 256).astype(float).tolist())
    host.poll()
    text = host.observer.exposition()[0].decode()
    mine = [
        line
        for line in text.splitlines()
        if line.startswith(("ranksight_expert", "ranksight_dead", "ranksight_folded_"))
    ]
    by_layer = [line for line in mine if "layer=" in line]
    assert len(by_layer) <= catalog.LAYER_LINES * 64
    assert "ranksight_folded_layers 6" in mine
    assert f"ranksight_folded_experts {64 * (256 - catalog.TOP_EXPERTS)}" in mine
    everything = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(everything) <= catalog.most_lines(ranks=1, combinations=0, groups=0, layers=64)


def test_a_dead_expert_is_found_once_and_followed(host: Host) -> None:
    writer = host.rank(0, 1, local_world_size=1, sizes=ROOMY)
    for step in range(DEAD_STEPS + 30):
        say(writer, step, 1, [20.0, 20.0 if step < 5 else 0.0, 20.0, 20.0])
        if step % 10 == 9:
            host.poll(1.0)
    (finding,) = [found for found in host.observer.findings() if found.kind == "dead_expert"]
    assert (finding.layer, finding.experts, finding.first_step) == (1, (1,), 5)
    assert finding.detected_step is not None and finding.last_step is not None
    assert DEAD_STEPS + 4 <= finding.detected_step < DEAD_STEPS + 15
    assert finding.last_step == DEAD_STEPS + 29


def test_without_experts_there_is_no_section_and_no_series(host: Host) -> None:
    host.rank(0, 1, local_world_size=1)
    host.poll()
    assert "experts" not in host.observer.report_sections()
    assert lines(host, "ranksight_expert_tokens") == {}
