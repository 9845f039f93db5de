"""The audit log: one JSON line per authorization decision.

Fields: time (RFC 3339, UTC), request_id, remote, access_key (as claimed when it was not verified), operation, action,
resource (the ARN), decision ("allowed" or "denied"), code (why it was denied).
"""

import time
from collections.abc import Mapping
from typing import Any

from s3verbs.gateway.access_log import timestamp
from s3verbs.gateway.http.exchange import Exchange
from s3verbs.gateway.json_lines import Entry, JsonLines

_FIELDS = ("time", "request_id", "remote", "access_key", "operation", "action", "resource", "decision", "code")


class AuditLog:
    """Loop thread only."""

    def __init__(self, target: str) -> None:
        """Raises OSError when the file cannot be opened."""
        self.lines = JsonLines(target, _encode)

    def record(self, exchange: Exchange, action: str, decision: str, code: str, resource: str = "") -> None:
        """`resource` as in `Observer.authorized`."""
        if not resource:
            resource = f"{exchange.bucket}/{exchange.key}" if exchange.key else exchange.bucket
        self.lines.append(
            (
                time.time(),
                exchange.id,
                exchange.remote,
                exchange.access_key,
                exchange.operation,
                action,
                f"arn:aws:s3:::{resource}",
                decision,
                code,
            )
        )


def _encode(entry: Entry) -> Mapping[str, Any]:
    fields = dict(zip(_FIELDS, entry, strict=True))
    fields["time"] = timestamp(entry[0])
    return fields
