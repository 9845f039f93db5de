"""Signed S3 requests to one endpoint, one try each: connection, signature, answer. `attempts` has what is tried
again."""

import html
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from s3verbs.rdma.client.connection import Broken, Connection, Response, read_all
from s3verbs.rdma.client.credentials import KeySource
from s3verbs.rdma.client.errors import BadAnswer, S3Error, s3_error
from s3verbs.rdma.client.pool import ConnectionPool, proxy_for, tls_context
from s3verbs.rdma.client.signing import EMPTY_SHA256, UNSIGNED, Signer, encoded_path, encoded_query

if TYPE_CHECKING:
    from s3verbs.rdma.client.proxied import ProxiedRoute

_DOCUMENT_LIMIT = 1 << 20
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")


class Cancelled(Exception):
    """Another thread called Cancel.now()."""


class Cancel:
    """Lets another thread end an operation that waits for the server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self.event = threading.Event()

    @property
    def requested(self) -> bool:
        return self.event.is_set()

    def now(self) -> None:
        with self._lock:
            self.event.set()
            for connection in self._connections:
                connection.abort()

    def begin(self, connection: Connection) -> None:
        with self._lock:
            if self.requested:
                raise Cancelled
            self._connections.add(connection)

    def end(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)


@dataclass(slots=True)
class Call:
    """One request. Header names in lower case. `body` is iterated anew for each try; `length` is its size, None for a
    request that has no body at all."""

    method: str
    bucket: str
    key: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Iterable[memoryview] = ()
    length: int | None = None


class Answer:
    """The head of an answer, and its body. A context manager: leaving it gives the connection back or closes it.
    Reading raises Broken and BadAnswer."""

    __slots__ = ("_cancel", "_connection", "_deadline", "_pool", "_response", "headers", "length", "status")

    def __init__(
        self,
        response: Response,
        deadline: float,
        connection: Connection | None = None,
        pool: ConnectionPool | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        self._response = response
        self._deadline = deadline
        self._connection = connection
        self._pool = pool
        self._cancel = cancel
        self.status = response.status
        self.headers = response.headers
        self.length = response.length

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        connection, pool = self._connection, self._pool
        if connection is not None and self._cancel is not None:
            self._cancel.end(connection)
        try:
            reusable = kind is None and self._response.close(self._deadline)
        except (Broken, BadAnswer):
            reusable = False
        if connection is None or pool is None:
            return
        if reusable:
            pool.release(connection)
        else:
            connection.close()

    def read_into(self, view: memoryview) -> int:
        """As Response.read_into."""
        return self._response.read_into(view, self._deadline)

    def document(self) -> str:
        """The body of a small answer, as text."""
        return read_all(self._response, _DOCUMENT_LIMIT, self._deadline).decode("utf-8", "replace")

    def error(self) -> S3Error:
        """What an answer with another status than 2xx says. Reads the body; one that is cut is no S3 document."""
        headers = self.headers
        code, message = headers.get("x-amz-error-code", ""), headers.get("x-amz-error-message", "")
        try:
            document = self.document()
        except (Broken, BadAnswer):
            document = ""
        found = _CODE.search(document)
        if found:
            code = html.unescape(found[1])
            said = _MESSAGE.search(document)
            message = html.unescape(said[1]) if said else message
        elif not code:
            code = {304: "NotModified", 404: "NotFound", 412: "PreconditionFailed"}.get(self.status, "")
        after = headers.get("retry-after", "")
        return s3_error(
            self.status,
            code,
            message,
            request_id=headers.get("x-amz-request-id", ""),
            retry_after=float(after) if after.isdecimal() and len(after) < 6 else None,
        )


class Control:
    """Any thread."""

    def __init__(self, endpoint: str, keys: KeySource, region: str, *, verify: bool | str, user_agent: str) -> None:
        """Raises ValueError for an endpoint that is not http(s)://host[:port]."""
        parts = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"the endpoint {endpoint!r} is not http(s)://host[:port]")
        is_tls = parts.scheme == "https"
        default = 443 if is_tls else 80
        self.host: str = parts.hostname
        self.port: int = parts.port or default
        name = f"[{self.host}]" if ":" in self.host else self.host
        self._keys = keys
        self._user_agent = f"user-agent: {user_agent}\r\n"
        self._signer = Signer(name if self.port == default else f"{name}:{self.port}", region)
        context = tls_context(verify) if is_tls else None
        proxy = proxy_for(parts.scheme, self.host)
        self._pool = ConnectionPool(self.host, self.port, context)
        self._proxied: ProxiedRoute | None = None
        if proxy is not None:
            from s3verbs.rdma.client import proxied

            self._proxied = proxied.ProxiedRoute(parts.scheme, self.host, self.port, proxy, context)

    def exchange(self, call: Call, deadline: float, cancel: Cancel | None = None) -> Answer:
        """Send it and read the answer's head. Raises NotSent, Broken, BadAnswer, Cancelled."""
        headers = call.headers
        if "x-amz-content-sha256" not in headers:
            headers = {**headers, "x-amz-content-sha256": UNSIGNED if call.length else EMPTY_SHA256}
        head = self._signer.head(
            call.method,
            encoded_path(call.bucket, call.key),
            encoded_query(call.query) if call.query else "",
            headers,
            self._keys.keys(),
        )
        head += self._user_agent
        if self._proxied is not None:
            return Answer(self._proxied.exchange(head, call.body, call.length, deadline), deadline)
        if call.length is not None:
            head = f"{head}content-length: {call.length}\r\n"
        connection = self._pool.acquire(deadline)
        try:
            if cancel is not None:
                cancel.begin(connection)
            connection.send(f"{head}\r\n".encode("ascii"), call.body, deadline)
            response = connection.receive(call.method, deadline)
        except BaseException as error:
            if cancel is not None:
                cancel.end(connection)
            connection.close()
            if cancel is not None and cancel.requested and not isinstance(error, Cancelled):
                raise Broken("cancelled") from error
            raise
        return Answer(response, deadline, connection, self._pool, cancel)

    def can_sign(self) -> bool:
        """Whether there are keys. A token in an anonymous request would be refused."""
        return self._keys.keys() is not None

    def reload_keys(self) -> bool:
        """The server says that the keys have expired. Whether there may be others."""
        keys = self._keys.keys()
        return keys is not None and self._keys.reload(keys)

    def follow_clock(self, answer: Answer) -> bool:
        """The server says that this machine's clock is wrong. Whether its answer tells by how much."""
        try:
            theirs = parsedate_to_datetime(answer.headers["date"]).timestamp()
        except (KeyError, ValueError):
            return False
        self._signer.follow(theirs)
        return True

    def close(self) -> None:
        self._pool.close()
        if self._proxied is not None:
            self._proxied.close()
