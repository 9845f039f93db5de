"""aiohttp's HTTP/1.1 connection with S3's manners: XML for unparsable requests, head timeout, half-close, drain.

aiohttp (3.14) parses and frames; this module changes only how its `RequestHandler` meets errors and the end of a
connection. Everything that reaches into it is here.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler, RequestPayloadError

Refuse = Callable[["Connection", str, str], bytes]
"""(connection, S3 code, message) -> a complete response that closes the connection. It also logs the refusal."""

LINGER_SECONDS = 3.0
"""How long a body that nobody wants is read and dropped, so that the client gets to see the error."""

HALF_CLOSED_SECONDS = 0.1
"""How often a connection that is closed on the client's side is looked at."""

QUIET_SECONDS = 1.0
"""A client that sent nothing for so long is taken to be idle when the server stops."""

MAX_HEADERS = 128

MAX_HEAD = 64 * 1024
"""Bytes of a head that is not complete. The parser alone would keep MAX_HEADERS of the longest fields, for anybody."""


class Sent(web.StreamResponse):
    """What aiohttp is told about a response that is on the wire already: whether the connection may stay."""

    def __init__(self, keep_alive: bool) -> None:
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing: it was sent by the lifecycle."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing: it was sent by the lifecycle."""


KEEP = Sent(True)
CLOSE = Sent(False)


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds; `line` bounds the request line and each header, in bytes."""

    header_timeout: float = 30.0
    keep_alive_timeout: float = 75.0
    max_connections: int = 4096
    line: int = 16 * 1024


class Connection(RequestHandler):
    """One client connection. Never lets aiohttp write a response of its own."""

    __slots__ = (
        "_dropping",
        "_head_begun",
        "_head_bytes",
        "_head_timer",
        "_lent",
        "_limits",
        "_listener",
        "_made",
        "_refuse",
        "half_closed",
        "remote",
        "secure",
    )

    def __init__(self, listener: "Listener", limits: Limits, refuse: Refuse, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            listener,
            loop=loop,
            keepalive_timeout=limits.keep_alive_timeout,
            access_log=None,  # type: ignore[arg-type]
            max_line_size=limits.line,
            max_field_size=limits.line,
            max_headers=MAX_HEADERS,
            lingering_time=LINGER_SECONDS,
            read_bufsize=listener.read_buffer,
            auto_decompress=False,
        )
        self._listener = listener
        self._limits = limits
        self._refuse = refuse
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_begun = False
        self._head_bytes = 0
        self._lent: StreamReader | None = None
        self._dropping = 0
        self._made = loop.time()
        self.remote = ""
        self.secure = False
        self.half_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.remote = peer[0] if isinstance(peer, tuple) else ""
        self.secure = transport.get_extra_info("sslcontext") is not None
        self._head_timer = self._loop.call_later(self._limits.header_timeout, self._head_late)
        if len(self._listener.open) > self._limits.max_connections:
            self._answer_and_close("SlowDown", "The server has as many connections as it may.")

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def can_lend_body(self) -> bool:
        """Whether nothing of the body waits in the parser or the stream."""
        return self.transport is not None and not self._reading_paused and not self._buffer_paused

    def lend_body(self) -> None:
        """Stop reading: the rest of the body is taken from the socket by somebody else, until `return_body`."""
        self._pause_transport_reading()

    def return_body(self, content: StreamReader, left: int) -> None:
        """Read again. The next `left` bytes belong to a body that nobody wants; then a new request may come."""
        if self.transport is None:
            return
        self._lent = content
        self._dropping = left
        if left == 0:
            self._end_lent_body()
        self._resume_transport_reading()

    def _end_lent_body(self) -> None:
        content, self._lent = self._lent, None
        assert content is not None
        # The parser still waits for the bytes that went past it; another one begins with the next request.
        self._parser = HttpRequestParser(
            self,
            self._loop,
            self._read_bufsize,
            max_line_size=self._limits.line,
            max_field_size=self._limits.line,
            max_headers=MAX_HEADERS,
            payload_exception=RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=self._max_msg_queue_size,
        )
        content.feed_eof()

    def data_received(self, data: bytes) -> None:
        if self._lent is not None and data:
            dropped = min(len(data), self._dropping)
            self._dropping -= dropped
            data = data[dropped:]
            if self._dropping:
                return
            self._end_lent_body()
            if not data:
                return
        request, waiter = self._current_request, self._waiter
        # The first bytes can be here before aiohttp's task has begun to wait for them.
        awaited = waiter is not None or self._request_count == 0
        in_head = awaited if request is None else request.content.is_eof()
        super().data_received(data)
        if self._request_count == 0 or (waiter is not None and not waiter.done()):
            # Part of a head: the rest must come in time, however slowly it trickles.
            self._head_begun = bool(data)
            if self._head_timer is None and data:
                self._head_timer = self._loop.call_later(self._limits.header_timeout, self._head_late)
        elif self._head_timer is not None and self._messages:
            self._stop_head_timer()
        if self._messages:
            self._head_bytes = 0
            if request is not None:
                self.fail_broken_body(request)
        elif in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._head_too_large()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio.Protocol lets it say whether to stay open
        """The client will send no more. A request that is being answered is still answered, as HTTP allows; one whose
        body is incomplete fails at once."""
        self.half_closed = True
        if self.idle:
            return False
        if self._current_request is not None:
            self.fail_broken_body(self._current_request)
        self._close_when_idle()
        return not self.secure

    def _close_when_idle(self) -> None:
        """A client that stopped sending while its answer was on the way, as a connection to keep, sends no other
        request: nothing would end the connection before the keep-alive timeout."""
        if self.transport is None:
            return
        if self.idle:
            self.force_close()
        else:
            self._loop.call_later(HALF_CLOSED_SECONDS, self._close_when_idle)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp calls this for a request that it cannot parse, and when a handler raises, which ours does not."""
        transport = self.transport
        if transport is None:
            return CLOSE
        if not isinstance(exc, HttpProcessingError):
            transport.abort()
            return CLOSE
        transport.write(self._refuse(self, *_parse_error(exc)))
        return CLOSE

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Parse errors are the client's; what our handlers raise is logged by the lifecycle."""

    @property
    def idle(self) -> bool:
        """No request is being read or answered."""
        waiter = self._waiter
        return not self._messages and (self._request_count == 0 or (waiter is not None and not waiter.done()))

    def quiet_seconds(self) -> float:
        """How long ago the connection was made or its last response was sent."""
        return self._loop.time() - max(self._made, self._next_keepalive_close_time - self._keepalive_timeout)

    def fail_broken_body(self, request: web.BaseRequest) -> None:
        """Let the reader of a body know that the rest will not come.

        When the parser gives up inside a body, aiohttp queues the error as the next request and leaves the reader
        waiting for ever; and so it does when the client stops sending.
        """
        if request.content.is_eof():
            return
        if self.half_closed:
            request.content.set_exception(RequestPayloadError("the client stopped sending"))
        elif self._messages:
            error = getattr(self._messages[-1][0], "exc", None)
            if isinstance(error, HttpProcessingError):
                request.content.set_exception(RequestPayloadError(error.message))

    def _head_late(self) -> None:
        self._head_timer = None
        if self.transport is None or not self.idle:
            return
        if self._head_begun:
            self._answer_and_close("RequestTimeout", None)
        else:
            self.force_close()

    def _head_too_large(self) -> None:
        if self.idle:
            self._answer_and_close("RequestHeaderSectionTooLarge", None)
        elif self.transport is not None:
            # No answer could go out before that of the request in progress, and it may never be read.
            self.transport.abort()

    def _answer_and_close(self, code: str, message: str | None) -> None:
        transport = self.transport
        if transport is not None:
            transport.write(self._refuse(self, code, message or ""))
        self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Listener(web.Server):
    """Makes a Connection for each client. `open` are those that are connected."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        limits: Limits,
        refuse: Refuse,
        loop: asyncio.AbstractEventLoop,
        on_closed: Callable[[], None] = lambda: None,
        read_buffer: int = 128 * 1024,
    ) -> None:
        super().__init__(handler, handler_cancellation=True, loop=loop)
        self.read_buffer = read_buffer
        self.open: set[Connection] = set()
        self.draining = False
        self._limits = limits
        self._refuse = refuse
        self._on_closed = on_closed

    def __call__(self) -> Connection:
        return Connection(self, self._limits, self._refuse, self._loop)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        assert isinstance(handler, Connection)
        self.open.add(handler)
        super().connection_made(handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        assert isinstance(handler, Connection)
        super().connection_lost(handler, exc)
        if handler in self.open:
            self.open.discard(handler)
            self._on_closed()

    async def drain(self, seconds: float) -> int:
        """Close connections that have been quiet for a while, and the others after their next response, or all after
        so many seconds; the count of those cut.

        A connection is not closed under a client that may be sending its next request at this moment: some clients
        cannot send a chunked body a second time. aiohttp's own shutdown drops the rest of a body that is being read,
        so it comes only last.
        """
        self.draining = True
        deadline = self._loop.time() + seconds
        while self.open:
            for connection in [each for each in self.open if each.idle and each.quiet_seconds() >= QUIET_SECONDS]:
                connection.force_close()
            if self._loop.time() >= deadline:
                break
            await asyncio.sleep(0.02)
        cut = len(self.open)
        for connection in list(self.open):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)
        await self.shutdown(1.0)
        return cut


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Raises OSError or ssl.SSLError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _parse_error(error: HttpProcessingError) -> tuple[str, str]:
    if isinstance(error, LineTooLong) or "Too many headers" in error.message:
        return "RequestHeaderSectionTooLarge", ""
    return "BadRequest", "An error occurred when parsing the HTTP request."
