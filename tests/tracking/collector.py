"""A collector for OpenTelemetry that stores the data pushed over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Points = dict[tuple[str, tuple[tuple[str, Any], ...]], float]


class Collector:
    """Pushed data: the last value of each metric, spans, resources, headers."""

    def __init__(self) -> None:
        self.points: Points = {}
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def value(self, metric: str, **attributes: Any) -> float:
        """Return a metric's sum over all series that have the attributes."""
        wanted = attributes.items()
        return sum(v for (name, a), v in self.points.items() if name == metric and wanted <= set(a))

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        """Store the data of a request."""
        self.headers.append(headers)
        if path == "/v1/traces":
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in part.scope_spans for span in scope.spans]
            return
        for part in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.resources.append(plain(part.resource.attributes))
            for scope in part.scope_metrics:
                for metric in scope.metrics:
                    self._take_metric(metric)

    def _take_metric(self, metric: Any) -> None:
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            kind = point.WhichOneof("value") if "value" in point.DESCRIPTOR.oneofs_by_name else None
            value = getattr(point, kind) if kind else point.sum
            place = tuple(sorted(plain(point.attributes).items()))
            self.points[metric.name, place] = value


def plain(attributes: Any) -> dict[str, Any]:
    """Return attributes as plain data."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector at ``collector.url``."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body, dict(self.headers))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
