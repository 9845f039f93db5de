"""What is counted of payloads by the way they took, HTTP included. One object per worker; see `metrics` for how the
workers' counts come together."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from s3verbs.gateway.http.exchange import Exchange
from s3verbs.gateway.rdma_lane import DATA_OPERATIONS, Lanes
from s3verbs.rdma.fabric import CHUNK

HTTP = "http"
NOTHING = "none"
"""The outcome of a request that ended before its payload's turn: no such object, a condition that is not met."""

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds of a transfer."""


class TransferMetrics:
    """Loop thread only. An operation counts under the transport that moved its bytes; one that failed under none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("operation", "transport")
        self._operations = Counter(
            "s3verbs_transport_operations", "Data operations by the way of their payload", labels, registry=registry
        )
        self._bytes = Counter(
            "s3verbs_transport_bytes", "Payload bytes by the way they took", labels, registry=registry
        )
        self._seconds = Histogram(
            "s3verbs_rdma_transfer_seconds",
            "From opening the client's buffer to the last completion",
            labels,
            buckets=BUCKETS,
            registry=registry,
        )
        self._requests = Counter(
            "s3verbs_rdma_requests",
            "Requests with an RDMA token, by the header that brought it and what became of the payload",
            ("dialect", "outcome"),
            registry=registry,
        )
        self._declines = Counter(
            "s3verbs_rdma_declines", "Requests with an RDMA token that were declined", ("reason",), registry=registry
        )
        self._failures = Counter("s3verbs_rdma_failures", "RDMA transfers that failed", ("reason",), registry=registry)
        self._pool_bytes = _gauge("s3verbs_rdma_pool_bytes", "Registered buffers", registry)
        self._pool_used = _gauge("s3verbs_rdma_pool_used_bytes", "Registered buffers that requests hold", registry)
        self._pool_waiting = _gauge("s3verbs_rdma_pool_waiting", "Requests that wait for a registered buffer", registry)
        self._connections = _gauge("s3verbs_rdma_connections", "Open RDMA connections", registry)
        self._ways: dict[tuple[str, str], tuple[Counter, Counter]] = {}
        self._spoken: dict[tuple[str, str], Counter] = {}

    def finished(self, exchange: Exchange) -> None:
        operation = exchange.operation
        if operation not in DATA_OPERATIONS:
            return
        lane = exchange.lane
        if lane is not None:
            self._request(lane.dialect.name, lane.outcome or NOTHING).inc()
        if lane is None or lane.outcome in ("", "declined"):
            if lane is not None and lane.outcome:
                self._declines.labels(lane.reason).inc()
            if exchange.status in (200, 206):
                operations, count = self._way(operation, HTTP)
                operations.inc()
                count.inc(exchange.bytes_out if operation == "GetObject" else exchange.bytes_in)
        elif lane.outcome == "failed":
            self._failures.labels(lane.reason).inc()
        else:
            transport = lane.token.transport.value
            if exchange.status in (200, 206):
                operations, count = self._way(operation, transport)
                operations.inc()
                count.inc(lane.moved)
            self._seconds.labels(operation, transport).observe(lane.seconds)

    def _request(self, dialect: str, outcome: str) -> Counter:
        counter = self._spoken.get((dialect, outcome))
        if counter is None:
            counter = self._spoken[dialect, outcome] = self._requests.labels(dialect, outcome)
        return counter

    def _way(self, operation: str, transport: str) -> tuple[Counter, Counter]:
        """Looked up once: it costs more than counting."""
        way = self._ways.get((operation, transport))
        if way is None:
            way = self._operations.labels(operation, transport), self._bytes.labels(operation, transport)
            self._ways[operation, transport] = way
        return way

    def sample(self, lanes: Lanes) -> None:
        """Publish the gauges."""
        if lanes.routes:
            pool = lanes.pool
            self._pool_bytes.set(pool.total * CHUNK)
            self._pool_used.set((pool.total - pool.idle) * CHUNK)
            self._pool_waiting.set(pool.waiting)
            self._connections.set(lanes.connections)


def _gauge(name: str, text: str, registry: CollectorRegistry) -> Gauge:
    return Gauge(name, text, registry=registry, multiprocess_mode="livesum")
