"""The rest of a large plain body, read from the socket straight into payload buffers.

Through the transport each byte is copied three times on its way (read buffer, parser, stream) before it reaches the
payload buffer; for a body of 8 MiB that costs more CPU time than all other steps but MD5 together.
"""

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.exchange import Exchange, Wait
from s3verbs.gateway.http.transport_socket import TransportSocket

DIRECT_BYTES = 256 * 1024
"""What must be left of a body for this path to pay."""

WAKE_AT = 256 * 1024
"""While a client is fast, the loop is woken for so many bytes at once instead of for every few packets."""

FAST_SECONDS = 0.1
"""A client that has not sent WAKE_AT bytes by then is slow: it is looked at for every packet."""


class DirectBody:
    """Takes the connection from aiohttp's parser until the body is complete, then gives it back. Loop thread only.

    `left` counts the bytes still to come. Whoever ends the request early calls `close`: the connection then drops what
    is left as it arrives, as it does with any body that nobody reads.
    """

    def __init__(self, exchange: Exchange, left: int, idle_seconds: float) -> None:
        """The caller has consumed all that the parser has read."""
        self._exchange = exchange
        self._idle_seconds = idle_seconds
        self._wake_at = 1
        self._fast = True
        self.left = left
        self._socket: TransportSocket | None = TransportSocket(exchange.transport, exchange.loop)
        exchange.connection.lend_body()
        exchange.direct = self

    async def receive(self, into: memoryview) -> int:
        """Some of `into`; 0 at the end. Raises S3Error IncompleteBody when the client stopped sending,
        ConnectionError when it is gone."""
        source = self._socket
        if source is None:
            return 0
        view = into[: self.left]
        exchange = self._exchange
        try:
            while (count := source.receive_into(view)) < 0:
                await self._readable(source, len(view))
        except OSError as error:
            # A network that is gone says ETIMEDOUT or EHOSTUNREACH, which Python does not count as ConnectionError.
            raise ConnectionResetError(error.errno, error.strerror) from error
        if count == 0:
            exchange.keep_alive = False
            exchange.connection.half_closed = True
            raise S3Error("IncompleteBody")
        exchange.bytes_in += count
        self.left -= count
        if self.left == 0:
            self.close()
        return count

    async def _readable(self, source: TransportSocket, wanted: int) -> None:
        exchange = self._exchange
        wake_at = min(wanted, WAKE_AT) if self._fast else 1
        if wake_at != self._wake_at:
            source.wake_at(wake_at)
            self._wake_at = wake_at
        begun = exchange.loop.time()
        exchange.allow(Wait.REQUEST_BODY, self._idle_seconds)
        # Otherwise the bytes of a slow client lie unseen in the kernel until the time for its body is over.
        hurry = exchange.loop.call_later(FAST_SECONDS, self._wake_for_any, source) if wake_at > 1 else None
        try:
            await source.readable()
        finally:
            if hurry is not None:
                hurry.cancel()
        exchange.arrived()
        self._fast = exchange.loop.time() - begun < FAST_SECONDS

    def _wake_for_any(self, source: TransportSocket) -> None:
        self._wake_at = 1
        source.wake_at(1)

    def close(self) -> None:
        """Give the connection back. Does nothing the second time."""
        source, self._socket = self._socket, None
        if source is not None:
            if self._wake_at != 1:
                source.wake_at(1)
            source.close()
            self._exchange.connection.return_body(self._exchange.content, self.left)
