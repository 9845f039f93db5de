"""The life of a request with made-up operations: errors, time limits, slow answers, what is logged."""

import asyncio
import dataclasses
import json
import logging
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from s3verbs.gateway import app, lifecycle, slow
from s3verbs.gateway.app import Gateway
from s3verbs.gateway.auth.authenticator import Verified
from s3verbs.gateway.auth.payload_hash import UNSIGNED
from s3verbs.gateway.auth.principal import ANONYMOUS, Principal
from s3verbs.gateway.config import Settings
from s3verbs.gateway.documents import CopyObjectResult
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.connection import Listener
from s3verbs.gateway.http.exchange import Exchange
from s3verbs.gateway.http.request import S3Request
from s3verbs.gateway.lifecycle import Lifecycle
from s3verbs.gateway.operations.base import Call, Content, Handler, Operation, Reply
from s3verbs.gateway.rdma_lane import Lanes
from s3verbs.storage.epochs import Epoch
from s3verbs.storage.errors import PayloadDamaged, StorageFull
from s3verbs.storage.memory import MemoryMetadataStore, MemoryPayloadStore
from s3verbs.storage.model import Version
from s3verbs.storage.objects import ObjectStore, Segment
from s3verbs.storage.opening import Store, new_id

ROOT = Principal("root", "root", "AKIATEST")


class Trusting:
    """An authenticator that believes everybody, but for one key."""

    def authenticate(self, request: S3Request) -> Verified:
        if request.target.key == "forged":
            raise S3Error("SignatureDoesNotMatch")
        return Verified(ANONYMOUS if request.target.key == "anonymous" else ROOT, UNSIGNED)


class Server:
    """One worker's parts in this process, with `handler` as every operation."""

    def __init__(self, tmp_path: Path) -> None:
        self.handler: Handler = _nothing
        self.slow = False
        self.audit = tmp_path / "audit.log"
        self.access = tmp_path / "access.log"
        self.settings = Settings(data=(tmp_path,), audit_log=str(self.audit), access_log=str(self.access))

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        metadata = MemoryMetadataStore()
        payloads = MemoryPayloadStore(metadata.disk)
        objects = ObjectStore(metadata, payloads, clock=lambda: 1, new_id=new_id)
        store = Store(objects, metadata, payloads, uuid.uuid4(), Epoch(), Path(), False, -1)  # type: ignore[arg-type]
        self.gateway: Gateway = app.wire(
            self.settings,
            store,
            loop,
            ThreadPoolExecutor(4),
            Lanes({}, None, transfer_timeout=1, off="off in this test"),
        )
        parts = dataclasses.replace(
            self.gateway.lifecycle._parts, authenticator=Trusting(), find_operation=self._operation
        )
        self.lifecycle = Lifecycle(parts, loop)
        self.listener = Listener(
            self.lifecycle.handle, limits=self.gateway.limits, refuse=self.lifecycle.refuse, loop=loop
        )
        self._server = await loop.create_server(self.listener, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        await self.listener.drain(1)
        await self.gateway.close()

    def _operation(self, name: str) -> Operation:
        return Operation(name, "s3:Test", self.handler, slow=self.slow)

    async def send(self, request: str, *, wait: float = 10) -> tuple[int, dict[str, str], bytes]:
        """Send a request whose connection then closes; status, headers with lower-case names, body."""
        raw = await self.raw(request, wait=wait)
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers, body

    async def raw(self, request: str, *, wait: float = 10) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            return await asyncio.wait_for(reader.read(), wait)
        finally:
            writer.close()


async def _nothing(call: Call) -> Reply:
    return Reply()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    running = Server(tmp_path)
    await running.start()
    yield running
    await running.stop()


def raising(error: Exception) -> Handler:
    async def handler(call: Call) -> Reply:
        raise error

    return handler


async def test_an_s3_error_becomes_its_document(server: Server) -> None:
    server.handler = raising(S3Error("NoSuchKey", details={"Key": "a&b"}, headers={"x-extra": "1"}))
    status, headers, body = await server.send("GET /bucket/a%26b")
    assert status == 404
    assert headers["x-extra"] == "1"
    assert headers["content-type"] == "application/xml"
    assert b"<Code>NoSuchKey</Code>" in body
    assert b"<Key>a&amp;b</Key>" in body
    assert b"<Resource>/bucket/a&amp;b</Resource>" in body
    assert f"<RequestId>{headers['x-amz-request-id']}</RequestId>".encode() in body
    assert f"<HostId>{headers['x-amz-id-2']}</HostId>".encode() in body


async def test_a_storage_error_becomes_its_s3_error(server: Server) -> None:
    server.handler = raising(StorageFull("/dev/x is full"))
    status, _, body = await server.send("PUT /bucket/key")
    assert status == 507
    assert b"InsufficientStorage" in body
    assert b"/dev/x" not in body


@pytest.mark.parametrize("error", [ValueError("the secret cause"), PayloadDamaged("the secret cause")])
async def test_an_unexpected_error_tells_the_client_nothing(
    server: Server, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    server.handler = raising(error)
    with caplog.at_level(logging.ERROR):
        status, headers, body = await server.send("PUT /bucket/key")
    assert status == 500
    assert b"<Code>InternalError</Code>" in body
    assert b"secret cause" not in body
    assert headers["x-amz-request-id"] in caplog.text
    assert "the secret cause" in caplog.text


async def test_a_5xx_of_an_object_read_has_no_body(server: Server) -> None:
    server.handler = raising(S3Error("SlowDown"))
    status, headers, body = await server.send("GET /bucket/key")
    assert (status, body) == (503, b"")
    assert headers["content-length"] == "0"
    assert headers["x-amz-error-code"] == "SlowDown"
    assert headers["x-amz-error-message"]
    assert headers["retry-after"] == "1"


async def test_a_5xx_of_another_request_has_a_body(server: Server) -> None:
    server.handler = raising(S3Error("SlowDown"))
    for request in ("PUT /bucket/key", "GET /bucket"):
        status, _, body = await server.send(request)
        assert status == 503
        assert b"<Code>SlowDown</Code>" in body


async def test_a_get_that_does_not_begin_is_told_to_slow_down(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "FIRST_BYTE_SECONDS", 0.2)
    cleaned_up = asyncio.Event()

    async def handler(call: Call) -> Reply:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned_up.set()
        return Reply()

    server.handler = handler
    status, headers, body = await server.send("GET /bucket/key")
    assert (status, body) == (503, b"")
    assert headers["x-amz-error-code"] == "SlowDown"
    assert cleaned_up.is_set()


async def test_a_client_that_leaves_cancels_its_operation(server: Server) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(call: Call) -> Reply:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return Reply()

    server.handler = handler
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"PUT /bucket/key HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    await asyncio.wait_for(started.wait(), 5)
    # A reset: a mere end of what the client sends still lets it read the answer.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await asyncio.wait_for(cancelled.wait(), 5)
    assert await _empties(server)


async def _empties(server: Server) -> bool:
    for _ in range(100):
        if not server.gateway.watchdog.exchanges:
            return True
        await asyncio.sleep(0.02)
    return False


class FailingReader:
    """Gives some bytes, then fails."""

    def __init__(self) -> None:
        self.closed = False
        self.version: Version = None  # type: ignore[assignment]

    def segments(self, offset: int, length: int) -> "list[Segment]":
        def each() -> "list[Segment]":
            yield Segment(0, 5, b"12345")
            raise PayloadDamaged("gone")

        return each()  # type: ignore[return-value]

    def close(self) -> None:
        self.closed = True


async def test_a_failure_behind_the_head_cuts_the_connection(server: Server) -> None:
    reader = FailingReader()

    async def handler(call: Call) -> Reply:
        return Reply(content=Content(reader, 0, 10))

    server.handler = handler
    try:
        raw = await server.raw("GET /bucket/key")
    except ConnectionResetError:
        raw = b""
    assert len(raw.partition(b"\r\n\r\n")[2]) < 10
    assert b"<Error>" not in raw
    assert reader.closed


async def test_a_header_that_would_split_the_response_is_an_internal_error(server: Server) -> None:
    async def handler(call: Call) -> Reply:
        return Reply(headers={"x-evil": "a\r\nSet-Cookie: b"})

    server.handler = handler
    status, headers, _ = await server.send("PUT /bucket/key")
    assert status == 500
    assert "set-cookie" not in headers


# -- slow operations --


@pytest.fixture
def impatient(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[Handler], None]:
    monkeypatch.setattr(slow, "PATIENCE", 0.05)
    monkeypatch.setattr(slow, "INTERVAL", 0.05)

    def use(handler: Handler) -> None:
        server.handler = handler
        server.slow = True

    return use


def dechunk(body: bytes) -> bytes:
    whole = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            assert body == b"\r\n"
            return whole
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]


async def test_a_slow_operation_keeps_the_connection_alive(
    server: Server, impatient: Callable[[Handler], None]
) -> None:
    async def handler(call: Call) -> Reply:
        await asyncio.sleep(0.3)
        return Reply(document=CopyObjectResult("etag", 0))

    impatient(handler)
    status, headers, body = await server.send("PUT /bucket/key")
    assert status == 200
    assert headers["transfer-encoding"] == "chunked"
    document = dechunk(body)
    assert document.startswith(b'<?xml version="1.0" encoding="UTF-8"?>   ')
    assert document.count(b"<?xml") == 1
    assert b"<CopyObjectResult" in document


@pytest.mark.parametrize("error", [S3Error("InvalidPart"), ValueError("cause")])
async def test_a_slow_operation_that_fails_ends_with_an_error_document(
    server: Server, impatient: Callable[[Handler], None], error: Exception
) -> None:
    async def handler(call: Call) -> Reply:
        await asyncio.sleep(0.2)
        raise error

    impatient(handler)
    status, _, body = await server.send("PUT /bucket/key")
    assert status == 200
    code = b"InvalidPart" if isinstance(error, S3Error) else b"InternalError"
    assert b"<Error><Code>" + code + b"</Code>" in dechunk(body)


async def test_a_slow_operation_that_is_quick_is_answered_as_any_other(
    server: Server, impatient: Callable[[Handler], None]
) -> None:
    impatient(raising(S3Error("NoSuchUpload")))
    status, headers, body = await server.send("PUT /bucket/key")
    assert status == 404
    assert "transfer-encoding" not in headers
    assert b"NoSuchUpload" in body


async def test_a_slow_operation_is_stopped_when_its_client_is_found_gone(
    server: Server, impatient: Callable[[Handler], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = asyncio.Event()

    async def handler(call: Call) -> Reply:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return Reply()

    def write(exchange: Exchange, data: bytes) -> None:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(slow, "write", write)
    impatient(handler)
    with suppress(ConnectionResetError):
        await server.raw("PUT /bucket/key")
    await asyncio.wait_for(cancelled.wait(), 5)
    assert await _empties(server)


# -- large bodies, read past aiohttp's parser --


@pytest.mark.parametrize(("size", "kept"), [(900 << 10, True), (3 << 20, False)])
@pytest.mark.parametrize("together", [True, False])
async def test_an_error_in_the_middle_of_a_large_body_keeps_in_step_or_closes(
    server: Server, size: int, kept: bool, together: bool
) -> None:
    async def handler(call: Call) -> Reply:
        if call.request.method == "PUT":
            into = memoryview(bytearray(100_000))
            source = call.body._source()  # type: ignore[attr-defined]
            for _ in range(5):
                assert await source.receive(into)
            raise S3Error("InsufficientStorage")
        return Reply(200, {"x-second": "1"})

    server.handler = handler
    head = f"PUT /bucket/key HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
    last = b"GET /bucket/key HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    # A body that would be answered itself, were it taken for requests.
    body = (b"GET /bucket/smuggled HTTP/1.1\r\nHost: x\r\n\r\n" * (size // 40))[:size]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert len(body) == size
    writer.write(head + body + (last if together else b""))
    raw = await asyncio.wait_for(reader.readuntil(b"</Error>"), 5)
    assert raw.startswith(b"HTTP/1.1 507 ")
    assert (b"Connection: close" in raw) is not kept
    if not together:
        writer.write(last)
    with suppress(ConnectionResetError):
        rest = await asyncio.wait_for(reader.read(), 10)
        assert rest.count(b"HTTP/1.1 ") == rest.count(b"x-second") == (1 if kept else 0)
    writer.close()
    server.gateway.logs[0].lines.close()
    assert len(server.access.read_text().splitlines()) == (2 if kept else 1)


# -- logs --


async def test_a_key_with_line_ends_cannot_forge_a_line_of_the_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.handler = raising(ValueError("cause"))
    with caplog.at_level(logging.ERROR):
        await server.send("PUT /bucket/key%0A2026-11-29%20ERROR%20forged")
    (message,) = [record.getMessage() for record in caplog.records if "internal error" in record.getMessage()]
    assert "forged" in message
    assert "\n" not in message


async def test_every_request_has_one_line_in_the_access_log(server: Server) -> None:
    server.handler = raising(S3Error("NoSuchKey"))
    _, headers, body = await server.send("GET /bucket/some%20key")
    server.handler = _nothing
    await server.send("PUT /bucket/key")
    server.gateway.logs[0].lines.close()
    first, second = [json.loads(line) for line in server.access.read_text().splitlines()]
    assert first["request_id"] == headers["x-amz-request-id"]
    assert first["operation"] == "GetObject"
    assert (first["bucket"], first["key"], first["status"], first["code"]) == ("bucket", "some key", 404, "NoSuchKey")
    assert first["bytes_out"] == len(body)
    assert first["remote"] == "127.0.0.1"
    assert first["access_key"] == "AKIATEST"
    assert 0 <= first["duration_ms"] < 10_000
    assert first["time"].endswith("Z")
    assert (second["method"], second["operation"], second["status"], second["code"]) == ("PUT", "PutObject", 200, "")


async def test_what_is_no_request_is_in_the_access_log(server: Server) -> None:
    await server.raw("NOTHING")
    server.gateway.logs[0].lines.close()
    (line,) = [json.loads(line) for line in server.access.read_text().splitlines()]
    assert (line["status"], line["code"]) == (400, "BadRequest")


async def test_the_audit_log_tells_who_was_allowed_what(server: Server) -> None:
    await server.send("PUT /bucket/key")
    await server.send("GET /bucket/anonymous")
    await server.send("GET /bucket/forged?X-Amz-Credential=AKIAFORGED%2F20260101%2Fx")
    server.gateway.logs[1].lines.close()
    lines = [json.loads(line) for line in server.audit.read_text().splitlines()]
    assert [(line["decision"], line["code"], line["access_key"], line["resource"]) for line in lines] == [
        ("allowed", "", "AKIATEST", "arn:aws:s3:::bucket/key"),
        ("denied", "AccessDenied", "", "arn:aws:s3:::bucket/anonymous"),
        ("denied", "SignatureDoesNotMatch", "AKIAFORGED", "arn:aws:s3:::bucket/forged"),
    ]
    assert {line["action"] for line in lines} == {"s3:Test"}
