"""One request and what has become of it: filled in step by step, read by the logs and metrics at the end."""

import asyncio
import socket
import struct
from contextlib import suppress
from enum import Enum
from time import perf_counter
from typing import TYPE_CHECKING

from aiohttp import StreamReader, web

if TYPE_CHECKING:
    from s3verbs.gateway.http.connection import Connection
    from s3verbs.gateway.http.direct_body import DirectBody
    from s3verbs.gateway.rdma_lane import Lane


_RESET = struct.pack("ii", 1, 0)

SLOWEST = 1024
"""Bytes a second below which a client does not count as moving."""


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
    `lane` is there for a request with an RDMA token.
    """

    __slots__ = (
        "_moved",
        "_since",
        "_waited",
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
        "lane",
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
        self._moved = 0
        self._waited = 0.0
        self._since = 0.0
        self.direct: DirectBody | None = None
        self.lane: Lane | None = None
        self.expired = Wait.NOTHING

    def allow(self, wait: Wait, seconds: float) -> None:
        """Start waiting for something that may take so long.

        Waits of one kind add up until SLOWEST bytes have moved for each of the seconds: a client that sends or reads a
        byte now and then is stopped like one that does nothing.
        """
        moved = self.bytes_in + self.bytes_out
        if wait is not self.wait or moved - self._moved >= SLOWEST * seconds:
            self._moved = moved
            self._waited = 0.0
            self.wait = wait
        self._since = self.loop.time()
        self.deadline = self._since + seconds - self._waited

    def arrived(self) -> None:
        """The wait is over."""
        self._waited += self.loop.time() - self._since
        self.deadline = 0.0

    def abort(self) -> None:
        """Cut the connection: the client sees a reset, never a short body that looks complete. What the kernel has yet
        to send goes with it; otherwise a client that reads slowly would keep megabytes of it for hours."""
        self.keep_alive = False
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()
