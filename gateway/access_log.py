"""The access log: one JSON line per request.

Fields: time (RFC 3339, UTC), request_id, remote, method, operation, bucket, key, status, code (S3's error code or ""),
bytes_in, bytes_out (payload and document bytes over HTTP, without heads), duration_ms, user_agent, access_key,
rdma (the transport that a token asked for: samehost, rc or dc, or ""), rdma_dialect (whose header brought it: cuobj or
nixl), rdma_outcome (moved, declined or failed), rdma_reason (of the last two), rdma_device, rdma_bytes, rdma_ms.
"""

import time
from collections.abc import Mapping
from typing import Any

from s3verbs.gateway.http.exchange import Exchange
from s3verbs.gateway.json_lines import Entry, JsonLines
from s3verbs.gateway.rdma_lane import Lane

_FIELDS = (
    "time",
    "request_id",
    "remote",
    "method",
    "operation",
    "bucket",
    "key",
    "status",
    "code",
    "bytes_in",
    "bytes_out",
    "duration_ms",
    "user_agent",
    "access_key",
    "rdma",
    "rdma_dialect",
    "rdma_outcome",
    "rdma_reason",
    "rdma_device",
    "rdma_bytes",
    "rdma_ms",
)
_NO_RDMA = ("", "", "", "", "", 0, 0.0)


class AccessLog:
    """Loop thread only."""

    def __init__(self, target: str) -> None:
        """Raises OSError when the file cannot be opened."""
        self.lines = JsonLines(target, _encode)

    def record(self, exchange: Exchange, seconds: float) -> None:
        self.lines.append(
            (
                time.time(),
                exchange.id,
                exchange.remote,
                exchange.method,
                exchange.operation,
                exchange.bucket,
                exchange.key,
                exchange.status,
                exchange.code,
                exchange.bytes_in,
                exchange.bytes_out,
                seconds,
                exchange.user_agent,
                exchange.access_key,
                *(_NO_RDMA if exchange.lane is None else _rdma(exchange.lane)),
            )
        )

    def refused(self, remote: str, request_id: str, status: int, code: str) -> None:
        self.lines.append((time.time(), request_id, remote, "", "", "", "", status, code, 0, 0, 0.0, "", "", *_NO_RDMA))


def _rdma(lane: Lane) -> Entry:
    return (
        lane.token.transport.value,
        lane.dialect.name,
        lane.outcome,
        lane.reason,
        lane.device,
        lane.moved,
        lane.seconds,
    )


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC, with milliseconds."""
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


def _encode(entry: Entry) -> Mapping[str, Any]:
    fields = dict(zip(_FIELDS, entry, strict=True))
    fields["time"] = timestamp(entry[0])
    fields["duration_ms"] = round(entry[11] * 1000, 3)
    fields["rdma_ms"] = round(entry[-1] * 1000, 3)
    return fields
