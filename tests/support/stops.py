"""Literal jobs for the tests of ranks that stop: a few words per rank and call, times in seconds."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from ranksight.agent.stopped.facts import JobFacts, RankFacts
from ranksight.agent.stopped.ledger import Ledger
from ranksight.hooks.records import Collective, Group
from ranksight.hooks.wire import CollectiveFlag

FAILED = int(CollectiveFlag.FAILED)
NOW = 100.0


def ns(seconds: float | None) -> int | None:
    """Nanoseconds; None stays unknown."""
    return None if seconds is None else round(seconds * 1e9)


def group(*ranks: int, name: str = "0") -> Group:
    """A group of these global ranks."""
    return Group(name, "", 0, ranks, len(ranks))


WORLD = group(0, 1, 2, 3)


def call(
    rank: int,
    seq: int,
    at: float,
    done: float | None = None,
    *,
    op: str = "all_reduce",
    members: Group = WORLD,
    step: int = 10,
    shape: tuple[int, ...] = (8,),
    site: str | None = "train.py:12 step",
    waiting: bool = True,
    flags: int = 0,
    **more: Any,
) -> Collective:
    """One call; without `done` it is in flight, and unless `waiting` is false its caller waits for it."""
    free = op in {"all_to_all_single", "send", "recv", "recv_any_source"}  # nothing must agree
    agreed = (op, shape, *(more.get(name) for name in ("dtype", "reduce_op", "peer")))
    fields: dict[str, Any] = {
        "ticket": seq + 1, "return_ns": ns(at), "wait_begin_ns": ns(at) if waiting else None, "wait_end_ns": ns(done),
        "complete_ns": ns(done), "bytes": 0, "numel": 0, "dtype": "float32", "reduce_op": "sum", "peer": -1, "tag": 0,
        "fingerprint": 0 if free else zlib.crc32(repr(agreed).encode()) | 1,
        "microbatch": -1, "stage": -1, "phase": "other", "thread": 1,
    }  # fmt: skip
    fields |= {
        "rank": rank, "op": op, "group": members, "group_seq": seq, "enqueue_ns": ns(at), "step": step, "shape": shape,
        "call_site": site, "flags": flags,
    }  # fmt: skip
    return Collective(**(fields | more))


def rank(number: int, now: float = NOW, **more: Any) -> RankFacts:
    """A healthy rank whose hearts beat; fields that end in `_at` are seconds."""
    fields: dict[str, Any] = {
        "host": "h0", "pid": 1000 + number, "process_state": "S", "step": 10, "python_heartbeat_at": now - 0.2,
        "native_heartbeat_at": now - 0.1, "observed_at": now,
    } | more  # fmt: skip
    known = {name: value for name, value in fields.items() if not name.endswith("_at")}
    times: dict[str, Any] = {f"{name.removesuffix('_at')}_ns": ns(value) for name, value in fields.items() if name.endswith("_at")}
    return RankFacts(number, **known, **times)


def job(
    calls: Iterable[Collective], *changed: RankFacts, size: int = 4, now: float = NOW, p99: float | None = 0.05, **more: Any
) -> JobFacts:
    """A job of `size` ranks; all calls are in the ledger, and the detectors see all of them."""
    seen = tuple(sorted(calls, key=lambda one: one.enqueue_ns))
    ranks = {number: rank(number, now) for number in range(size)} | {facts.rank: facts for facts in changed}
    return JobFacts(ns(now) or 0, size, ranks, seen, Ledger.of(seen), p99, **more)
