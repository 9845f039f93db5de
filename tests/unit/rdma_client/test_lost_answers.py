"""What ends without the server's answer: the memory is taken back first, or stays in quarantine until it is safe."""

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from s3verbs.rdma.client.errors import (
    BadAnswer,
    ConnectFailed,
    ConnectionBroken,
    DeadlineExceeded,
    RegionClosed,
    RegionQuarantined,
    S3Error,
)
from s3verbs.rdma.client.region import Region
from tests.unit.rdma_client.scripted import (
    FakeTransport,
    Guarded,
    Request,
    ScriptedServer,
    Store,
    answer,
    client,
    s3_error,
)

DATA = b"late bytes" * 100


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def hang_up(request: Request) -> None:
    return None


class Owner(bytearray):
    """A buffer whose end can be seen."""


class LateServer:
    """Answers nothing; keeps the token, to write with it later."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.go_on = threading.Event()

    def __call__(self, request: Request) -> bytes | None:
        self.tokens.append(request.token or "")
        self.go_on.wait(30)
        return None


@pytest.fixture
def late() -> LateServer:
    return LateServer()


def test_after_a_timeout_a_late_write_touches_nothing(
    server: ScriptedServer, transport: FakeTransport, late: LateServer
) -> None:
    server.script.append(late)
    memory = Guarded(len(DATA))
    with client(server, transport) as s3, s3.register(memory.view) as region:
        with pytest.raises(DeadlineExceeded) as raised:
            s3.get_into("bucket", "key", region, timeout=2.0)
        assert isinstance(raised.value, TimeoutError)
        # The transport could make sure, so the memory is the caller's again.
        assert not region.quarantined
        assert not transport.write(late.tokens[0], DATA)
        assert memory.content == bytes(len(DATA))
        server.script.append(Store(transport, DATA).get)
        assert s3.get_into("bucket", "key", region).transport == "samehost"
        assert len(transport.registrations) == 2
        late.go_on.set()
    assert memory.content == DATA


def test_memory_that_cannot_be_taken_back_is_in_quarantine_until_it_can(
    server: ScriptedServer, transport: FakeTransport, late: LateServer
) -> None:
    safe = threading.Event()
    transport.can_revoke = safe.is_set
    server.script.append(late)
    memory = Guarded(len(DATA))
    with client(server, transport) as s3:
        region = s3.register(memory.view)
        other = s3.register(bytearray(10))
        with pytest.raises(DeadlineExceeded, match="quarantine"):
            s3.get_into("bucket", "key", region[10:20], timeout=2.0)
        assert region.quarantined
        assert s3.counters().quarantined_bytes == len(DATA)
        for part in (region, region[:5]):
            with pytest.raises(RegionQuarantined):
                s3.put_from("bucket", "key", part)
            with pytest.raises(RegionQuarantined):
                s3.get_into("bucket", "key", part)
        assert len(server.requests) == 1
        server.script.append(Store(transport, b"1").get)
        assert s3.get_into("bucket", "key", other).size == 1

        safe.set()
        eventually(lambda: not region.quarantined)
        assert s3.counters().quarantined_bytes == 0
        server.script.append(Store(transport, DATA).get)
        s3.get_into("bucket", "key", region)
        late.go_on.set()
    assert memory.content == DATA


def test_a_quarantined_buffer_is_not_given_back_to_the_allocator(
    server: ScriptedServer, transport: FakeTransport, late: LateServer
) -> None:
    safe = threading.Event()
    transport.can_revoke = safe.is_set
    server.script.append(late)
    s3 = client(server, transport)
    buffer = Owner(len(DATA))
    gone = weakref.ref(buffer)
    region = s3.register(buffer)
    address = region.address
    with pytest.raises(DeadlineExceeded):
        s3.get_into("bucket", "key", region, timeout=2.0)
    assert not region.close()
    with pytest.raises(RegionClosed):
        s3.get_into("bucket", "key", region)
    del buffer, region
    assert not s3.close()
    assert not transport.closed
    gc.collect()
    # The server's write comes now, as the transport let it: into memory that nobody else has.
    assert gone() is not None
    assert transport.write(late.tokens[0], DATA)
    assert ctypes.string_at(address, len(DATA)) == DATA
    safe.set()
    eventually(lambda: gc.collect() >= 0 and gone() is None)
    eventually(lambda: transport.closed)
    late.go_on.set()


def test_a_lost_get_is_sent_again_with_a_new_registration(server: ScriptedServer, transport: FakeTransport) -> None:
    server.script += [hang_up, Store(transport, DATA).get]
    memory = Guarded(len(DATA))
    with client(server, transport) as s3, s3.register(memory.view) as region:
        assert s3.get_into("bucket", "key", region).size == len(DATA)
    assert memory.content == DATA
    assert [each.valid for each in transport.registrations] == [False, False]
    assert not transport.write(server.requests[0].token or "", b"late")


def test_a_lost_put_is_sent_again_unless_it_has_a_condition(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport)
    server.script += [hang_up, store.put, hang_up]
    with client(server, transport) as s3, s3.register(DATA) as region:
        assert s3.put_from("bucket", "key", region).size == len(DATA)
        assert store.data == DATA
        with pytest.raises(ConnectionBroken):
            s3.put_from("bucket", "key", region, if_none_match="*")
        assert s3.counters().failures == {"ConnectionBroken": 1}
    assert len(server.requests) == 3


def test_a_lost_answer_in_quarantine_is_not_tried_again(server: ScriptedServer, transport: FakeTransport) -> None:
    transport.can_revoke = lambda: transport.revokes > 1
    server.script += [hang_up]
    with client(server, transport) as s3, s3.register(bytearray(10)) as region:
        with pytest.raises(ConnectionBroken, match="quarantine"):
            s3.get_into("bucket", "key", region)
        eventually(lambda: not region.quarantined)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 2000\r\n\r\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (200 << 10),
    ],
)
def test_an_answer_that_is_not_http_takes_the_memory_back(
    server: ScriptedServer, transport: FakeTransport, garbage: bytes
) -> None:
    server.script.append(garbage)
    with client(server, transport) as s3, s3.register(bytearray(10)) as region:
        with pytest.raises(BadAnswer):
            s3.get_into("bucket", "key", region)
        assert not transport.valid
    assert len(server.requests) == 1


@pytest.mark.parametrize("cut", [0, 1, 8, 40])
def test_an_answer_cut_in_its_head_takes_the_memory_back(
    server: ScriptedServer, transport: FakeTransport, cut: int
) -> None:
    def step(request: Request) -> None:
        request.connection.sendall(answer(200, etag='"e"')[:cut])

    server.script += [step, step]
    with client(server, transport, max_attempts=2) as s3, s3.register(bytearray(10)) as region:
        with pytest.raises(ConnectionBroken):
            s3.get_into("bucket", "key", region)
        assert not transport.valid
    assert len(server.requests) == 2


def test_a_body_cut_after_the_head_needs_no_quarantine(server: ScriptedServer, transport: FakeTransport) -> None:
    def step(request: Request) -> None:
        request.connection.sendall(answer(200, DATA, x_amz_rdma_reply="501")[:-1])

    server.script += [step, answer(200, DATA, x_amz_rdma_reply="501")]
    memory = Guarded(len(DATA))
    with client(server, transport) as s3, s3.register(memory.view) as region:
        assert s3.get_into("bucket", "key", region).transport == "http"
        assert transport.revokes == 0
    assert memory.content == DATA


@pytest.mark.parametrize("status", [502, 503, 504])
def test_an_answer_of_something_on_the_way_is_no_answer_of_the_server(
    server: ScriptedServer, transport: FakeTransport, status: int
) -> None:
    gateway = answer(status, b"<html>nginx</html>", x_amz_request_id="")
    server.script += [gateway, gateway]
    with client(server, transport, max_attempts=2) as s3, s3.register(bytearray(10)) as region:
        with pytest.raises(S3Error) as raised:
            s3.get_into("bucket", "key", region)
        assert raised.value.status == status
        assert transport.revokes == 2
        server.script.append(gateway)
        with pytest.raises(S3Error):
            s3.put_from("bucket", "key", region, if_match='"e"')
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    "said", [s3_error(503, "SlowDown"), s3_error(503, "ServiceUnavailable", retry_after="0"), answer(500)]
)
def test_a_servers_own_failure_is_tried_again_with_the_same_registration(
    server: ScriptedServer, transport: FakeTransport, said: bytes
) -> None:
    server.script += [said, said, Store(transport, DATA).get, said, said, said]
    with client(server, transport) as s3, s3.register(bytearray(DATA)) as region:
        assert s3.get_into("bucket", "key", region).transport == "samehost"
        assert transport.revokes == 0
        with pytest.raises(S3Error):
            s3.put_from("bucket", "key", region)
        assert transport.revokes == 0
    assert len(server.requests) == 6


def test_no_time_is_spent_on_a_pause_that_goes_past_the_deadline(
    server: ScriptedServer, transport: FakeTransport
) -> None:
    server.script.append(s3_error(503, "SlowDown", retry_after="30"))
    with client(server, transport) as s3, s3.register(bytearray(10)) as region, pytest.raises(S3Error):
        s3.get_into("bucket", "key", region, timeout=10)
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_is_a_connect_failure(transport: FakeTransport) -> None:
    with ScriptedServer() as server:
        pass
    with client(server, transport) as s3, s3.register(bytearray(10)) as region:
        with pytest.raises(ConnectFailed):
            s3.get_into("bucket", "key", region)
        assert transport.revokes == 0


def test_an_idle_connection_that_the_server_closed_is_not_used(
    server: ScriptedServer, transport: FakeTransport
) -> None:
    store = Store(transport, DATA)

    def then_close(request: Request) -> None:
        request.connection.sendall(store.get(request))

    server.script += [then_close, store.get]
    with client(server, transport, max_attempts=1) as s3, s3.register(bytearray(DATA)) as region:
        s3.get_into("bucket", "key", region)
        pool = s3._control._pool
        eventually(lambda: not pool._idle[0].is_alive())
        s3.get_into("bucket", "key", region)
    assert server.accepted == 2


def test_a_connection_that_says_close_is_not_used_again(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport, DATA)
    closing = lambda request: store.get(request).replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n")  # noqa: E731
    server.script += [closing, store.get]
    with client(server, transport, max_attempts=1) as s3, s3.register(bytearray(DATA)) as region:
        s3.get_into("bucket", "key", region)
        s3.get_into("bucket", "key", region)
    assert server.accepted == 2


def test_informational_answers_are_skipped(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport, DATA)
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    server.script.append(lambda request: hints + store.get(request))
    with client(server, transport) as s3, s3.register(bytearray(DATA)) as region:
        assert s3.get_into("bucket", "key", region).size == len(DATA)


def test_many_threads_use_one_region(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport, bytes(range(16)) * 16)
    threads, each = 8, 20
    server.script += [store.get] * (threads * each)
    memory = Guarded(threads * 16)
    with client(server, transport) as s3, s3.register(memory.view) as region:

        def work(number: int) -> None:
            part = region[number * 16 : number * 16 + 16]
            for _ in range(each):
                assert s3.get_into("bucket", "key", part, (number * 16, number * 16 + 16)).size == 16

        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert s3.counters().operations == {"samehost": threads * each}
    assert memory.content == store.data[: threads * 16]
    assert len(transport.registrations) == 1


def test_close_waits_for_operations_and_refuses_new_ones(
    server: ScriptedServer, transport: FakeTransport, late: LateServer
) -> None:
    store = Store(transport, DATA)

    def slowly(request: Request) -> bytes:
        late(request)
        return store.get(request)

    server.script.append(slowly)
    s3 = client(server, transport)
    region = s3.register(bytearray(DATA))
    results: list[object] = []
    running = threading.Thread(target=lambda: results.append(s3.get_into("bucket", "key", region)))
    running.start()
    eventually(lambda: bool(late.tokens))
    closing = threading.Thread(target=lambda: results.append(region.close()))
    closing.start()
    eventually(lambda: region.closed)
    with pytest.raises(RegionClosed):
        s3.get_into("bucket", "key", region)
    assert transport.valid
    late.go_on.set()
    running.join()
    closing.join()
    assert results[-1] is True
    assert not transport.valid
    assert s3.close()
    assert transport.closed
    with pytest.raises(RegionClosed):
        s3.register(bytearray(1))


def test_a_region_that_nobody_has_any_more_is_closed(server: ScriptedServer, transport: FakeTransport) -> None:
    with client(server, transport) as s3:
        buffer = Owner(10)
        gone = weakref.ref(buffer)
        region: Region | None = s3.register(buffer)
        assert region is not None
        part = region[2:4]
        del buffer, region
        gc.collect()
        # A part of it is enough.
        assert transport.valid
        del part
        gc.collect()
        eventually(lambda: not transport.valid)
        eventually(lambda: gc.collect() >= 0 and gone() is None)


def test_a_transport_that_fails_to_revoke_has_not_made_sure(
    server: ScriptedServer, transport: FakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        if transport.revokes < 2:
            raise OSError("no such thing")
        return True

    transport.can_revoke = fail
    server.script.append(hang_up)
    with client(server, transport) as s3, s3.register(bytearray(10)) as region:
        with pytest.raises(ConnectionBroken, match="quarantine"):
            s3.get_into("bucket", "key", region)
        eventually(lambda: not region.quarantined)
    assert "stays in quarantine" in caplog.text


def test_an_interrupt_takes_the_memory_back(
    server: ScriptedServer, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(server, transport) as s3, s3.register(bytearray(10)) as region:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("s3verbs.rdma.client.connection.Connection.receive", interrupted)
        server.script.append(hang_up)
        with pytest.raises(KeyboardInterrupt):
            s3.get_into("bucket", "key", region)
        assert not transport.valid
