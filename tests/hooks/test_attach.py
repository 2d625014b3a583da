"""Attached to the test process itself, without ranks: what training loops of many shapes leave in the ring."""

import gc
import os
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ranksight import hooks
from ranksight.hooks import attachment, wire
from tests.support.ring_events import Said, read


class Attached:
    def __init__(self, folder: Path) -> None:
        assert hooks.attach(folder, tap="none")
        assert attachment.current is not None
        self.current = attachment.current
        self.ring = self.current.recorder.ring

    def said(self) -> Said:
        self.current.finish()
        said = read(self.ring.path)
        assert said.header["hooks_errors"] == 0, said.notes()
        return said


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[Attached]:
    made = Attached(tmp_path / "run")
    yield made
    hooks.detach()


def parts(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def batch() -> torch.Tensor:
    return torch.randn(6, 4)


def train(steps: int) -> tuple[list[float], list[float]]:
    model, optimizer = parts()
    losses, norms = [], []
    for _ in range(steps):
        loss = model(batch()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def test_steps_losses_and_norms_of_a_plain_loop(attached: Attached) -> None:
    losses, norms = train(5)
    said = attached.said()
    assert [step for step, _, _ in said.spans("STEP")] == [0, 1, 2, 3, 4]
    assert said.values("LOSS") == list(enumerate(losses))
    assert said.values("GRAD_NORM") == list(enumerate(norms))
    assert said.header["step"] == 5
    assert said.header["hooks_cost_ns"] > 0
    assert {"startup", "backward", "optimizer"} <= said.phase_seconds().keys()


def test_numbers_are_the_same_with_and_without(tmp_path: Path) -> None:
    alone = train(5)
    hooks.attach(tmp_path, tap="none")
    try:
        attached = train(5)
    finally:
        hooks.detach()
    assert alone == attached


def test_accumulated_losses_are_averaged_or_summed_as_they_were_scaled(attached: Attached) -> None:
    model, optimizer = parts()
    expected = []
    for scaled in (False, True):
        total = 0.0
        for _ in range(4):
            loss = model(batch()).square().mean()
            loss = loss / 4 if scaled else loss
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(total if scaled else total / 4)
    assert [value for _, value in attached.said().values("LOSS")] == pytest.approx(expected, rel=1e-12)


def test_a_gan_makes_one_step_of_two_optimizers(attached: Attached) -> None:
    (critic, of_critic), (maker, of_maker) = parts(0), parts(1)
    losses = []
    for _ in range(3):
        for model, optimizer in ((critic, of_critic), (maker, of_maker)):
            loss = model(batch()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    said = attached.said()
    assert [event.step for event in said.of("STEP")] == [0, 1, 2]
    assert [(event.step, event.code, event.values[0]) for event in said.of("LOSS")] == [
        (number // 2, number % 2, loss) for number, loss in enumerate(losses)
    ]


def test_an_optimizer_that_was_dropped_is_not_waited_for(attached: Attached) -> None:
    parts()  # made and thrown away, as by a trainer that makes its optimizer twice
    gc.collect()
    train(3)
    assert [event.step for event in attached.said().of("STEP")] == [0, 1, 2]


def test_no_optimizer(attached: Attached) -> None:
    model, _ = parts()
    del _
    gc.collect()
    for _ in range(4):
        model(batch()).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
    assert [event.step for event in attached.said().of("STEP")] == [0, 1, 2]
    assert attached.ring["step"] == 3


def test_a_closure_is_one_step(attached: Attached) -> None:
    model, _ = parts()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    data = batch()

    def closure() -> float:
        optimizer.zero_grad()
        loss: torch.Tensor = model(data).square().mean()
        loss.backward()
        return loss.item()

    del _
    gc.collect()
    for _ in range(2):
        optimizer.step(closure)
    assert [event.step for event in attached.said().of("STEP")] == [0, 1]


def test_a_scaler_that_skips_the_optimizer_still_makes_a_step(attached: Attached) -> None:
    model, optimizer = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for index in range(3):
        loss = model(batch()).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if index == 1:
            first = next(model.parameters())
            assert first.grad is not None
            first.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    said = attached.said()
    assert [event.step for event in said.of("STEP")] == [0, 1, 2]
    assert said.values("LOSS") == list(enumerate(losses))  # before scaling


def test_a_step_skipped_by_hand_counts(attached: Attached) -> None:
    model, optimizer = parts()
    for index in range(4):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        if index != 2:
            optimizer.step()
    said = attached.said()
    assert [event.step for event in said.of("STEP")] == [0, 1, 2, 3]
    assert [step for step, _ in said.values("LOSS")] == [0, 1, 2, 3]


def test_data_loader_evaluation_and_checkpoint_have_phases(attached: Attached, tmp_path: Path) -> None:
    model, optimizer = parts()
    loader: DataLoader[Any] = DataLoader(torch.randn(12, 4), batch_size=4)  # type: ignore[arg-type]
    path = tmp_path / "model.pt"
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    model.eval()
    assert attached.ring["phase"] == wire.Phase.EVALUATION
    with torch.no_grad():
        for x in loader:
            model(x)
    model.train()
    assert attached.ring["phase"] == wire.Phase.OTHER
    torch.save(model.state_dict(), path)
    torch.load(path)
    said = attached.said()
    assert [event.step for event in said.of("STEP")] == [0, 1, 2]
    assert [event.step for event in said.of("DATA")] == [0, 1, 2, 3]  # the last one found the end; evaluation is none
    assert {"data", "forward", "backward", "optimizer", "evaluation", "checkpoint", "load"} <= said.phase_seconds().keys()
    (saved,) = said.of("CHECKPOINT")
    assert (saved.name, saved.values) == (str(path), (3.0, float(path.stat().st_size)))


def test_phases_and_other_add_up_to_the_steps(attached: Attached) -> None:
    train(4)
    said = attached.said()
    for step, begin, end in said.spans("STEP"):
        spans = sorted((e.begin_ns, e.end_ns) for e in said.of("PHASE") if e.step == step and e.code > 1)
        assert all(begin <= a < b <= end for a, b in spans)
        assert all(b <= a for (_, b), (a, _) in pairwise(spans))


def test_a_frozen_teacher_is_not_an_evaluation(attached: Attached) -> None:
    model, optimizer = parts()
    teacher, _ = parts(1)
    del _
    gc.collect()
    seen = []
    for _ in range(3):
        teacher.train()
        teacher.eval()
        optimizer.zero_grad()
        loss = (model(batch()) - teacher(batch()).detach()).square().mean()
        seen.append(wire.Phase(attached.ring["phase"]))
        loss.backward()
        optimizer.step()
    assert seen[2] is wire.Phase.OTHER
    assert [event.step for event in attached.said().of("STEP")] == [0, 1, 2]


def test_collections_of_garbage_are_spans(attached: Attached) -> None:
    model, optimizer = parts()
    for index in range(3):
        if index == 1:
            gc.collect()
        model(batch()).square().mean().backward()
        optimizer.step()
    full = [event for event in attached.said().of("GC") if event.step == 1]
    assert [event.code for event in full] == [2]
    assert full[0].end_ns > full[0].begin_ns


def test_the_trainer_says_more(attached: Attached) -> None:
    model, optimizer = parts()
    for index in range(3):
        with hooks.phase("data"):
            assert attached.ring["phase"] == wire.Phase.DATA
            data = batch()
        hooks.record_batch(samples=6, tokens=24, cursor=6 * index, fingerprint=99)
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        hooks.record_experts(2, torch.tensor([3, 1]), dropped=torch.tensor(5))
        hooks.record_experts(3, [float(n) for n in range(30)])
        hooks.record_step(loss=float(index), grad_norm=torch.tensor(2.0), tokens=48)
    said = attached.said()
    assert [event.step for event in said.of("STEP")] == [0, 1, 2]
    assert said.of("STEP")[2].values[1] == 48
    assert said.values("LOSS")[-2:] == [(1, 1.0), (2, 2.0)]
    assert said.values("GRAD_NORM") == [(0, 2.0), (1, 2.0), (2, 2.0)]
    assert [(e.layer, e.values) for e in said.of("EXPERTS")][:2] == [(2, (3.0, 1.0)), (3, tuple(map(float, range(30))))]
    assert [(e.layer, e.values) for e in said.of("DROPPED")] == [(2, (5.0,))] * 3
    assert said.of("BATCH")[2].values == (6.0, 24.0, 12.0, 99.0)
    assert len(said.of("DATA")) == 3


def test_wrong_use_of_the_api_is_counted_and_never_raised(attached: Attached) -> None:
    hooks.record_experts(0, object())
    hooks.name_axis("no such group", "dp")
    hooks.record_batch(samples=None, tokens=3)  # type: ignore[arg-type]
    with hooks.phase("lunch"):
        pass
    said = read(attached.ring.path)
    assert said.header["hooks_errors"] == 2
    assert any("lunch" in note for note in said.notes())


def test_exceptions_of_the_loop_leave_no_trace(attached: Attached) -> None:
    model, optimizer = parts()
    with pytest.raises(RuntimeError, match="grad"):
        torch.ones(()).backward()
    losses = []
    for _ in range(2):
        loss = model(batch()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    said = attached.said()
    assert said.values("LOSS") == list(enumerate(losses))
    assert [event.step for event in said.of("STEP")] == [0, 1]


def test_stop_request_is_acknowledged_at_the_end_of_a_step(attached: Attached) -> None:
    assert hooks.stop_requested() is None
    train(1)
    ring = attached.ring
    ring["stop_after_step"], ring["stop_action"], ring["stop_request"] = 3, wire.StopAction.CHECKPOINT_AND_STOP, 1
    assert ring["stop_acknowledged"] == 0
    train(1)
    assert ring["stop_acknowledged"] == 1
    assert hooks.stop_requested() is None  # proposed, not agreed yet
    ring["stop_committed"] = 1
    assert hooks.stop_requested() == 3
    train(3)
    attached.current.finish()
    assert ring["stopped_after_step"] == 4


def test_detail_that_the_agent_wants_is_put_in_force(attached: Attached) -> None:
    attached.ring["detail_wanted"] = wire.Detail.COUNTERS
    train(1)
    assert attached.ring["detail"] == wire.Detail.COUNTERS


def test_the_heart_beats(attached: Attached) -> None:
    deadline = threading.Event()
    first = attached.ring["python_heartbeat_ns"]
    for _ in range(500):
        if attached.ring["python_heartbeat_ns"] > first > 0:
            break
        deadline.wait(0.01)
        first = first or attached.ring["python_heartbeat_ns"]
    assert attached.ring["python_heartbeat_ns"] > first > 0


def test_detach_leaves_torch_as_it_was(tmp_path: Path) -> None:
    def state() -> list[object]:
        optimizer = sys.modules["torch.optim.optimizer"]
        return [
            torch.autograd.backward, torch.save, torch.load, torch.serialization.save, nn.Module.eval, nn.Module.train,
            torch.optim.Optimizer.zero_grad, torch.optim.Optimizer.__init__, nn.utils.clip_grads_with_norm_,
            DataLoader.__iter__, nn.parallel.DistributedDataParallel.forward, torch.amp.GradScaler.step, sys.excepthook,
            threading.excepthook, list(gc.callbacks), threading.active_count(), dict(os.environ),
            len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks),
        ]  # fmt: skip

    before = state()
    hooks.attach(tmp_path, tap="none")
    assert hooks.attach(tmp_path, tap="none")  # a second call changes nothing
    assert len(list(tmp_path.iterdir())) == 1
    assert state() != before
    hooks.detach()
    hooks.detach()
    assert state() == before


def test_without_an_attachment_everything_is_a_no_op() -> None:
    assert attachment.current is None
    with hooks.phase("data"):
        pass
    with hooks.phase("no such phase"):
        pass
    hooks.record_step(3, loss=1.0)
    hooks.record_experts(0, [1, 2])
    hooks.record_batch(samples=1, tokens=1)
    hooks.name_axis(None, "dp")
    hooks.detach()
    assert hooks.stop_requested() is None


def test_a_folder_that_cannot_be_made_moves_the_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Attached(tmp_path / "file" / "run")
    try:
        assert made.ring.path.parent == tmp_path / f"ranksight-{os.getuid()}" / "run"
        assert "Not a directory" in made.said().notes()[-1]
    finally:
        hooks.detach()


def test_no_room_makes_the_ring_smaller_then_training_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    room = attachment.SIZES[1].total
    reserve = os.posix_fallocate

    def fallocate(fd: int, offset: int, length: int) -> None:
        if length > room:
            raise OSError(28, "No space left on device")
        reserve(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    made = Attached(tmp_path / "run")
    assert made.ring["events_slots"] == attachment.SIZES[1].events
    hooks.detach()
    room = 0
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(attachment, "_failed", False)
    assert not hooks.attach(tmp_path / "run", tap="none")
    assert not hooks.attach(tmp_path / "run", tap="none")
    train(2)
    assert capsys.readouterr().err == "ranksight: not attached: OSError: [Errno 28] No space left on device\n"
