"""The client's transport over real verbs, against a plain initiator on the other end of the wire."""

import gc
import os
import secrets
from collections.abc import Callable, Iterator

import pytest

from s3verbs.rdma import handshake
from s3verbs.rdma.client.transport import TransportUnavailable
from s3verbs.rdma.client.verbs import RcTransport
from s3verbs.rdma.token import Transport
from s3verbs.rdma.token import parse as parse_token
from s3verbs.rdma.verbs.cm import REJECT_CONSUMER_DEFINED, EventKind
from s3verbs.rdma.verbs.constants import CompletionStatus
from s3verbs.rdma.verbs.device import choose
from s3verbs.rdma.verbs.sysfs import read_inventory
from tests.rdma_vm.forked import both_are_reached
from tests.rdma_vm.initiator import Initiator, Refused
from tests.rdma_vm.resources import GuardedBuffer, descriptors, eventually, objects, settled, wire

SIZE = 1 << 20
OK = CompletionStatus.SUCCESS


@pytest.fixture(scope="module")
def client() -> Iterator[RcTransport]:
    transport = RcTransport(["rxe1"])
    yield transport
    transport.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Initiator]:
    (rail,) = choose(read_inventory(), ["rxe0"])
    with Initiator(rail, SIZE) as initiator:
        yield initiator


def test_a_token_names_the_listener_and_the_part_of_the_memory(client: RcTransport) -> None:
    buffer = GuardedBuffer(SIZE)
    registration = client.register(buffer.memory)
    token = parse_token(registration.token(4096, 100))
    assert (token.address, token.size) == (buffer.address + 4096, 100)
    assert token.gid == bytes(10) + b"\xff\xff\x0a\x4d\x00\x02"
    assert token.transport is Transport.RC
    assert token.lid == 0
    for offset, size in ((-1, 2), (0, SIZE + 1), (SIZE, 1), (0, 0)):
        with pytest.raises(ValueError, match="is not in"):
            registration.token(offset, size)


def test_a_server_reads_and_writes_the_memory_and_nothing_beside_it(client: RcTransport, server: Initiator) -> None:
    buffer = GuardedBuffer(SIZE)
    content = secrets.token_bytes(SIZE)
    buffer.view[:] = content
    token = parse_token(client.register(buffer.memory).token(0, SIZE))
    with server.connect(token) as link:
        assert link.proved
        assert link.read(SIZE) == (OK, content)
        new = secrets.token_bytes(SIZE)
        assert link.write(new) is OK
        assert bytes(buffer.view) == new
        assert link.write(b"middle", 777) is OK
        assert bytes(buffer.view) == new[:777] + b"middle" + new[783:]
    assert buffer.intact()


@pytest.mark.parametrize("offset", [-1, SIZE, SIZE - 1])
def test_a_server_cannot_write_outside_of_the_memory(client: RcTransport, server: Initiator, offset: int) -> None:
    buffer = GuardedBuffer(SIZE)
    token = parse_token(client.register(buffer.memory).token(0, SIZE))
    with server.connect(token) as link:
        assert link.write(b"xx", offset) is CompletionStatus.REM_ACCESS_ERR
    assert buffer.intact()


def test_a_wrong_rkey_moves_nothing(client: RcTransport, server: Initiator) -> None:
    buffer = GuardedBuffer(SIZE)
    token = parse_token(client.register(buffer.memory).token(0, SIZE))
    with server.connect(token) as link:
        assert link.write(b"x", rkey=token.rkey ^ 0x5A) is CompletionStatus.REM_ACCESS_ERR
    with server.connect(token) as link:
        assert link.read(1, rkey=token.rkey ^ 0x5A)[0] is CompletionStatus.REM_ACCESS_ERR
    assert not any(buffer.view)


def test_revoked_memory_cannot_be_reached_over_a_connection_that_stays(client: RcTransport, server: Initiator) -> None:
    buffer, other = GuardedBuffer(SIZE), GuardedBuffer(SIZE)
    registration = client.register(buffer.memory)
    kept = parse_token(client.register(other.memory).token(0, SIZE))
    token = parse_token(registration.token(0, SIZE))
    with server.connect(token) as link:
        assert link.write(b"before") is OK
        assert registration.revoke() is True
        assert registration.revoke() is True
        with pytest.raises(TransportUnavailable):
            registration.token(0, 1)
        assert link.write(b"after!") is CompletionStatus.REM_ACCESS_ERR
    assert bytes(buffer.view[:6]) == b"before"
    with server.connect(kept) as link:
        assert link.write(b"other") is OK


def test_a_connection_with_another_nonce_is_rejected(client: RcTransport, server: Initiator) -> None:
    token = parse_token(client.register(GuardedBuffer(SIZE).memory).token(0, SIZE))
    almost = token.secret[:-1] + bytes([token.secret[-1] ^ 1])
    right = handshake.request(token.secret)
    nonces = (secrets.token_bytes(16), almost, bytes(16))
    others = (b"", right[:-1], b"\0" + right, right.replace(b"V\x01", b"V\x02"), handshake.reply(token.secret))
    for private_data in (*map(handshake.request, nonces), *others):
        with pytest.raises(Refused) as refused:
            server.connect(token, private_data)
        assert refused.value.kind is EventKind.REJECTED
        assert refused.value.status == REJECT_CONSUMER_DEFINED
    assert client.connections == 0
    with server.connect(token) as link:
        assert link.proved


def test_two_processes_have_two_nonces(client: RcTransport) -> None:
    other = RcTransport(["rxe1"])
    try:
        buffer = GuardedBuffer(4096)
        tokens = [parse_token(each.register(buffer.memory).token(0, 1)) for each in (client, other)]
        assert tokens[0].secret != tokens[1].secret
        assert tokens[0].qp != tokens[1].qp
    finally:
        other.close()


def test_200_connections_leave_nothing_behind(client: RcTransport, server: Initiator) -> None:
    pid = os.getpid()
    buffer = GuardedBuffer(4096)
    registration = client.register(buffer.memory)
    token = parse_token(registration.token(0, 4096))
    with server.connect(token):
        pass
    assert eventually(lambda: client.connections == 0)
    before, files = objects(pid), descriptors(pid)
    for number in range(200):
        with server.connect(token) as link:
            if number % 20 == 0:
                assert link.write(number.to_bytes(2, "big")) is OK
    settled(lambda: objects(pid), before)
    assert client.connections == 0
    assert descriptors(pid) == files


def test_one_connection_more_than_the_bound_ends_the_oldest(server: Initiator) -> None:
    client = RcTransport(["rxe1"], max_connections=3)
    try:
        token = parse_token(client.register(GuardedBuffer(4096).memory).token(0, 4096))
        links = [server.connect(token) for _ in range(3)]
        links.append(server.connect(token))
        assert client.connections == 3
        links[0].expect(EventKind.DISCONNECTED)
        assert links[1].write(b"x") is OK
        assert links[3].write(b"x") is OK
        for link in links:
            link.close()
    finally:
        client.close()


def test_close_gives_everything_back_and_ends_connections(server: Initiator) -> None:
    pid = os.getpid()
    before, files = objects(pid), descriptors(pid)
    client = RcTransport(["rxe1"])
    registrations = [client.register(GuardedBuffer(4096).memory) for _ in range(3)]
    link = server.connect(parse_token(registrations[0].token(0, 4096)))
    client.close()
    client.close()
    # A busy client that has not heard yet that the connection stands rejects it.
    link.expect(EventKind.DISCONNECTED, EventKind.REJECTED)
    link.close()
    with pytest.raises(TransportUnavailable):
        client.register(GuardedBuffer(4096).memory)
    with pytest.raises(TransportUnavailable):
        registrations[0].token(0, 1)
    settled(lambda: objects(pid), before)
    assert descriptors(pid) == files


def test_a_transport_that_is_forgotten_gives_everything_back() -> None:
    pid = os.getpid()
    before = objects(pid)
    client: RcTransport | None = RcTransport(["rxe1"])
    assert client is not None
    client.register(GuardedBuffer(4096).memory)
    assert objects(pid) != before
    client = None
    gc.collect()
    settled(lambda: objects(pid), before)


def test_a_forked_child_has_a_listener_of_its_own_and_leaves_the_parents_alone(
    client: RcTransport, server: Initiator
) -> None:
    buffer = GuardedBuffer(4096)
    registration = client.register(buffer.memory)

    def expose(own: GuardedBuffer) -> tuple[str, Callable[[], None]]:
        with pytest.raises(TransportUnavailable, match="forked"):
            registration.token(0, 1)
        assert registration.revoke()
        again = client.register(own.memory)

        def take_back() -> None:
            assert again.revoke()
            client.close()

        return again.token(0, 4096), take_back

    both_are_reached(server, parse_token(registration.token(0, 4096)), buffer, expose)


def test_memory_that_is_not_there_is_refused_with_the_reason(client: RcTransport) -> None:
    buffer = GuardedBuffer(4096)
    beyond = buffer.memory.__class__(1 << 46, 4096, None)
    with pytest.raises(TransportUnavailable, match="not mapped"):
        client.register(beyond)


def test_a_dma_buf_that_the_device_cannot_take_falls_back_and_then_says_why(client: RcTransport) -> None:
    buffer = GuardedBuffer(4096)
    opened: list[int] = []

    def dmabuf() -> tuple[int, int]:
        opened.append(os.memfd_create("no-dma-buf"))
        return opened[-1], 0

    memory = buffer.memory.__class__(buffer.address, 4096, buffer, gpu=0, dmabuf=dmabuf)
    client.register(memory).token(0, 4096)  # Peer memory: for this device host memory is as good.
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
    missing = buffer.memory.__class__(1 << 46, 4096, buffer, gpu=0, dmabuf=dmabuf)
    with pytest.raises(TransportUnavailable, match=r"GPU 0: as a dma-buf: .*; by peer memory"):
        client.register(missing)


@pytest.mark.parametrize("pin", ["mlx5_0", "rxe1:2", "rxe1:1:200"])
def test_a_pinned_device_that_is_not_there_is_named(pin: str) -> None:
    with pytest.raises(TransportUnavailable, match=pin.split(":")[0]):
        RcTransport([pin])


def test_with_two_devices_tokens_take_turns_and_leave_out_one_that_is_down() -> None:
    client = RcTransport()
    try:
        registration = client.register(GuardedBuffer(4096).memory)
        gids = [parse_token(registration.token(0, 1)).gid for _ in range(4)]
        assert len(set(gids)) == 2
        assert gids[:2] == gids[2:]
        token = registration.token(0, 1)
        client.rest(token)
        rested = parse_token(token).gid
        assert rested not in [parse_token(registration.token(0, 1)).gid for _ in range(4)]
    finally:
        client.close()


def test_a_rail_whose_port_is_down_is_left_out() -> None:
    client = RcTransport()
    try:
        registration = client.register(GuardedBuffer(4096).memory)
        wire("down")
        try:
            assert eventually(lambda: not any(rail.is_fit() for rail in client._process().rails), 5)
            assert registration.token(0, 1)
        finally:
            wire("up")
        assert eventually(lambda: all(rail.is_fit() for rail in client._process().rails))
    finally:
        client.close()
