"""The client engine of NIXL's plugin over real verbs, against the real server and against a plain initiator."""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s3verbs.rdma import handshake
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.token import parse as parse_token
from s3verbs.rdma.verbs.cm import REJECT_CONSUMER_DEFINED, EventKind
from s3verbs.rdma.verbs.constants import CompletionStatus
from s3verbs.rdma.verbs.device import choose
from s3verbs.rdma.verbs.sysfs import read_inventory
from tests.rdma_vm import client_build
from tests.rdma_vm.client_engine import ClientEngine, EngineError
from tests.rdma_vm.forked import both_are_reached
from tests.rdma_vm.gateway import IDLE, Gateway, moved
from tests.rdma_vm.initiator import Initiator, Refused
from tests.rdma_vm.resources import GuardedBuffer, descriptors, eventually, objects, settled, wire

MIB = 1 << 20
OK = CompletionStatus.SUCCESS


@pytest.fixture(scope="session")
def library() -> Path:
    path = os.environ.get(client_build.LIBRARY)
    if path is None:
        pytest.skip(f"the host has no compiler for libcuobjclient: apt-get install {client_build.PACKAGES}")
    return Path(path)


@pytest.fixture
def engine(library: Path) -> Iterator[ClientEngine]:
    """A process has one engine, with the settings of its first user: so it is each test's own."""
    with ClientEngine(library, S3VERBS_RDMA_DEVICES="rxe1") as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[Initiator]:
    (rail,) = choose(read_inventory(), ["rxe0"])
    with Initiator(rail, MIB) as initiator:
        yield initiator


def registered(engine: ClientEngine, size: int, seed: bytes = b"") -> GuardedBuffer:
    buffer = GuardedBuffer(size)
    if seed:
        buffer.fill(seed)
    engine.register(buffer)
    return buffer


def test_a_token_is_one_that_the_server_reads(engine: ClientEngine) -> None:
    buffer = registered(engine, MIB)
    token = parse_token(engine.token(buffer, 4096, 100))
    assert (token.address, token.size, token.lid) == (buffer.address + 4096, 100, 0)
    assert token.gid == bytes(10) + b"\xff\xff\x0a\x4d\x00\x02"
    assert token.transport is Transport.RC
    with pytest.raises(EngineError, match="not within"):
        engine.token(buffer, 0, MIB + 1)
    engine.release(buffer)
    with pytest.raises(EngineError, match="not within"):
        engine.token(buffer)


@pytest.mark.parametrize("size", [1, 4095, MIB + 1, 8 * MIB + 13, 64 * MIB])
def test_an_object_goes_in_and_comes_back(gateway: Gateway, engine: ClientEngine, size: int) -> None:
    source, target = registered(engine, size, b"engine %d" % size), registered(engine, size)
    put = gateway.put(f"engine-{size}", engine.token(source))
    assert (put.status, put.headers["x-amz-rdma-reply"]) == (200, "200"), put.body
    got = gateway.get(f"engine-{size}", engine.token(target))
    assert (got.status, got.headers["x-amz-rdma-bytes-transferred"]) == (200, str(size)), got.body
    assert target.view == source.view
    assert source.intact()
    assert target.intact()
    for buffer in (source, target):
        engine.release(buffer)
    settled(gateway.held, IDLE)


def test_parts_of_one_registration(gateway: Gateway, engine: ClientEngine) -> None:
    pool = registered(engine, 4 * MIB, b"pool")
    before = bytes(pool.view)
    assert gateway.put("middle", engine.token(pool, MIB + 5, 1000)).status == 200
    assert gateway.plain_get("middle").body == before[MIB + 5 : MIB + 1005]
    got = gateway.get("middle", engine.token(pool, 3 * MIB, 50), range="bytes=100-149")
    assert (got.status, got.headers["x-amz-rdma-reply"]) == (206, "206")
    assert pool.view[3 * MIB : 3 * MIB + 50] == before[MIB + 105 : MIB + 155]
    assert pool.view[: 3 * MIB] == before[: 3 * MIB]
    assert pool.view[3 * MIB + 50 :] == before[3 * MIB + 50 :]
    engine.release(pool)


def test_a_server_with_another_nonce_is_refused(gateway: Gateway, engine: ClientEngine, server: Initiator) -> None:
    buffer = registered(engine, 4096, b"nonce")
    before = bytes(buffer.view)
    text = engine.token(buffer)
    token = parse_token(text)
    right = handshake.request(token.secret)
    almost = token.secret[:-1] + bytes([token.secret[-1] ^ 1])
    for private_data in (handshake.request(almost), handshake.request(bytes(16)), b"", right[:-1], b"\0" + right):
        with pytest.raises(Refused) as refused:
            server.connect(token, private_data)
        assert (refused.value.kind, refused.value.status) == (EventKind.REJECTED, REJECT_CONSUMER_DEFINED)
    assert gateway.plain_put("nonce", b"x" * 4096).status == 200
    stolen = str(
        Token(token.address, token.size, token.rkey, qp=token.qp, gid=token.gid, transport=Transport.RC, secret=almost)
    )
    answer = gateway.get("nonce", stolen)
    assert answer.status in (503, 501) or answer.headers["x-amz-rdma-reply"] == "501", answer.body
    assert buffer.view == before
    with server.connect(token) as link:
        assert link.proved
        assert link.read(4096) == (OK, before)
        assert link.write(b"new") is OK
        assert link.write(b"x", -1) is CompletionStatus.REM_ACCESS_ERR
    assert buffer.view[:3] == b"new"
    assert buffer.intact()
    engine.release(buffer)


def test_released_memory_cannot_be_reached(gateway: Gateway, engine: ClientEngine) -> None:
    buffer, other = registered(engine, MIB, b"released"), registered(engine, MIB)
    token = engine.token(buffer)
    assert gateway.put("released", token).status == 200
    engine.release(buffer)
    buffer.view[:] = bytes(MIB)
    got = gateway.get("released", token)
    assert (got.status, got.code) == (400, "InvalidArgument")
    put = gateway.put("never", token)
    assert (put.status, put.code) == (400, "InvalidArgument")
    assert gateway.plain_get("never").status == 404
    assert not any(buffer.view)
    assert gateway.get("released", engine.token(other)).status == 200
    engine.release(other)


def test_200_registrations_leave_nothing_behind(gateway: Gateway, engine: ClientEngine) -> None:
    pid = os.getpid()
    kept = registered(engine, 4096, b"kept")
    assert gateway.put("kept", engine.token(kept)).status == 200
    before, files = objects(pid), descriptors(pid)
    buffer = GuardedBuffer(MIB)
    for number in range(200):
        engine.register(buffer)
        token = engine.token(buffer, 0, 4096)
        if number % 40 == 0:
            assert gateway.get("kept", token).status == 200
        engine.release(buffer)
    settled(lambda: objects(pid), before)
    assert descriptors(pid) == files
    engine.release(kept)


def test_100_connections_leave_nothing_behind(engine: ClientEngine, server: Initiator) -> None:
    pid = os.getpid()
    buffer = registered(engine, 4096)
    token = parse_token(engine.token(buffer))
    with server.connect(token):
        pass
    time.sleep(1)
    before, files = objects(pid), descriptors(pid)
    for _ in range(100):
        with server.connect(token) as link:
            assert link.write(b"x") is OK
    settled(lambda: objects(pid), before)
    assert descriptors(pid) == files
    engine.release(buffer)


def test_an_engine_that_is_shut_down_gives_everything_back(library: Path, server: Initiator) -> None:
    """The first in the process keeps what the verbs libraries keep: the second is counted."""

    def use() -> None:
        with ClientEngine(library, S3VERBS_RDMA_DEVICES="rxe1,rxe0") as other:
            buffer = registered(other, MIB)
            with server.connect(parse_token(other.token(buffer, 0, 1))):
                pass

    pid = os.getpid()
    use()
    before, files = objects(pid), descriptors(pid)
    use()
    settled(lambda: objects(pid), before)
    assert descriptors(pid) == files


def test_two_devices_take_turns_and_both_serve(gateway: Gateway, library: Path) -> None:
    with ClientEngine(library) as both:
        source, target = registered(both, MIB, b"turns"), registered(both, MIB)
        gids = set()
        for number in range(4):
            tokens = [both.token(source), both.token(target)]
            gids |= {parse_token(token).gid for token in tokens}
            target.view[:] = bytes(MIB)
            put = gateway.put(f"turns-{number}", tokens[0])
            assert put.status == 200, put.body
            got = gateway.get(f"turns-{number}", tokens[1])
            assert got.status == 200, got.body
            assert target.view == source.view
        assert len(gids) == 2


def test_without_a_port_that_is_up_there_are_tokens_and_both_devices_come_back(library: Path) -> None:
    with ClientEngine(library) as both:
        buffer = registered(both, 4096)

        def gids() -> set[bytes | None]:
            return {parse_token(both.token(buffer)).gid for _ in range(4)}

        wire("down")
        try:
            # The other end of the wire has no carrier either, and with no device up any may be tried.
            assert both.token(buffer)
        finally:
            wire("up")
        assert eventually(lambda: len(gids()) == 2, 60)


def test_cufile_json_chooses_the_devices(library: Path, tmp_path: Path) -> None:
    settings = tmp_path / "cufile.json"
    settings.write_text('// of a client\n{"properties": {"rdma_dev_addr_list": ["10.77.0.2"]}}')
    with ClientEngine(library, CUFILE_ENV_PATH_JSON=str(settings)) as chosen:
        buffer = registered(chosen, 4096)
        assert {parse_token(chosen.token(buffer)).gid for _ in range(3)} == {bytes(10) + b"\xff\xff\x0a\x4d\x00\x02"}
    settings.write_text(json.dumps({"properties": {"rdma_dev_addr_list": ["10.99.0.1"]}}))
    with (
        pytest.raises(EngineError, match="no RoCE device has this address"),
        ClientEngine(library, CUFILE_ENV_PATH_JSON=str(settings)),
    ):
        pass


@pytest.mark.parametrize(
    ("transport", "devices", "reason"),
    [
        ("rc", "rxe7", "rxe7: no such RDMA device"),
        ("rc", "rxe1:2", "it has no port 2"),
        ("dc", "rxe1", "only mlx5 devices have dynamic connections"),
    ],
)
def test_what_cannot_be_used_is_said(library: Path, transport: str, devices: str, reason: str) -> None:
    with (
        pytest.raises(EngineError, match=reason),
        ClientEngine(library, S3VERBS_TRANSPORT=transport, S3VERBS_RDMA_DEVICES=devices),
    ):
        pass


def test_memory_that_is_not_there_is_refused(engine: ClientEngine) -> None:
    nowhere = GuardedBuffer(4096)
    nowhere.address = 1 << 46
    with pytest.raises(EngineError, match="mapped"):
        engine.register(nowhere)


def test_a_forked_child_has_an_engine_of_its_own(engine: ClientEngine, server: Initiator) -> None:
    buffer = registered(engine, 4096)

    def expose(own: GuardedBuffer) -> tuple[str, Callable[[], None]]:
        with pytest.raises(EngineError):
            engine.token(buffer)
        engine.register(own)
        return engine.token(own), lambda: engine.release(own)

    both_are_reached(server, parse_token(engine.token(buffer)), buffer, expose)
    engine.release(buffer)


def test_a_wire_that_is_cut_for_five_seconds(gateway: Gateway, engine: ClientEngine) -> None:
    """Between transfers: when it is cut within one, Linux 6.1 may spin in the server's Soft-RoCE for ever,
    whatever the client is. What the server makes of that is for `test_gateway_faults`."""
    content, target = registered(engine, 8 * MIB, b"cut"), registered(engine, 8 * MIB)
    assert gateway.put("cut", engine.token(content)).status == 200
    wire("down")
    try:
        time.sleep(5)
        assert engine.token(target)
    finally:
        wire("up")
    assert eventually(lambda: moved(gateway.get("cut", engine.token(target))), 120)
    assert target.view == content.view
    assert target.intact()
    for buffer in (content, target):
        engine.release(buffer)


@pytest.mark.timeout(600)
def test_a_server_that_is_killed_and_started_again(tmp_path: Path, library: Path) -> None:
    pid = os.getpid()
    with ClientEngine(library, S3VERBS_RDMA_DEVICES="rxe1") as engine:
        content = registered(engine, 64 * MIB, secrets.token_bytes(8))
        target = registered(engine, content.size)
        with Gateway(tmp_path / "data") as gateway:
            before = objects(pid)
            token = engine.token(target)
            assert gateway.put("kept", engine.token(content)).status == 200
            with gateway.send("PUT", "never", engine.token(content)) as sent:
                assert eventually(lambda: gateway.metric("s3verbs_rdma_pool_used_bytes") > 0)
                gateway.kill()
                with pytest.raises((EOFError, ConnectionError)):
                    sent.read()
            settled(lambda: objects(pid), before)
            gateway.start()
            got = gateway.get("kept", token)
            assert got.status == 200, got.body
            assert target.view == content.view
            assert target.intact()
            assert content.intact()
            assert gateway.stop() == 0
