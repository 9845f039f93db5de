"""One keep-alive HTTP/1.1 connection, for small control requests at little cost and bodies straight from and to memory.

For a request without a body, system calls included, http.client takes 7 times the CPU time of this, urllib3 13 times.
It reads all of HTTP/1.1 that a server may answer: 1xx, Content-Length, chunked, until the end of the connection.
Requests through a proxy go to `proxied`.
"""

import re
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from s3verbs.rdma.client.errors import BadAnswer

T = TypeVar("T")
A = TypeVar("A")

_STATUS_LINE = re.compile(r"HTTP/1\.[0-9] [1-9][0-9]{2}(?: |$)")
_HEAD_LIMIT = 64 << 10
_RECEIVE = 64 << 10
_SEND = 1 << 20
_SLICE = 1.0
"""Seconds after which a system call comes back to look at the deadline."""
_DRAIN = 64 << 10
"""What is left of a body is read to keep the connection up to here."""


class NotSent(Exception):
    """No byte of the request has reached the server."""

    def __init__(self, text: str, *, timeout: bool = False) -> None:
        super().__init__(text)
        self.timeout = timeout


class Broken(Exception):
    """The request was sent, at least in part, and no whole answer came."""

    def __init__(self, text: str, *, timeout: bool = False) -> None:
        super().__init__(text)
        self.timeout = timeout


class Response(Protocol):
    """An answer whose head was read. `headers` has lower-case names; repeated ones are joined with ", ".

    `length` is what Content-Length says, None without. Methods raise Broken, and BadAnswer when it is not HTTP.
    """

    status: int
    headers: dict[str, str]
    length: int | None

    def read_into(self, view: memoryview, deadline: float) -> int:
        """Fill the view from the body; fewer bytes than it has room for at the end of the body only."""

    def close(self, deadline: float) -> bool:
        """No more is wanted. Whether the connection can take another request."""


def time_left(deadline: float) -> float:
    """Seconds until then. Raises TimeoutError when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


def read_all(response: Response, limit: int, deadline: float) -> bytes:
    """The body, cut at `limit` bytes."""
    data = bytearray(min(limit, response.length if response.length is not None else limit))
    view = memoryview(data)
    return bytes(view[: response.read_into(view, deadline)]) if data else b""


class Connection:
    """Owned by one thread at a time. `deadline`s are of time.monotonic."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._duplex = select.poll()
        self._duplex.register(sock, select.POLLIN | select.POLLOUT)
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        # On TLS, what can be received may be the protocol's own.
        self._watches = self._is_plain
        self._slice = 0.0
        if self._is_plain:
            sock.settimeout(None)
        self._keeps_alive = True
        self.idle_since = 0.0
        self.pending = b""
        """Bytes that were received after the last head or chunk."""

    def is_alive(self) -> bool:
        """False when the server has closed an idle connection, or said something that nobody asked for."""
        return not self._poll.poll(0)

    def send(self, head: bytes, body: Iterable[memoryview], deadline: float) -> None:
        """Raises NotSent and Broken. `head` is with its empty line."""
        sock = self._sock
        try:
            sent = self._until(deadline, sock.send, head)
        except OSError as error:
            raise NotSent(f"sending: {error}", timeout=isinstance(error, TimeoutError)) from error
        try:
            while sent < len(head):
                sent += self._until(deadline, sock.send, head[sent:])
            for view in body:
                if not self._send_body(view, deadline):
                    self._keeps_alive = False
                    break
        except TimeoutError as error:
            raise Broken("the time was up while the request was sent", timeout=True) from error
        except OSError as error:
            # The server may have answered without reading on.
            if not self._poll.poll(0):
                raise Broken(f"sending: {error}") from error
        finally:
            if self._is_plain and body:
                sock.settimeout(None)

    def receive(self, method: str, deadline: float) -> "SocketResponse":
        """The answer's head; informational ones are skipped."""
        while True:
            head = self._head(deadline)
            status, headers, keeps_alive = _parse(head)
            if status >= 200:
                return SocketResponse(self, method, status, headers, keeps_alive and self._keeps_alive)
            if status == 101:
                raise BadAnswer("the server switches protocols")

    def some(self, deadline: float) -> bytes:
        """Bytes of the stream, b"" at its end."""
        if self.pending:
            data, self.pending = self.pending, b""
            return data
        try:
            return self._until(deadline, self._sock.recv, _RECEIVE)
        except TimeoutError as error:
            raise Broken("the answer did not come in time", timeout=True) from error
        except OSError as error:
            raise Broken(f"receiving: {error}") from error

    def some_into(self, view: memoryview, deadline: float) -> int:
        """As `some`."""
        if self.pending:
            count = min(len(view), len(self.pending))
            view[:count] = self.pending[:count]
            self.pending = self.pending[count:]
            return count
        try:
            return self._until(deadline, self._sock.recv_into, view)
        except TimeoutError as error:
            raise Broken("the answer did not come in time", timeout=True) from error
        except OSError as error:
            raise Broken(f"receiving: {error}") from error

    def line(self, deadline: float) -> bytes:
        """One short line without its end."""
        data = b""
        while b"\n" not in data:
            more = self.some(deadline)
            if not more:
                raise Broken("the connection ended in a body")
            data += more
            if len(data) > _HEAD_LIMIT + _RECEIVE:
                raise BadAnswer("a line of the body's framing is too long")
        line, _, self.pending = data.partition(b"\n")
        return line.rstrip(b"\r")

    def _send_body(self, view: memoryview, deadline: float) -> bool:
        """False when the server has answered before it read all, and does not want the rest."""
        sock = self._sock
        at = 0
        while at < len(view):
            left = time_left(deadline)
            if self._watches:
                self._duplex.poll(1000 * left)
                if self._poll.poll(0) and self._is_final_answer():
                    return False
            sock.settimeout(left)
            at += sock.send(view[at : at + _SEND])
        return True

    def _until(self, deadline: float, call: Callable[[A], T], argument: A) -> T:
        """A system call on the socket. Raises TimeoutError at the deadline."""
        while True:
            left = time_left(deadline)
            if self._is_plain:
                self._let_calls_take(min(left, _SLICE))
            else:
                self._sock.settimeout(left)
            try:
                return call(argument)
            except BlockingIOError:
                continue

    def _let_calls_take(self, seconds: float) -> None:
        """The kernel's own timeout costs nothing as long as it stays the same; Python's is two system calls a call."""
        if seconds != self._slice:
            # Not 0, which is for ever.
            timeval = struct.pack("ll", *divmod(max(1, int(seconds * 1e6)), 1_000_000))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            self._slice = seconds

    def _is_final_answer(self) -> bool:
        self.pending += self._sock.recv(_RECEIVE)
        # 100 Continue comes without being asked for from some; after one, nothing more is looked for.
        self._watches = False
        return not re.match(rb"HTTP/1\.[0-9] 1", self.pending)

    def abort(self) -> None:
        """Another thread's: whoever waits on this connection gets Broken at once."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._sock.close()

    def _head(self, deadline: float) -> bytes:
        data = self.some(deadline)
        if not data:
            raise Broken("the connection ended before an answer")
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > _HEAD_LIMIT:
                raise BadAnswer("the head of the answer is too long")
            more = self.some(deadline)
            if not more:
                raise Broken("the connection ended in the head of an answer")
            data += more
        self.pending = data[end + 4 :]
        return data[:end]


def _parse(head: bytes) -> tuple[int, dict[str, str], bool]:
    """Status, headers, whether the connection stays open."""
    lines = head.decode("latin-1").split("\r\n")
    first = lines[0]
    if _STATUS_LINE.match(first) is None:
        raise BadAnswer("the answer is not HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadAnswer("a header of the answer is malformed")
        name, value = name.lower(), value.strip()
        headers[name] = value if name not in headers else f"{headers[name]}, {value}"
    connection = headers.get("connection")
    if connection is None:
        return int(first[9:12]), headers, first[7] == "1"
    words = {word.strip().lower() for word in connection.split(",")}
    return int(first[9:12]), headers, "close" not in words and (first[7] == "1" or "keep-alive" in words)


class SocketResponse:
    """An answer that is read off a Connection."""

    __slots__ = ("_chunked", "_connection", "_keeps_alive", "_left", "headers", "length", "status")

    def __init__(
        self, connection: Connection, method: str, status: int, headers: dict[str, str], keeps_alive: bool
    ) -> None:
        self._connection = connection
        self.status = status
        self.headers = headers
        self._keeps_alive = keeps_alive
        self.length: int | None = None
        self._chunked = False
        self._left: int | None = 0
        """Bytes to come: of the body, or of the chunk; None: until the connection ends."""
        announced = headers.get("content-length")
        if method == "HEAD" or status in (204, 304):
            return
        if "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked":
                raise BadAnswer("the answer has a transfer encoding that was not asked for")
            self._chunked = True
        elif announced is not None:
            if not (announced.isascii() and announced.isdecimal()):
                raise BadAnswer("the answer has no valid Content-Length")
            self.length = self._left = int(announced)
        else:
            self._left = None
            self._keeps_alive = False

    def read_into(self, view: memoryview, deadline: float) -> int:
        filled = 0
        while filled < len(view):
            if self._left == 0 and not self._next_chunk(deadline):
                break
            room = view[filled:] if self._left is None else view[filled : filled + self._left]
            count = self._connection.some_into(room, deadline)
            if not count:
                if self._left is None:
                    self._left = 0
                    break
                raise Broken("the connection ended in a body")
            filled += count
            if self._left is not None:
                self._left -= count
                if self._left == 0 and self._chunked:
                    self._connection.line(deadline)
        return filled

    def close(self, deadline: float) -> bool:
        if not self._keeps_alive or (self._left or 0) > _DRAIN:
            return False
        if self._left or self._chunked:
            self.read_into(memoryview(bytearray(_DRAIN)), deadline)
        return not self._left and not self._chunked and not self._connection.pending

    def _next_chunk(self, deadline: float) -> bool:
        """Whether there is another."""
        if not self._chunked:
            return False
        size, _, _ = self._connection.line(deadline).partition(b";")
        try:
            self._left = int(size.strip(), 16)
        except ValueError as error:
            raise BadAnswer("a chunk of the answer has no valid size") from error
        if self._left:
            return True
        while self._connection.line(deadline):
            pass
        self._chunked = False
        return False
