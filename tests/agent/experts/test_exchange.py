"""Expert-parallel ranks from the all-to-alls in their rings alone: rows, time, what is lost, and what counts once."""

from __future__ import annotations

from typing import Any

import pytest

from ranksight.hooks import wire
from ranksight.hooks.ring import Sizes
from tests.agent.conftest import BEGIN, MS, Host

ROOMY = Sizes(4096, 256, 1 << 14, 1 << 14)
ROWS, WORK_MS = (10, 30), (1, 3)  # of each rank


def exchange(
    writer: Any, group: int, rank: int, seq: int, step: int, begin: int, work_ms: int, phase: wire.Phase
) -> None:
    """A dispatch, `work_ms` of experts, and the combine, which ends when the slowest rank comes."""
    send, receive = (ROWS[0] // 2, ROWS[1] // 2), (ROWS[rank] // 2, ROWS[rank] // 2)
    common = {"op": "alltoall_base_", "step": step, "phase": phase, "n_dims": 1, "n_send": 2, "n_recv": 2}
    writer.collective(group, seq, begin, begin + MS, values=(20, *send, *receive), **common)
    called = begin + MS + work_ms * MS
    writer.collective(group, seq + 1, called, begin + 6 * MS, values=(20, *receive, *send), **common)


@pytest.fixture
def section(host: Host) -> dict[str, Any]:
    """Thirty steps of two ranks: forward, the same again within backward, and gradients that cost both the same."""
    writers = [host.rank(rank, 2, local_world_size=2, sizes=ROOMY) for rank in range(2)]
    groups = [writer.group("ep", 2, rank, ranks=[0, 1], axis="ep") for rank, writer in enumerate(writers)]
    for step in range(30):
        begin = BEGIN + step * 30 * MS
        for rank, writer in enumerate(writers):
            writer.ring["step"] = step
            exchange(writer, groups[rank], rank, 6 * step, step, begin, WORK_MS[rank], wire.Phase.FORWARD)
            exchange(writer, groups[rank], rank, 6 * step + 2, step, begin + 8 * MS, WORK_MS[rank], wire.Phase.BACKWARD)
            exchange(writer, groups[rank], rank, 6 * step + 4, step, begin + 16 * MS, 2, wire.Phase.BACKWARD)
            writer.ring.events.write(wire.EventKind.STEP, begin, begin + 30 * MS, step=step)
            if step:  # the agent first sees them in step 0
                writer.ring["step"] = step + 1
        host.now = max(host.now, begin + 30 * MS)
        if step % 10 == 9 or step == 0:
            host.poll(1.0)
    found: dict[str, Any] = host.observer.report_sections()["experts"]  # type: ignore[assignment]
    return found


def test_rows_of_the_forward_pass_count_once_and_time_counts_each_time(section: dict[str, Any]) -> None:
    assert [row["tokens"] for row in section["ranks"]] == [10.0, 30.0]
    assert [row["seconds"] for row in section["ranks"]] == pytest.approx([0.004, 0.008])
    assert [row["imbalance"] for row in section["ranks"]] == [0.5, 1.5]


def test_the_group_loses_the_slowest_minus_the_mean(section: dict[str, Any]) -> None:
    assert section["lost_seconds_per_step"] == pytest.approx(2 * 0.001)
    (group,) = section["groups"]
    assert (group["ranks"], group["steps"], group["last_step"]) == ([0, 1], 25, 29)
    assert group["places"] == [{"rows": [10.0, 30.0], "max_over_mean": 1.5}]
    assert section["unmatched"] == 0


def test_metrics_carry_rows_and_what_is_lost(host: Host, section: dict[str, Any]) -> None:
    text = host.observer.exposition()[0].decode()
    assert 'ranksight_expert_rank_rows_total{rank="1"} 900' in text
    assert 'ranksight_expert_rank_imbalance_ratio{rank="1"} 1.5' in text
    (lost,) = [line for line in text.splitlines() if line.startswith("ranksight_expert_lost_seconds_total ")]
    assert float(lost.split()[1]) == pytest.approx(25 * 0.002)
