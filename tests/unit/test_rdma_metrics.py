"""What the counters make of requests, by the way of their payload and the dialect of their token."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from s3verbs.gateway.rdma_lane import Lane, Lanes
from s3verbs.gateway.rdma_metrics import TransferMetrics
from s3verbs.rdma import token as tokens
from s3verbs.rdma.headers import CUOBJ, DIALECTS, NIXL, Dialect

TOKEN = tokens.parse(f"00007f1dc46fd010:00100000:00000000:0000:000000:0:{0:032x}:cma1:{1:032x}")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> TransferMetrics:
    return TransferMetrics(registry)


def ended(dialect: Dialect | None, outcome: str = "", **fields: Any) -> Any:
    """A request at its end, as the metrics see it."""
    lane = None
    if dialect is not None:
        reason = fields.pop("reason", "")
        lane = Lane(dialect, TOKEN, Lanes({}, None, transfer_timeout=1), outcome=outcome, reason=reason)
        lane.moved = fields.pop("moved", 0)
    shape = {"operation": "GetObject", "status": 200, "bytes_in": 0, "bytes_out": 0, "lane": lane}
    return SimpleNamespace(**(shape | fields))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_requests_are_counted_by_dialect_and_outcome(
    metrics: TransferMetrics, registry: CollectorRegistry, dialect: Dialect
) -> None:
    def count(outcome: str, name: str = dialect.name) -> float | None:
        return registry.get_sample_value("s3verbs_rdma_requests_total", {"dialect": name, "outcome": outcome})

    for _ in range(2):
        metrics.finished(ended(dialect, "moved", moved=1000))
    metrics.finished(ended(dialect, "declined", status=501, reason="no_session"))
    metrics.finished(ended(dialect, "failed", status=503, reason="timeout"))
    metrics.finished(ended(dialect, status=404))
    assert [count(outcome) for outcome in ("moved", "declined", "failed", "none")] == [2, 1, 1, 1]
    other = CUOBJ if dialect is NIXL else NIXL
    assert count("moved", other.name) is None


def test_an_ordinary_request_is_none_of_them(metrics: TransferMetrics, registry: CollectorRegistry) -> None:
    metrics.finished(ended(None, bytes_out=1000))
    metrics.finished(ended(NIXL, "moved", operation="HeadObject"))
    names = {sample.name for metric in registry.collect() for sample in metric.samples}
    assert "s3verbs_rdma_requests_total" not in names
    ways = {"operation": "GetObject", "transport": "http"}
    assert registry.get_sample_value("s3verbs_transport_bytes_total", ways) == 1000
