"""A request's body: bytes as they come in, payload sources over them, and whole documents.

The framing (Content-Length, HTTP chunks) is aiohttp's; the aws-chunked framing inside it is undone here. `100 Continue`
goes out when the first byte is asked for, so a request that fails earlier is answered without its body.
"""

from collections.abc import Mapping
from types import MappingProxyType

from aiohttp.web_protocol import RequestPayloadError

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.aws_chunked import AwsChunkedDecoder
from s3verbs.gateway.http.direct_body import DIRECT_BYTES, DirectBody
from s3verbs.gateway.http.exchange import Exchange, Wait

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_NO_TRAILERS: Mapping[str, str] = MappingProxyType({})


class Incoming:
    """The body's bytes after HTTP's own framing. `length` is its Content-Length, None for HTTP chunks."""

    def __init__(self, exchange: Exchange, length: int | None, idle_seconds: float) -> None:
        self._exchange = exchange
        self._stream = exchange.content
        self._idle_seconds = idle_seconds
        self.length = length

    async def next(self) -> bytes:
        """Some bytes as they came, b"" at the end. Raises S3Error IncompleteBody (the client stopped sending) or
        BadRequest (bad HTTP chunks); `RequestTimeout` comes from the watchdog."""
        exchange = self._exchange
        stream = self._stream
        if exchange.expects_continue:
            self.send_continue()
        try:
            while True:
                if stream.at_eof():
                    return b""
                exchange.allow(Wait.REQUEST_BODY, self._idle_seconds)
                data, _ = await stream.readchunk()
                exchange.arrived()
                if data:
                    exchange.bytes_in += len(data)
                    return data
        except RequestPayloadError as error:
            exchange.keep_alive = False
            if exchange.connection.half_closed:
                raise S3Error("IncompleteBody") from None
            raise S3Error("BadRequest", f"An error occurred when parsing the HTTP request body: {error}") from None

    def direct(self, left: int) -> DirectBody | None:
        """The rest of a body straight from the socket, where that pays and can be done: a Content-Length, no TLS,
        nothing read ahead."""
        exchange = self._exchange
        if left < DIRECT_BYTES or self.length is None or exchange.secure or not exchange.connection.can_lend_body():
            return None
        if self._stream.total_bytes + left != self.length:
            return None
        return DirectBody(exchange, left, self._idle_seconds)

    def send_continue(self) -> None:
        """Tell a waiting client to go on. Does nothing the second time."""
        if self._exchange.expects_continue:
            self._exchange.expects_continue = False
            self._exchange.transport.write(CONTINUE)


class PlainBody:
    """A payload sent as it is. A PayloadSource. What is left of a large one after the first bytes goes directly into
    the payload buffers."""

    trailers = _NO_TRAILERS

    def __init__(self, incoming: Incoming, length: int) -> None:
        self._incoming = incoming
        self._left = length
        self._rest: memoryview | None = None
        self._direct: DirectBody | None = None
        self.length = length

    async def receive(self, into: memoryview) -> int:
        if self._direct is not None:
            return await self._direct.receive(into)
        rest = self._rest
        if rest is None:
            data = await self._incoming.next()
            if not data:
                if self._left:
                    raise S3Error("IncompleteBody")
                return 0
            self._left -= len(data)
            if self._left < 0:
                raise S3Error("IncompleteBody", "The request body is longer than its declared length.")
            rest = memoryview(data)
        count = min(len(rest), len(into))
        into[:count] = rest[:count]
        self._rest = rest[count:] if count < len(rest) else None
        if self._rest is None:
            self._direct = self._incoming.direct(self._left)
        return count


class AwsChunkedBody:
    """A payload in aws-chunked framing, with or without signatures and a trailer. A PayloadSource."""

    def __init__(self, incoming: Incoming, decoder: AwsChunkedDecoder, length: int) -> None:
        self._incoming = incoming
        self._decoder = decoder
        self._pieces: list[memoryview] = []
        self._next = 0
        self.length = length

    @property
    def trailers(self) -> Mapping[str, str]:
        return self._decoder.trailers

    async def receive(self, into: memoryview) -> int:
        while self._next >= len(self._pieces):
            data = await self._incoming.next()
            if not data:
                self._decoder.close()
                return 0
            self._pieces = self._decoder.feed(data)
            self._next = 0
        filled = 0
        room = len(into)
        while filled < room and self._next < len(self._pieces):
            piece = self._pieces[self._next]
            count = min(len(piece), room - filled)
            into[filled : filled + count] = piece[:count]
            filled += count
            if count < len(piece):
                self._pieces[self._next] = piece[count:]
            else:
                self._next += 1
        return filled


async def read_all(source: Incoming | AwsChunkedBody, limit: int) -> bytes:
    """The whole body. Raises S3Error MaxMessageLengthExceeded above `limit` bytes."""
    if isinstance(source, Incoming):
        if source.length is not None and source.length > limit:
            raise S3Error("MaxMessageLengthExceeded")
        pieces = []
        total = 0
        while data := await source.next():
            total += len(data)
            if total > limit:
                raise S3Error("MaxMessageLengthExceeded")
            pieces.append(data)
        if source.length is not None and total < source.length:
            raise S3Error("IncompleteBody")
        return b"".join(pieces)
    if source.length > limit:
        raise S3Error("MaxMessageLengthExceeded")
    whole = memoryview(bytearray(source.length + 1))
    filled = 0
    while count := await source.receive(whole[filled:]):
        filled += count
    if filled != source.length:
        raise S3Error("IncompleteBody")
    return bytes(whole[:filled])
