"""An HTTP server that says what the test wants, and a transport whose "server side" writes into this process's memory.

Together they play every server that the client library can meet: right ones, old ones, slow ones, and wrong ones.
"""

import ctypes
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from s3verbs.rdma.client.client import Client
from s3verbs.rdma.client.transport import Memory, TransportUnavailable
from s3verbs.rdma.token import Token, Transport, parse

SESSION = bytes(range(16))


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: socket.socket = field(repr=False)

    @property
    def token(self) -> str | None:
        return self.headers.get("x-amz-rdma-token")


Step = bytes | Callable[[Request], bytes | None]
"""Bytes to answer with; or a function that returns them, or None to close the connection."""


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    """Header names are given with "_" for "-"."""
    fields = {"x-amz-request-id": "R1", "content-length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value != "")
    return f"HTTP/1.1 {status} Because\r\n{head}\r\n".encode() + body


def s3_error(status: int, code: str, **headers: str) -> bytes:
    return answer(status, f"<Error><Code>{code}</Code><Message>m &amp; m</Message></Error>".encode(), **headers)


class ScriptedServer:
    """Answers requests in the order in which they come with the steps of `script`; on any connection."""

    def __init__(self, script: Iterable[Step] = ()) -> None:
        self.script = deque(script)
        self.requests: list[Request] = []
        self.accepted = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> "ScriptedServer":
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._sockets):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._sockets.append(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            stream = sock.makefile("rb")
            try:
                while (request := read_request(stream, sock)) is not None:
                    with self._lock:
                        self.requests.append(request)
                        step = self.script.popleft() if self.script else s3_error(500, "NoMoreSteps")
                    said = step(request) if callable(step) else step
                    if said is None:
                        return
                    sock.sendall(said)
            except OSError:
                return
            finally:
                stream.close()


def read_request(stream: Any, sock: socket.socket) -> Request | None:
    line = stream.readline()
    if not line:
        return None
    method, target, _ = line.decode().split(" ")
    headers = {}
    while (line := stream.readline()) != b"\r\n":
        if not line:
            return None
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body, sock)


class FakeRegistration:
    def __init__(self, transport: "FakeTransport", memory: Memory) -> None:
        # Not the owner: to keep that alive is the library's part, and is tested.
        self._transport = transport
        self.address = memory.address
        self.size = memory.size
        self.valid = True
        self.lost = False

    def token(self, offset: int, size: int) -> str:
        if self.lost:
            raise TransportUnavailable("the session is gone")
        assert offset >= 0
        assert offset + size <= self.size
        return str(Token(self.address + offset, size, transport=Transport.SAMEHOST, secret=SESSION))

    def revoke(self) -> bool:
        self._transport.revokes += 1
        if not self._transport.can_revoke():
            return False
        self.valid = False
        return True


class FakeTransport:
    """`read` and `write` are the server's side: they go nowhere but into memory that is registered at that moment."""

    def __init__(self, kind: Transport = Transport.SAMEHOST) -> None:
        self.transport = kind
        self.registrations: list[FakeRegistration] = []
        self.can_revoke: Callable[[], bool] = lambda: True
        self.revokes = 0
        self.refuses: Callable[[Memory], str | None] = lambda memory: None
        self.closed = False

    def register(self, memory: Memory) -> FakeRegistration:
        why = self.refuses(memory)
        if why is not None:
            raise TransportUnavailable(why)
        self.registrations.append(FakeRegistration(self, memory))
        return self.registrations[-1]

    def close(self) -> None:
        self.closed = True

    @property
    def valid(self) -> list[FakeRegistration]:
        return [each for each in self.registrations if each.valid]

    def write(self, token: str, data: bytes) -> bool:
        """An RDMA WRITE of a GET. Whether it went through."""
        if not self._reaches(token, len(data)):
            return False
        ctypes.memmove(parse(token).address, data, len(data))
        return True

    def read(self, token: str) -> bytes:
        """The RDMA READ of a PUT."""
        assert self._reaches(token, parse(token).size)
        return ctypes.string_at(parse(token).address, parse(token).size)

    def _reaches(self, text: str, size: int) -> bool:
        token = parse(text)
        assert token.secret == SESSION
        return size <= token.size and any(
            each.address <= token.address and token.address + size <= each.address + each.size for each in self.valid
        )


class Store:
    """A right server with one object, over the fake transport: steps for `ScriptedServer`."""

    def __init__(self, transport: FakeTransport, data: bytes = b"") -> None:
        self.transport = transport
        self.data = data

    def get(self, request: Request) -> bytes:
        data, extra, status = self.data, {}, 200
        if "range" in request.headers:
            first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers["range"]).groups()  # type: ignore[union-attr]
            start, stop = int(first), min(int(last or len(data)) + 1, len(data))
            if start >= len(data):
                return s3_error(416, "InvalidRange")
            extra = {"content_range": f"bytes {start}-{stop - 1}/{len(data)}"}
            data, status = data[start:stop], 206
        if request.token is None:
            return answer(status, data, etag='"e"', **extra)
        if not self.transport.write(request.token, data):
            return s3_error(400, "InvalidArgument")
        return answer(
            status,
            etag='"e"',
            x_amz_rdma_reply=str(status),
            x_amz_rdma_bytes_transferred=str(len(data)),
            **extra,
        )

    def put(self, request: Request) -> bytes:
        if request.token is None:
            self.data = request.body
            return answer(200, etag='"e"')
        assert request.body == b""
        self.data = self.transport.read(request.token)
        return answer(200, etag='"e"', x_amz_rdma_reply="200", x_amz_rdma_bytes_transferred=str(len(self.data)))


def client(server: ScriptedServer, transport: Any, **options: Any) -> Client:
    options = {"timeout": 20.0, "access_key": "AK", "secret_key": "SK", **options}
    return Client(server.url, transport=transport, **options)


class Guarded:
    """`size` bytes of zeros in the middle of a guard pattern."""

    MARGIN = 64 << 10
    PATTERN = bytes(range(1, 251))

    def __init__(self, size: int) -> None:
        guard = (self.PATTERN * (self.MARGIN // len(self.PATTERN) + 1))[: self.MARGIN]
        self.memory = bytearray(guard + bytes(size) + guard)
        self.size = size
        self._guard = guard

    @property
    def view(self) -> memoryview:
        return memoryview(self.memory)[self.MARGIN : self.MARGIN + self.size]

    @property
    def content(self) -> bytes:
        """What is in it; with the guards checked."""
        assert self.memory[: self.MARGIN] == self._guard
        assert self.memory[self.MARGIN + self.size :] == self._guard
        return bytes(self.memory[self.MARGIN : self.MARGIN + self.size])
