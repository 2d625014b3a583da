"""Hundreds of simulated jobs in tensor, data and pipeline parallel: one fault each, or none, judged at a random moment.

The simulator runs the program of every rank with blocking operations, so what waits for what comes out of the program
and not out of the test. Faults are put in at a random rank and place.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

from ranksight.agent.findings import Finding
from ranksight.agent.stopped.diagnosis import detect
from ranksight.agent.stopped.facts import JobFacts
from ranksight.agent.stopped.limits import Limits
from ranksight.hooks.records import Collective, Group
from tests.support.stops import call, group, job, rank

STEPS = 12
WORLD_SIZE = 8  # pp 2 x dp 2 x tp 2


@dataclass(frozen=True)
class Operation:
    """One operation in a rank's program."""

    op: str
    members: Group
    step: int
    shape: tuple[int, ...] = (8,)
    peer: int = -1
    work: float = 0.004  # seconds before it


@dataclass
class Run:
    """What a simulation leaves behind."""

    calls: list[Collective] = field(default_factory=list)
    at: list[int] = field(default_factory=list)  # operations passed by each rank
    clock: list[float] = field(default_factory=list)


def program(number: int) -> list[Operation]:
    """The operations of one rank of pp 2 x dp 2 x tp 2; rank = 4 pp + 2 dp + tp."""
    pp, dp, tp = number // 4, number // 2 % 2, number % 2
    tensor = group(*(4 * pp + 2 * dp + k for k in range(2)), name=f"tp{pp}{dp}")
    data = group(*(4 * pp + 2 * k + tp for k in range(2)), name=f"dp{pp}{tp}")
    pipe = group(2 * dp + tp, 4 + 2 * dp + tp, name=f"pp{dp}{tp}")
    world = group(*range(WORLD_SIZE))
    forward = "send" if pp == 0 else "recv"
    backward = "recv" if pp == 0 else "send"
    operations: list[Operation] = []
    for step in range(STEPS):
        for _ in range(2):  # microbatches
            layer = Operation("all_reduce", tensor, step)
            across = Operation(forward, pipe, step, peer=1 - pp)
            operations += [layer, across] if pp == 0 else [across, layer]
        for _ in range(2):
            across = Operation(backward, pipe, step, peer=1 - pp)
            layer = Operation("all_reduce", tensor, step)
            operations += [across, layer] if pp == 0 else [layer, across]
        operations += [Operation("all_reduce", data, step), Operation("all_reduce", data, step)]
        operations.append(Operation("all_reduce", world, step, shape=(1,)))
    return operations


def simulate(programs: list[list[Operation]], halts: dict[int, int], rng: random.Random) -> Run:
    """Run until nobody can go on. `halts`: a rank does nothing more before its operation of this index."""
    run = Run(at=[0] * len(programs), clock=[10.0] * len(programs))
    numbers: list[dict[Any, int]] = [defaultdict(int) for _ in programs]
    arrived: dict[Any, dict[int, float]] = defaultdict(dict)
    pending: dict[int, tuple[Any, Operation, int]] = {}

    def arrive(r: int) -> bool:
        at = run.at[r]
        if r in pending or at >= len(programs[r]) or halts.get(r, 1 << 30) <= at:
            return False
        todo = programs[r][at]
        run.clock[r] += todo.work * rng.uniform(0.8, 1.2)
        pair = (todo.members.name, todo.op if todo.op in {"send", "recv"} else "")
        seq = numbers[r][pair]
        numbers[r][pair] += 1
        key: Any = (todo.members.name, seq)
        if todo.op in {"send", "recv"}:
            source = r if todo.op == "send" else todo.members.ranks[todo.peer]
            key = (todo.members.name, "p2p", source, seq)
        arrived[key][r] = run.clock[r]
        pending[r] = (key, todo, seq)
        return True

    def finish(r: int) -> bool:
        key, todo, seq = pending[r]
        if len(arrived[key]) < todo.members.size:
            return False
        end = max(arrived[key].values()) + 0.001
        run.calls.append(made(r, todo, seq, arrived[key][r], end))
        run.clock[r] = end
        run.at[r] += 1
        del pending[r]
        return True

    moved = True
    while moved:
        moves = [arrive(r) for r in range(len(programs))] + [finish(r) for r in list(pending)]
        moved = any(moves)
    run.calls += [made(r, todo, seq, arrived[key][r], None) for r, (key, todo, seq) in pending.items()]
    return run


def made(r: int, todo: Operation, seq: int, begin: float, end: float | None) -> Collective:
    return call(r, seq, begin, end, op=todo.op, members=todo.members, step=todo.step, shape=todo.shape, peer=todo.peer)


def judged(run: Run, after: float, *changed: Any) -> tuple[Finding, ...]:
    now = max(run.clock) + after
    steps = {r: max((c.step for c in run.calls if c.rank == r), default=-1) for r in range(WORLD_SIZE)}
    ranks = {r: rank(r, now, step=step) for r, step in steps.items()} | {facts.rank: facts for facts in changed}
    facts: JobFacts = job(run.calls, *ranks.values(), size=WORLD_SIZE, now=now)
    return detect(facts, Limits())


@pytest.mark.parametrize("seed", range(20))
def test_healthy_jobs_at_any_moment(seed: int) -> None:
    rng = random.Random(seed)
    programs = [program(r) for r in range(WORLD_SIZE)]
    whole = simulate(programs, {}, rng)
    assert whole.at == [len(each) for each in programs]
    assert judged(whole, 60.0) == ()
    moment = rng.uniform(10.0, max(whole.clock))
    # What was launched by then, as seen then: completions of the future are not known yet.
    cut = Run([
        made_until(one, moment) for one in whole.calls if one.enqueue_ns <= moment * 1e9
    ], whole.at, [moment])  # fmt: skip
    assert judged(cut, 0.0) == ()
    assert judged(cut, 5.0) == ()


def made_until(one: Collective, moment: float) -> Collective:
    if one.complete_ns is not None and one.complete_ns > moment * 1e9:
        return call(
            one.rank, one.group_seq, one.enqueue_ns / 1e9, None, op=one.op, members=one.group, step=one.step, shape=one.shape,
            peer=one.peer,
        )  # fmt: skip
    return one


@pytest.mark.parametrize("seed", range(30))
def test_a_rank_that_stops_anywhere_is_named_and_nobody_else(seed: int) -> None:
    rng = random.Random(seed)
    culprit = rng.randrange(WORLD_SIZE)
    programs = [program(r) for r in range(WORLD_SIZE)]
    place = rng.randrange(3 * 11, len(programs[culprit]))
    run = simulate(programs, {culprit: place}, rng)
    (finding,) = judged(run, 9.0)
    assert (finding.kind, finding.ranks) == ("rank_not_joined", (culprit,))
    left = rank(culprit, max(run.clock) + 3, alive=False, life="exiting", gone_at=max(run.clock))
    (finding,) = judged(run, 3.0, left)
    assert (finding.kind, finding.ranks) == ("data_exhausted", (culprit,))
    killed = rank(culprit, max(run.clock) + 3, alive=False, gone_at=max(run.clock), native_heartbeat_at=max(run.clock))
    (finding,) = judged(run, 3.0, killed)
    assert (finding.kind, finding.ranks) == ("rank_dead", (culprit,))


@pytest.mark.parametrize("seed", range(30))
def test_operations_in_another_order_are_a_cycle_with_their_rank_in_it_or_harmless(seed: int) -> None:
    rng = random.Random(seed)
    programs = [program(r) for r in range(WORLD_SIZE)]
    culprit = rng.randrange(WORLD_SIZE)
    mine = programs[culprit]
    places = [k for k in range(33, len(mine) - 1) if mine[k].members.name != mine[k + 1].members.name]
    place = rng.choice(places)
    mine[place], mine[place + 1] = mine[place + 1], mine[place]
    run = simulate(programs, {}, rng)
    found = judged(run, 9.0)
    if run.at == [len(each) for each in programs]:
        assert found == ()
    else:
        assert [finding.kind for finding in found] == ["deadlock"] and culprit in found[0].ranks


@pytest.mark.parametrize("seed", range(30))
def test_a_call_left_out_hangs_or_pairs_wrongly_and_its_rank_is_named(seed: int) -> None:
    rng = random.Random(seed)
    programs = [program(r) for r in range(WORLD_SIZE)]
    culprit = rng.randrange(WORLD_SIZE)
    mine = programs[culprit]
    place = rng.choice([k for k in range(33, len(mine) - 33) if mine[k].op == "all_reduce"])
    del mine[place]
    run = simulate(programs, {}, rng)
    (finding,) = judged(run, 9.0, rank(culprit, max(run.clock) + 9, step=STEPS))
    assert culprit in finding.ranks or finding.kind == "deadlock"


@pytest.mark.parametrize("seed", range(30))
def test_another_shape_anywhere_is_named_at_once(seed: int) -> None:
    rng = random.Random(seed)
    programs = [program(r) for r in range(WORLD_SIZE)]
    culprit = rng.randrange(WORLD_SIZE)
    mine = programs[culprit]
    place = rng.choice([k for k in range(33, len(mine)) if mine[k].members.size > 2 or mine[k].op == "all_reduce"])
    mine[place] = Operation("all_reduce", mine[place].members, mine[place].step, shape=(77,))
    run = simulate(programs, {}, rng)
    (finding,) = judged(run, 1.5)
    assert finding.kind == "collective_mismatch"
    assert finding.ranks == (culprit,) if mine[place].members.size > 2 else culprit in finding.ranks
