"""What people use to see collectives without ranksight, as context managers: a span for each call, torch.profiler.

The Flight Recorder is not here: torch reads its size once per process, so `ranksight bench` compares processes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

WRAPPED = (
    "all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
    "barrier", "send", "recv", "batch_isend_irecv",
)  # fmt: skip - isend and irecv stand in P2POps, which take nothing that only looks like them


@contextlib.contextmanager
def spans() -> Iterator[None]:
    """The naive way: an OpenTelemetry span around the public functions, exported to nowhere."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, _spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Nowhere()))
    tracer = provider.get_tracer("overhead")
    originals = {name: getattr(dist, name) for name in WRAPPED if hasattr(dist, name)}

    def wrapped(name: str, call: Any) -> Any:
        @functools.wraps(call)
        def spanned(*args: Any, **kwargs: Any) -> Any:
            with tracer.start_as_current_span(name):
                return call(*args, **kwargs)

        return spanned

    for name, call in originals.items():
        setattr(dist, name, wrapped(name, call))
    try:
        yield
    finally:
        for name, call in originals.items():
            setattr(dist, name, call)


def others() -> dict[str, Callable[[], AbstractContextManager[object]]]:
    """Those that can be used here, by name."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    known: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "profiler": lambda: torch.profiler.profile(activities=cpu)
    }
    with contextlib.suppress(ImportError):
        import opentelemetry.sdk.trace  # noqa: F401 - is it there?

        known["spans"] = spans
    return known
