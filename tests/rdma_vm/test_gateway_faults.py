"""Clients and servers that are killed, and a wire that is cut, in the middle of transfers over real verbs."""

import time
from pathlib import Path

import pytest

from s3verbs.rdma.client.verbs import RcTransport
from tests.rdma_vm.gateway import IDLE, Gateway, exposing_process, moved
from tests.rdma_vm.resources import GuardedBuffer, eventually, settled, wire

MIB = 1 << 20
LARGE = 192 * MIB
"""Two seconds and more over this wire: enough to do something in the middle."""


@pytest.fixture(scope="module")
def large(gateway: Gateway, transport: RcTransport) -> GuardedBuffer:
    """The content of the object "large"."""
    buffer = GuardedBuffer(LARGE)
    buffer.fill(b"large")
    registered = transport.register(buffer.memory)
    assert gateway.put("large", registered.token(0, LARGE)).status == 200
    registered.revoke()
    return buffer


def in_the_middle(gateway: Gateway) -> bool:
    """Wait until bytes move."""
    return eventually(lambda: gateway.metric("s3verbs_rdma_pool_used_bytes") > 0)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_client_that_is_killed_in_the_middle_holds_nothing(
    gateway: Gateway, transport: RcTransport, large: GuardedBuffer, method: str
) -> None:
    small = GuardedBuffer(100)
    small.fill(b"before")
    registered = transport.register(small.memory)
    key = "large" if method == "GET" else "killed"
    assert gateway.put("killed", registered.token(0, 100)).status == 200
    assert eventually(lambda: gateway.metric("s3verbs_rdma_connections") == 1)
    before = gateway.open()
    with exposing_process(LARGE) as (process, token):
        sent = gateway.send(method, key, token)
        with sent:
            assert in_the_middle(gateway)
            process.kill()
            process.wait()
            answer = sent.read(method)
    assert answer.status in (503, 400), answer.body
    settled(gateway.held, IDLE)
    assert eventually(lambda: gateway.metric("s3verbs_rdma_connections") == 1)
    settled(gateway.open, before)
    assert gateway.plain_get("killed").body == small.view
    assert gateway.get("killed", registered.token(0, 100)).status == 200
    registered.revoke()


def test_a_client_whose_http_connection_ends_in_the_middle_holds_nothing(
    gateway: Gateway, transport: RcTransport, large: GuardedBuffer
) -> None:
    buffer = GuardedBuffer(LARGE)
    registered = transport.register(buffer.memory)
    sent = gateway.send("GET", "large", registered.token(0, LARGE))
    # The gauge is up to a second old; the memory is not.
    assert eventually(lambda: buffer.view[:64] == large.view[:64])
    sent.close()
    time.sleep(2)
    settled(gateway.held, IDLE)
    assert registered.revoke()
    assert buffer.intact()


def test_a_wire_that_is_cut_for_five_seconds(gateway: Gateway, transport: RcTransport, large: GuardedBuffer) -> None:
    buffer = GuardedBuffer(LARGE)
    registered = transport.register(buffer.memory)
    with gateway.send("GET", "large", registered.token(0, LARGE)) as sent:
        assert in_the_middle(gateway)
        wire("down")
        try:
            time.sleep(5)
        finally:
            wire("up")
        answer = sent.read()
    assert answer.status in (200, 503), answer.body
    if answer.status == 200:
        assert moved(answer)
        assert buffer.view == large.view
    settled(gateway.held, IDLE)
    assert eventually(lambda: moved(gateway.get("large", registered.token(0, LARGE))), 120)
    assert buffer.view == large.view
    assert buffer.intact()
    registered.revoke()


def test_a_server_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    client = RcTransport(["rxe1"])
    content = GuardedBuffer(64 * MIB)
    content.fill(b"server killed")
    target = GuardedBuffer(content.size)
    try:
        first, second = client.register(content.memory), client.register(target.memory)
        with Gateway(tmp_path / "data") as gateway:
            assert gateway.put("kept", first.token(0, content.size)).status == 200
            with gateway.send("PUT", "never", first.token(0, content.size)) as sent:
                assert in_the_middle(gateway)
                gateway.kill()
                with pytest.raises((EOFError, ConnectionError)):
                    sent.read()
            assert eventually(lambda: client.connections == 0)
            gateway.start()
            assert gateway.plain_get("never").status == 404
            assert gateway.get("kept", second.token(0, content.size)).status == 200
            assert target.view == content.view
            assert target.intact()
            assert content.intact()
            assert gateway.stop() == 0
    finally:
        client.close()


def test_a_server_does_not_start_without_the_device_that_it_requires(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="rxe7"), Gateway(tmp_path / "data", device="rxe7"):
        pass
