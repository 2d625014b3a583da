"""Sends steps to an OTLP collector from a thread of its own, so that a collector can harm nobody.

    Sender.put(parcel) -> bounded queue -> thread: view -> spans -> OTLP over HTTP, a few hundred at a time

A collector that is down, slow or silent costs traces, which are counted; `close` returns in CLOSE_SECONDS at most.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from ranksight.agent.traces.spans import RankFacts, Spans
from ranksight.agent.traces.view import view

log = logging.getLogger(__name__)

WAITING_STEPS = 16
SPANS_AT_ONCE = 512
REQUEST_SECONDS = 3.0  # the longest that a request may hold up the thread
CLOSE_SECONDS = 4.0
FATES = ("sent", "failed", "dropped_queue", "dropped_budget")


@dataclass(frozen=True, slots=True)
class Parcel:
    """One step, as recorded; `spans` is about how many there will be."""

    step: int
    reason: str
    collectives: pa.Table
    events: pa.Table
    spans: int
    facts: Mapping[int, RankFacts]
    offsets: Mapping[str, int]


class Sender:
    """Owns the exporter and its thread. `fates` counts spans by what became of them."""

    def __init__(self, exporter: SpanExporter, spans: Spans) -> None:
        self._exporter, self._spans = exporter, spans
        self._queue: queue.Queue[Parcel | None] = queue.Queue(WAITING_STEPS)
        self._lock = threading.Lock()
        self._fates: Counter[str] = Counter()
        self._under_way = 0  # spans of the parcel in the thread's hands
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ranksight-traces", daemon=True)
        self._thread.start()

    @property
    def fates(self) -> dict[str, int]:
        """Spans by fate."""
        with self._lock:
            return {fate: self._fates[fate] for fate in FATES}

    def count(self, fate: str, spans: int) -> None:
        """Note what became of some spans."""
        with self._lock:
            self._fates[fate] += spans

    def put(self, parcel: Parcel) -> None:
        """Have a step sent; never waits, and counts it as dropped when too many are waiting."""
        try:
            self._queue.put_nowait(parcel)
        except queue.Full:
            self.count("dropped_queue", parcel.spans)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is waiting for three quarters of the time, then give up what is left."""
        try:
            self._queue.put(None, timeout=seconds / 4)
            self._thread.join(seconds / 2)
        except queue.Full:
            pass
        self._closing.set()
        self._exporter.shutdown()  # ends the pauses between its attempts
        self._thread.join(seconds / 4)
        while not self._queue.empty():
            left = self._queue.get_nowait()
            self.count("dropped_queue", left.spans if left else 0)
        self._settle("failed", None)  # a request that nobody answers may still be under way

    def _work(self) -> None:
        while not self._closing.is_set() and (parcel := self._queue.get()) is not None:
            try:
                self._send(parcel)
            except Exception:
                log.exception("step %d was not sent", parcel.step)
                self._settle("failed", None)

    def _send(self, parcel: Parcel) -> None:
        with self._lock:
            self._under_way = parcel.spans
        seen = view(parcel.step, parcel.collectives, parcel.events, parcel.offsets)
        spans = self._spans.of(seen, parcel.facts, parcel.reason) if seen.ranks else []
        with self._lock:
            self._under_way = len(spans)
        for begin in range(0, len(spans), SPANS_AT_ONCE):
            some = spans[begin : begin + SPANS_AT_ONCE]
            done = not self._closing.is_set() and self._exporter.export(some) is SpanExportResult.SUCCESS
            self._settle("sent" if done else "failed", len(some))

    def _settle(self, fate: str, spans: int | None) -> None:
        """Note what became of some spans under way, or of all of them; those are counted once, whoever comes first."""
        with self._lock:
            settled = self._under_way if spans is None else min(spans, self._under_way)
            self._under_way -= settled
            self._fates[fate] += settled
