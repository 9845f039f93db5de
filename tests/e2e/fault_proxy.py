"""An HTTP/1.1 proxy between a client and the endpoint that loses, delays or refuses chosen requests.

It runs in a thread of the test. A message is read whole before it is passed on, so keep payloads to tens of MiB. Host
and all signed headers pass unchanged; `Expect: 100-continue` is answered here and goes no further.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

LIMIT = 1 << 20


@dataclass
class Fault:
    """What happens to the next `times` requests of `method` whose target contains `target`.

    `status` answers with that status and `body` without asking the endpoint; `delay` waits that many seconds before
    the request is passed on; `drop` closes the connection: "request" before the endpoint has seen it, "reply" after the
    endpoint has answered: half of an answer with a body gets through, nothing of one without.
    """

    method: str
    target: str = ""
    times: int = 1
    status: int = 0
    body: bytes = b""
    delay: float = 0
    drop: str = ""

    def applies(self, method: str, target: str) -> bool:
        return self.times > 0 and method == self.method and self.target in target


@dataclass
class Message:
    """A request or a response as bytes, with what the proxy must know of it."""

    start: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def get(self, name: str) -> str:
        return next((value for header, value in self.headers if header.lower() == name), "")

    def encode(self, *, without: tuple[str, ...] = ()) -> bytes:
        lines = [f"{name}: {value}\r\n" for name, value in self.headers if name.lower() not in without]
        return f"{self.start}\r\n{''.join(lines)}\r\n".encode("latin-1") + self.body


@dataclass(frozen=True)
class Seen:
    """One exchange: the request's method, target and headers (lower-case names), and the status that the client got; 0
    where the connection was dropped."""

    method: str
    target: str
    headers: dict[str, str]
    status: int


@dataclass
class FaultProxy:
    """Listens on 127.0.0.1 at `port` (known once entered). `faults` may be changed at any time from any thread."""

    upstream: int
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> "FaultProxy":
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready.set)), daemon=True)
        self._thread.start()
        if not ready.wait(10):
            raise RuntimeError("the fault proxy did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(10)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Hold every request that has been read, and let them go on at the end."""
        self._loop.call_soon_threadsafe(self._running.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._running.set)

    def statuses(self, method: str, target: str = "") -> list[int]:
        return [seen.status for seen in self.seen if seen.method == method and target in seen.target]

    async def _serve(self, ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()
        self._connections: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=LIMIT)
        self.port = server.sockets[0].getsockname()[1]
        ready()
        await self._done.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream = _Upstream(self.upstream)
        try:
            while await self._exchange(reader, writer, upstream):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            upstream.close()
            writer.transport.abort()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: "_Upstream"
    ) -> bool:
        """Pass on one request. False when the client's connection is to be closed."""
        request = await _read_head(reader)
        method, target, _ = request.start.split(" ", 2)
        if request.get("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.body = await _read_body(reader, request)
        await self._running.wait()
        fault = next((fault for fault in self.faults if fault.applies(method, target)), None)

        def note(status: int) -> None:
            headers = {name.lower(): value for name, value in request.headers}
            self.seen.append(Seen(method, target, headers, status))

        if fault is not None:
            fault.times -= 1
            await asyncio.sleep(fault.delay)
            if fault.status:
                note(fault.status)
                head = f"HTTP/1.1 {fault.status} Injected\r\nContent-Length: {len(fault.body)}\r\n\r\n"
                writer.write(head.encode() + (b"" if method == "HEAD" else fault.body))
                await writer.drain()
                return True
            if fault.drop == "request":
                note(0)
                return False
        try:
            response = await upstream.exchange(request, method)
        except (ConnectionError, asyncio.IncompleteReadError):
            note(0)
            return False
        encoded = response.encode()
        if fault is not None and fault.drop == "reply":
            note(0)
            writer.write(encoded[: len(encoded) // 2] if response.body else b"")
            await writer.drain()
            return False
        note(int(response.start.split(" ")[1]))
        writer.write(encoded)
        await writer.drain()
        return response.get("connection").lower() != "close"


class _Upstream:
    """The connection to the endpoint that belongs to one connection of a client."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, request: Message, method: str) -> Message:
        kept = self.streams is not None
        try:
            return await self._exchange(request, method)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            if not kept:
                raise
        return await self._exchange(request, method)

    async def _exchange(self, request: Message, method: str) -> Message:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=LIMIT)
        reader, writer = self.streams
        writer.write(request.encode(without=("expect",)))
        await writer.drain()
        response = await _read_head(reader)
        while response.start.split(" ")[1].startswith("1"):
            response = await _read_head(reader)
        if method != "HEAD" and response.start.split(" ")[1] not in ("204", "304"):
            response.body = await _read_body(reader, response)
        if response.get("connection").lower() == "close":
            self.close()
        return response

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def _read_head(reader: asyncio.StreamReader) -> Message:
    raw = await reader.readuntil(b"\r\n\r\n")
    start, *lines = raw[:-4].decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return Message(start, headers)


async def _read_body(reader: asyncio.StreamReader, message: Message) -> bytes:
    """The body in its wire form: chunk sizes and trailers stay in it."""
    if "chunked" not in message.get("transfer-encoding").lower():
        return await reader.readexactly(int(message.get("content-length") or 0))
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        parts.append(line)
        size = int(line.split(b";")[0], 16)
        if not size:
            break
        parts.append(await reader.readexactly(size + 2))
    while parts[-1] != b"\r\n":
        parts.append(await reader.readuntil(b"\r\n"))
    return b"".join(parts)
