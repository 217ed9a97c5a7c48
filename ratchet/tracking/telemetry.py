"""A run's metrics and traces for OpenTelemetry, pushed during the run and at its end.

OpenTelemetry's variables (``OTEL_EXPORTER_OTLP_ENDPOINT`` and others) set the destination; without
them, its packages are not imported. An unresponsive collector delays a run by a few seconds.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ratchet.errors import MissingPackageError
from ratchet.lazy import require_packages

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    from ratchet.tracking.live_file import LiveFile, StageRef
    from ratchet.tracking.run_events import RunEvent

logger = logging.getLogger(__name__)

_SCOPE = "ratchet"
_ENDPOINTS = tuple(f"OTEL_EXPORTER_OTLP{signal}_ENDPOINT" for signal in ("", "_METRICS", "_TRACES"))
_TIMEOUT = 3.0
"""Timeout of a push in seconds, unless OpenTelemetry's variable sets it."""
_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000)
_EXPORTERS = tuple(
    f"opentelemetry.exporter.otlp.proto.http.{kind}_exporter" for kind in ("metric", "trace")
)
_TOKENS = ("prompt", "completion", "training")


def _seconds_to_push() -> float | None:
    is_chosen = any(
        name.startswith("OTEL_EXPORTER_OTLP") and "TIMEOUT" in name for name in os.environ
    )
    return None if is_chosen else _TIMEOUT


def _meters(resource: Resource) -> MeterProvider:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(timeout=_seconds_to_push())
    return MeterProvider([PeriodicExportingMetricReader(exporter)], resource)


def _tracers(resource: Resource) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=_seconds_to_push())))
    return tracers


def is_wanted() -> bool:
    """Return whether the environment names a collector."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_off and any(os.environ.get(name) for name in _ENDPOINTS)


def open_telemetry(attributes: Mapping[str, str], live: LiveFile) -> Telemetry | None:
    """Start pushing a run's metrics and traces; None if not requested or a package is missing.

    Parameters
    ----------
    attributes
        Identity of the run, such as its id.
    live
        Current activity of the run.
    """
    if not is_wanted():
        return None
    try:
        require_packages(("opentelemetry.exporter.otlp.proto.http",), "OTEL_EXPORTER_OTLP_ENDPOINT")
    except MissingPackageError as error:
        logger.warning("%s. The run continues without telemetry.", error)
        return None
    return Telemetry(attributes, live)


class _FirstError(logging.Filter):
    """Filter that passes only the first error, so that an unreachable collector is logged once."""

    def __init__(self) -> None:
        super().__init__()
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is the first error."""
        is_new = record.levelno >= logging.ERROR and not self._said
        self._said = self._said or is_new
        return is_new


class Telemetry:
    """The instruments of one run: a listener of its observer, and spans around its stages."""

    def __init__(self, attributes: Mapping[str, str], live: LiveFile) -> None:
        from opentelemetry.sdk.resources import Resource

        instance = f"{attributes['ratchet.run']}@{socket.gethostname()}:{os.getpid()}"
        names = {"service.name": _SCOPE, "service.instance.id": instance, **attributes}
        resource = Resource.create(names)
        self._live = live
        self._complaint = _FirstError()
        for name in _EXPORTERS:
            logging.getLogger(name).addFilter(self._complaint)
        self._metrics, self._traces = _meters(resource), _tracers(resource)
        self._make_instruments(self._metrics.get_meter(_SCOPE))
        self._tracer = self._traces.get_tracer(_SCOPE)
        self._run = self._tracer.start_span(f"run {attributes['ratchet.run']}")

    def _make_instruments(self, meter: Meter) -> None:
        self._stages = meter.create_counter("ratchet.stages", description="Stages, by outcome")
        self._stalls = meter.create_counter("ratchet.stage.stalls", description="Without a sign")
        self._seconds = meter.create_histogram(
            "ratchet.stage.duration",
            "s",
            "Time that a stage took",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._waits = meter.create_histogram(
            "ratchet.stage.wait",
            "s",
            "Time that a run waited for another to make a stage",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._iterations = meter.create_counter("ratchet.iterations", description="Iterations done")
        self._calls = meter.create_counter("ratchet.model.calls", description="Answered calls")
        self._tokens = meter.create_counter("ratchet.model.tokens", description="Tokens, by kind")
        self._cost = meter.create_counter("ratchet.model.cost", description="By the price table")
        self._runs = meter.create_counter("ratchet.runs", description="Runs, by how they ended")
        meter.create_observable_counter(
            "ratchet.progress.steps", [self._observe_steps], description="What loops have counted"
        )
        meter.create_observable_gauge(
            "ratchet.progress.time", [self._observe_sign], "s", "The last sign of life (since 1970)"
        )

    def hear(self, event: RunEvent) -> None:
        """Count an event."""
        subject, _, outcome = event.kind.partition(".")
        if subject == "run":
            self._run_is(outcome, event.message)
            return
        stage = {"arm": event.arm, "stage": event.stage}
        if outcome == "waited":
            self._waits.record(event.seconds or 0.0, stage)
        elif outcome == "stalled":
            self._stalls.add(1, stage)
        elif outcome != "started":
            self._stages.add(1, {**stage, "outcome": outcome})
        if outcome != "computed":
            return
        self._seconds.record(event.seconds or 0.0, stage)
        self._iterations.add(event.iterations, {"arm": event.arm})
        for row in event.usage:
            model = {"model": row["model"], "agent": row["agent"]}
            self._calls.add(row["calls"], model)
            self._cost.add(row["cost"] or 0.0, model)
            for kind in _TOKENS:
                self._tokens.add(row[f"{kind}_tokens"], {**model, "kind": kind})

    def span(self, call: StageRef) -> AbstractContextManager[object]:
        """Return the span around the computation of a stage."""
        from opentelemetry.trace import set_span_in_context

        return self._tracer.start_as_current_span(
            f"stage {call.name}",
            context=set_span_in_context(self._run),
            attributes={"arm": call.arm, "stage": call.name, "iteration": call.iteration},
        )

    def close(self) -> None:
        """Push the remaining data."""
        self._run.end()
        with ThreadPoolExecutor(2) as both:  # each may wait for an unresponsive collector
            both.submit(self._traces.shutdown)
            both.submit(self._metrics.shutdown)
        for name in _EXPORTERS:
            logging.getLogger(name).removeFilter(self._complaint)

    def _run_is(self, outcome: str, message: str) -> None:
        from opentelemetry.trace import StatusCode

        if outcome == "started":
            return
        self._runs.add(1, {"status": outcome})
        self._run.set_attribute("ratchet.status", outcome)
        if outcome == "failed":
            self._run.set_status(StatusCode.ERROR, message)

    def _observe_steps(self, _: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        yield Observation(self._live.now()["done"])

    def _observe_sign(self, _: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        yield Observation(self._live.last_sign)
