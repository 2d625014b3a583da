"""The agent asks all ranks for less detail above the budget and for more below it, and says both."""

from typing import Any

from ranksight.agent.overhead.governor import LOWER_AFTER, RAISE_AFTER
from ranksight.agent.overhead.part import WINDOW_NS
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.stop import Stop
from ranksight.hooks.wire import Detail
from tests.agent.conftest import SECOND, Host
from tests.support.ring_writer import RingWriter


class Rank:
    """A rank that issues operations, pays for them and takes in what the agent asks, as the hooks do."""

    def __init__(self, writer: RingWriter) -> None:
        self.ring = writer.ring
        self.stop = Stop(Recorder(self.ring), lambda detail: self.ring.__setitem__("detail", detail))

    def window(self, operations: int) -> None:
        """One window: at full detail an operation costs 20 us, below it 1 us."""
        full = self.ring["detail"] == Detail.FULL
        counter = "collectives_count" if full else "collectives_skipped"
        self.ring[counter] = self.ring[counter] + operations
        self.ring["tap_cost_ns"] = self.ring["tap_cost_ns"] + operations * (20_000 if full else 1_000)
        self.ring["step"] = self.ring["step"] + 1
        self.stop.step_ended(self.ring["step"] - 1, 0)


def drive(host: Host, ranks: list[Rank], operations: int, windows: int) -> None:
    for _ in range(windows):
        for rank in ranks:
            rank.window(operations)
        host.poll(WINDOW_NS / SECOND)


def report(host: Host) -> dict[str, Any]:
    return host.observer.report_sections()


def test_both_directions(host: Host) -> None:
    ranks = [Rank(host.rank(number, 2, local_world_size=2)) for number in range(2)]
    drive(host, ranks, 100, 3)
    assert report(host)["detail"] == {"level": "full", "budget": 0.005, "lowered": 0, "raised": 0, "changes": []}

    drive(host, ranks, 10_000, LOWER_AFTER + 2)  # 2 % of the time
    assert [rank.ring["detail"] for rank in ranks] == [Detail.SAMPLED] * 2
    withheld = ranks[0].ring["collectives_skipped"]
    assert withheld == 10_000
    notes = " ".join(report(host)["completeness"]["notes"])
    assert "Detail lowered from full to sampled at step" in notes
    assert "10000 of 40300 operations not recorded on rank 0" in notes
    text = host.observer.exposition()[0].decode()
    assert 'ranksight_detail_changes_total{direction="lower"} 1' in text
    assert 'ranksight_records_skipped_total{rank="1"} 10000' in text
    assert 'ranksight_detail_level{rank="1"} 2' in text

    drive(host, ranks, 100, RAISE_AFTER + 1)
    assert [rank.ring["detail"] for rank in ranks] == [Detail.FULL] * 2
    section = report(host)["detail"]
    assert (section["level"], section["lowered"], section["raised"]) == ("full", 1, 1)
    assert section["changes"][1].startswith("Detail raised from sampled to full at step")


def test_a_rank_that_comes_later_gets_the_level_in_force(host: Host) -> None:
    first = Rank(host.rank(0, 2, local_world_size=2))
    drive(host, [first], 10_000, LOWER_AFTER + 1)
    second = Rank(host.rank(1, 2, local_world_size=2))
    drive(host, [first, second], 10_000, 2)
    assert second.ring["detail"] == first.ring["detail"] == Detail.SAMPLED


def test_a_rank_that_does_not_train_is_left_alone(host: Host) -> None:
    rank = Rank(host.rank(0, 1, local_world_size=1))
    for _ in range(5):
        rank.ring["tap_cost_ns"] = rank.ring["tap_cost_ns"] + WINDOW_NS
        host.poll(WINDOW_NS / SECOND)
    assert rank.ring["detail"] == Detail.FULL
