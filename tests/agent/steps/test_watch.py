"""The agent has ranks watch their modules: after a suspicion, always, or never; and names what they saw."""

import pytest

from ranksight.agent.config import NumericsSection
from ranksight.agent.steps.watch import ALWAYS, NEVER, WATCH_STEPS, OriginWatch
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.wire import EventKind, Origin
from tests.agent.conftest import MS, Host
from tests.support.ring_writer import RingWriter


def step(host: Host, ranks: list[RingWriter], number: int, loss: float, births: dict[int, str] | None = None) -> None:
    for rank, writer in enumerate(ranks):
        recorder = Recorder(writer.ring)
        end = host.now
        writer.ring["step"] = recorder.step = number
        if births and rank in births:
            recorder.event(EventKind.ORIGIN, end - MS, end - MS, code=Origin.AROSE, name=births[rank], layer=3)
        recorder.event(EventKind.LOSS, end, end, values=(loss,))
        recorder.event(EventKind.STEP, end - 100 * MS, end, values=(0.1,))
        writer.ring["step"] = number + 1
    host.poll(1.5)


@pytest.mark.parametrize(("mode", "asked"), [("after_suspicion", 0), ("always", ALWAYS), ("never", NEVER)])
def test_what_healthy_ranks_are_asked(host: Host, mode: str, asked: int) -> None:
    ranks = [host.rank(number, 2, local_world_size=2) for number in range(2)]
    part = OriginWatch(NumericsSection.model_validate({"watch": mode}))
    host.poll()
    part.roll(host.observer, host.now)
    assert [writer.ring["watch_until_step"] for writer in ranks] == [asked] * 2


def test_after_a_suspicion_all_ranks_watch_and_the_origin_is_named(host: Host) -> None:
    ranks = [host.rank(number, 2, local_world_size=2) for number in range(2)]
    for number in range(4):
        step(host, ranks, number, 1.0)
    assert [writer.ring["watch_until_step"] for writer in ranks] == [0, 0]
    step(host, ranks, 4, float("nan"))
    (found,) = [finding for finding in host.observer.findings() if finding.kind == "nonfinite"]
    assert (found.ranks, found.first_step) == ((), 4)
    assert [writer.ring["watch_until_step"] for writer in ranks] == [5 + WATCH_STEPS] * 2

    step(host, ranks, 5, float("nan"), {1: "layers.3 (Block)"})
    (found,) = [finding for finding in host.observer.findings() if finding.kind == "nonfinite"]
    assert (found.ranks, found.layer, found.first_step) == ((1,), 3, 4)
    assert "In step 5, when modules were watched: it arose in layers.3 (Block)" in found.message
