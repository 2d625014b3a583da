"""The watch over modules: what it finds first, that it changes nothing, and that it is gone when nobody asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from ranksight.hooks.origin import WATCH_STEPS, Watch
from ranksight.hooks.recorder import Recorder
from ranksight.hooks.ring import Ring, Sizes, create
from ranksight.hooks.wire import Origin
from tests.support.ring_events import read


class Spoiled(nn.Module):
    """A layer whose output, or the gradient through it, becomes inf on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.forward_by = self.backward_by = 1.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) * self.forward_by
        if self.backward_by != 1.0:
            y.register_hook(lambda gradient: gradient * self.backward_by)
        return y


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return create(tmp_path, Sizes(16, 256, 4096, 1 << 14))


@pytest.fixture
def watch(ring: Ring) -> Iterator[Watch]:
    made = Watch(Recorder(ring))
    made._recorder.step = 0
    yield made
    ring["watch_until_step"] = -1
    made.step_ended(10**6, 0)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), Spoiled(), nn.Linear(4, 1))


def spoiled(net: nn.Sequential) -> Spoiled:
    module = net[1]
    assert isinstance(module, Spoiled)
    return module


def train(net: nn.Module, watch: Watch, steps: int = 1) -> list[Tensor]:
    """Some steps; the gradients of the last one."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(1)
    for _ in range(steps):
        net(torch.randn(3, 4)).square().mean().backward()
        gradients = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        watch._recorder.step += 1
        watch.step_ended(watch._recorder.step - 1, 0)
    return gradients


def found(ring: Ring) -> list[tuple[int, Origin, str | None, int]]:
    return [(e.step, Origin(e.code), e.name, e.layer) for e in read(ring.path).of("ORIGIN")]


def hooks_in_place() -> int:
    return len(torch_module._global_forward_hooks) + len(torch_module._global_forward_pre_hooks)


def test_nothing_is_hooked_before_a_suspicion_and_after_its_time(ring: Ring, watch: Watch) -> None:
    net = model()
    train(net, watch)
    assert hooks_in_place() == 0
    watch.suspect(1)
    train(net, watch)
    assert hooks_in_place() == 2
    train(net, watch, WATCH_STEPS)
    assert hooks_in_place() == 0
    assert found(ring) == []


def test_the_agent_asks_and_forbids(ring: Ring, watch: Watch) -> None:
    ring["watch_until_step"] = 3
    train(model(), watch)
    assert hooks_in_place() == 2
    ring["watch_until_step"] = -1
    watch.suspect(1)
    train(model(), watch)
    assert hooks_in_place() == 0


def test_the_innermost_module_that_made_it(ring: Ring, watch: Watch) -> None:
    watch.suspect(0)
    net = model()
    train(net, watch)
    spoiled(net).forward_by = float("inf")
    train(net, watch)
    assert found(ring) == [(1, Origin.AROSE, "1 (Spoiled)", 1)]


def test_a_weight_and_what_follows_from_it(ring: Ring, watch: Watch) -> None:
    watch.suspect(0)
    net = model()
    train(net, watch)
    with torch.no_grad():
        spoiled(net).linear.weight[0, 0] = torch.nan
    train(net, watch)
    assert found(ring) == [(1, Origin.WEIGHT, "1.linear (Linear)", 1)]


def test_input_that_was_bad_already(ring: Ring, watch: Watch) -> None:
    watch.suspect(0)
    net = model()
    train(net, watch)
    net(torch.full((3, 4), torch.nan)).sum().backward()
    assert found(ring) == [(1, Origin.CAME_IN, "0 (Linear)", 0)]


def test_the_backward_pass(ring: Ring, watch: Watch) -> None:
    watch.suspect(0)
    net = model()
    train(net, watch)
    spoiled(net).backward_by = float("inf")
    train(net, watch)
    assert found(ring) == [(1, Origin.GRADIENT, "1 (Spoiled)", 1)]


def test_a_gradient_spoiled_after_the_backward_pass(ring: Ring, watch: Watch) -> None:
    watch.suspect(0)
    net = model()
    train(net, watch)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(3, 4)).sum().backward()
    last = net[2]
    assert isinstance(last, nn.Linear)
    assert last.bias.grad is not None
    last.bias.grad.fill_(torch.inf)
    optimizer.step()
    assert found(ring) == [(1, Origin.GRADIENT, "2.bias", 2)]


def test_numbers_are_those_of_an_unwatched_run(ring: Ring, watch: Watch) -> None:
    bare = train(model(), watch, 4)
    watch.suspect(watch._recorder.step)
    watch.step_ended(watch._recorder.step - 1, 0)
    assert hooks_in_place() == 2
    watched = train(model(), watch, 4)
    assert all(torch.equal(one, other) for one, other in zip(bare, watched, strict=True))


def test_an_exception_in_a_module_leaves_the_watch_in_order(ring: Ring, watch: Watch) -> None:
    watch.suspect(0)
    net = model()
    train(net, watch)
    with pytest.raises(RuntimeError, match="shapes"):
        net(torch.randn(3, 5))
    spoiled(net).forward_by = float("inf")
    train(net, watch)
    assert found(ring) == [(1, Origin.AROSE, "1 (Spoiled)", 1)]
    assert ring["hooks_errors"] == 0
