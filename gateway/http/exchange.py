"""One request and what has become of it: filled in step by step, read by the logs and metrics at the end."""

import asyncio
from enum import Enum
from time import perf_counter
from typing import TYPE_CHECKING

from aiohttp import StreamReader, web

if TYPE_CHECKING:
    from s3verbs.gateway.http.connection import Connection
    from s3verbs.gateway.http.direct_body import DirectBody


class Wait(Enum):
    """What an exchange is waiting for, and so what its deadline means."""

    NOTHING = 0
    FIRST_BYTE = 1
    REQUEST_BODY = 2
    CLIENT_READ = 3


class Exchange:
    """A request in progress. Used only on the loop thread.

    `committed` is set once a byte of the response is out: from then on a failure can only abort the connection.
    `keep_alive` is cleared by whatever makes the connection unusable. `started` is perf_counter's time, `deadline` the
    loop's; past it the watchdog sets `expired` to `wait` and cancels `task`. `secure` says whether this connection is
    TLS, `secure_client` whether the client's is, which may end at a proxy. `direct` reads the rest of a large body.
    """

    __slots__ = (
        "access_key",
        "bucket",
        "bytes_in",
        "bytes_out",
        "code",
        "committed",
        "connection",
        "content",
        "deadline",
        "direct",
        "expects_continue",
        "expired",
        "host",
        "http11",
        "id",
        "keep_alive",
        "key",
        "loop",
        "method",
        "operation",
        "remote",
        "request",
        "secure",
        "secure_client",
        "started",
        "status",
        "task",
        "transport",
        "user_agent",
        "wait",
    )

    def __init__(self, request: web.BaseRequest, id: str, loop: asyncio.AbstractEventLoop) -> None:
        connection: Connection = request.protocol  # type: ignore[assignment]
        self.request = request
        self.connection = connection
        self.id = id
        self.loop = loop
        self.started = perf_counter()
        transport = request.transport
        assert transport is not None
        self.transport: asyncio.Transport = transport
        self.content: StreamReader = request.content
        self.method = request.method
        self.http11 = request.version >= (1, 1)
        self.keep_alive = request.keep_alive
        self.remote = connection.remote
        self.secure = connection.secure
        self.secure_client = connection.secure
        self.host = ""
        self.user_agent = ""
        self.expects_continue = False
        self.operation = ""
        self.bucket = ""
        self.key = ""
        self.access_key = ""
        self.status = 0
        self.code = ""
        self.bytes_in = 0
        self.bytes_out = 0
        self.committed = False
        self.task: asyncio.Task[object] | None = None
        self.wait = Wait.NOTHING
        self.deadline = 0.0
        self.direct: DirectBody | None = None
        self.expired = Wait.NOTHING

    def allow(self, wait: Wait, seconds: float) -> None:
        """Start waiting for something that may take so long."""
        self.wait = wait
        self.deadline = self.loop.time() + seconds

    def arrived(self) -> None:
        """The wait is over."""
        self.deadline = 0.0

    def abort(self) -> None:
        """Cut the connection, so that a client never takes what it got for a whole response."""
        self.keep_alive = False
        self.transport.abort()
