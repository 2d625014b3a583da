"""A collector: takes OTLP over HTTP, decodes the protobuf, and keeps every span with its resource.

    with Collector() as collector:
        ... endpoint=collector.endpoint ...
        collector.spans        [(resource attributes, Span message), ...]
"""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """Listens on loopback while its block lasts; `status` is what it answers."""

    def __init__(self, status: int = 200) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.headers.get("X-Token"), gzip.decompress(body), self.path)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_request(self, *_: object) -> None:
                pass

        self.tokens: list[str | None] = []
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def take(self, token: str | None, body: bytes, path: str) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        assert path == "/v1/traces"
        self.tokens.append(token)
        for of_resource in request.resource_spans:
            resource = attributes(of_resource.resource)
            for of_scope in of_resource.scope_spans:
                self.spans += [(resource, span) for span in of_scope.spans]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def attributes(message: Any) -> dict[str, Any]:
    """Attributes of a protobuf message as Python values."""
    return {entry.key: _value(entry.value) for entry in message.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
