"""Prometheus metrics of all workers together, in prometheus_client's multiprocess mode.

Each worker counts in memory-mapped files of one directory; whichever worker is asked for /metrics adds them up. The
directory must be named in PROMETHEUS_MULTIPROC_DIR before this module is imported.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from s3verbs.gateway.http.exchange import Exchange
from s3verbs.gateway.rdma_lane import Lanes
from s3verbs.gateway.rdma_metrics import TransferMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RequestMetrics:
    """What this worker counts. Loop thread only."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._requests = Counter(
            "s3verbs_requests", "Requests by outcome", ("operation", "status", "code"), registry=registry
        )
        self._seconds = Histogram(
            "s3verbs_request_seconds",
            "From the request's head to the last byte handed to the socket",
            ("operation",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._received = Counter("s3verbs_received_bytes", "Body bytes received", ("operation",), registry=registry)
        self._sent = Counter("s3verbs_sent_bytes", "Body bytes sent", ("operation",), registry=registry)
        self._in_flight = Gauge(
            "s3verbs_requests_in_flight", "Requests being answered", registry=registry, multiprocess_mode="livesum"
        )
        self._connections = Gauge(
            "s3verbs_connections", "Open client connections", registry=registry, multiprocess_mode="livesum"
        )
        self._transfers = TransferMetrics(registry)
        self._outcomes: dict[tuple[str, int, str], Counter] = {}
        self._operations: dict[str, tuple[Histogram, Counter, Counter]] = {}
        self._active = 0

    def started(self) -> None:
        self._active += 1

    def finished(self, exchange: Exchange, seconds: float) -> None:
        self._active -= 1
        outcome = (exchange.operation, exchange.status, exchange.code)
        counter = self._outcomes.get(outcome)
        if counter is None:
            counter = self._outcomes[outcome] = self._requests.labels(outcome[0], str(outcome[1]), outcome[2])
        counter.inc()
        totals = self._operations.get(exchange.operation)
        if totals is None:
            name = exchange.operation
            totals = (self._seconds.labels(name), self._received.labels(name), self._sent.labels(name))
            self._operations[name] = totals
        totals[0].observe(seconds)
        if exchange.bytes_in:
            totals[1].inc(exchange.bytes_in)
        if exchange.bytes_out:
            totals[2].inc(exchange.bytes_out)
        self._transfers.finished(exchange)

    def refused(self, status: int, code: str) -> None:
        self._requests.labels("", str(status), code).inc()

    def sample(self, connections: int, lanes: Lanes) -> None:
        """Publish the gauges; called now and then, since other workers answer for this one."""
        self._in_flight.set(self._active)
        self._connections.set(connections)
        self._transfers.sample(lanes)


class _Storage:
    """Free and total bytes of each payload directory, read when asked."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories

    def collect(self) -> Iterable[Metric]:
        free = GaugeMetricFamily(
            "s3verbs_payload_free_bytes", "Free bytes of a payload directory", labels=["directory"]
        )
        total = GaugeMetricFamily("s3verbs_payload_total_bytes", "Size of its file system", labels=["directory"])
        for directory in self._directories:
            state = os.statvfs(directory)
            free.add_metric([str(directory)], state.f_bavail * state.f_frsize)
            total.add_metric([str(directory)], state.f_blocks * state.f_frsize)
        return [free, total]


def exposition(directories: Sequence[Path], sample: Callable[[], None]) -> bytes:
    """The text that /metrics serves: every worker's counts added up."""
    sample()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    registry.register(_Storage(directories))
    return generate_latest(registry)
