"""What is told about requests: ids, and the end of each request to the access log, the audit log and the metrics."""

import logging
from itertools import count
from time import perf_counter

from s3verbs.gateway.access_log import AccessLog
from s3verbs.gateway.audit import AuditLog
from s3verbs.gateway.http.exchange import Exchange
from s3verbs.gateway.metrics import RequestMetrics

log = logging.getLogger("s3verbs")


class RequestIds:
    """Ids of 16 upper-case hex digits, as AWS's look: a random half of this process, then a counter."""

    def __init__(self, prefix: str) -> None:
        """`prefix` is 8 hex digits, different in every process that ever runs."""
        self._prefix = prefix.upper()
        self._count = count(1)

    def next(self) -> str:
        return f"{self._prefix}{next(self._count) & 0xFFFFFFFF:08X}"


class Observer:
    """Told once about each request, when it is over. Loop thread; does no I/O itself."""

    def __init__(self, access: AccessLog | None, audit: AuditLog | None, metrics: RequestMetrics) -> None:
        self._access = access
        self._audit = audit
        self._metrics = metrics

    def started(self) -> None:
        self._metrics.started()

    def authorized(self, exchange: Exchange, action: str, resource: str = "") -> None:
        """`resource` is "bucket/key" when it is not what the request is addressed to, as a copy's source."""
        if self._audit is not None:
            self._audit.record(exchange, action, "allowed", "", resource)

    def denied(self, exchange: Exchange, action: str, code: str, resource: str = "") -> None:
        """`resource` as in `authorized`."""
        if self._audit is not None:
            self._audit.record(exchange, action, "denied", code, resource)

    def finished(self, exchange: Exchange) -> None:
        seconds = perf_counter() - exchange.started
        self._metrics.finished(exchange, seconds)
        if self._access is not None:
            self._access.record(exchange, seconds)

    def failed(self, exchange: Exchange, error: BaseException) -> None:
        """An InternalError: the only place where its cause is told."""
        log.error(
            "request %s %s: %s %r: internal error",
            exchange.id,
            exchange.operation or "?",
            exchange.method,
            # Quoted: a key may hold line ends.
            f"{exchange.bucket}/{exchange.key}",
            exc_info=error,
        )

    def refused(self, remote: str, request_id: str, status: int, code: str) -> None:
        """A request that could not be parsed."""
        self._metrics.refused(status, code)
        if self._access is not None:
            self._access.refused(remote, request_id, status, code)
