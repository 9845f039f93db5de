"""The whole path over real verbs: the server process on rxe0, memory of this process behind rxe1, a wire between."""

import base64
import secrets
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3verbs.rdma.client.verbs import RcTransport
from s3verbs.rdma.client.verbs_listener import Listener
from s3verbs.rdma.token import Token
from s3verbs.rdma.token import parse as parse_token
from tests.integration.endpoint import BUCKET
from tests.rdma_vm.gateway import IDLE, Gateway, path_of
from tests.rdma_vm.resources import GuardedBuffer, eventually, settled

MIB = 1 << 20


def changed(token: str, **fields: object) -> str:
    """The token with other fields."""
    known = parse_token(token)
    names = ("address", "size", "rkey", "lid", "qp", "gid", "transport", "secret")
    return str(Token(**{name: fields.get(name, getattr(known, name)) for name in names}))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 4095, MIB, MIB + 1, 8 * MIB + 13, 256 * MIB])
def test_an_object_goes_in_and_comes_back(gateway: Gateway, transport: RcTransport, size: int) -> None:
    source, target = GuardedBuffer(size), GuardedBuffer(size)
    source.fill(b"whole %d" % size)
    registered = [transport.register(buffer.memory) for buffer in (source, target)]
    put = gateway.put(f"whole-{size}", registered[0].token(0, size))
    assert (put.status, put.headers["x-amz-rdma-reply"], put.body) == (200, "200", b"")
    assert put.headers["x-amz-rdma-bytes-transferred"] == str(size)
    got = gateway.get(f"whole-{size}", registered[1].token(0, size))
    assert (got.status, got.headers["x-amz-rdma-reply"], got.headers["content-length"]) == (200, "200", "0")
    assert got.headers["x-amz-rdma-bytes-transferred"] == str(size)
    assert got.headers["etag"] == put.headers["etag"]
    assert target.view == source.view
    assert source.intact()
    assert target.intact()
    if size <= 8 * MIB + 13:
        assert gateway.plain_get(f"whole-{size}").body == source.view
    for each in registered:
        assert each.revoke()
    assert gateway.held() == IDLE


def test_an_empty_object_moves_nothing(gateway: Gateway, transport: RcTransport) -> None:
    assert gateway.plain_put("empty", b"").status == 200
    buffer = GuardedBuffer(10)
    registered = transport.register(buffer.memory)
    got = gateway.get("empty", registered.token(0, 10))
    assert (got.status, got.headers["x-amz-rdma-bytes-transferred"]) == (200, "0")
    assert not any(buffer.view)
    registered.revoke()


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=1048575-1048576", MIB - 1, MIB + 1), ("bytes=-5", 3 * MIB + 2, 3 * MIB + 7)],
)
def test_a_range_fills_the_first_bytes_and_no_others(
    gateway: Gateway, transport: RcTransport, header: str, start: int, stop: int
) -> None:
    content = GuardedBuffer(3 * MIB + 7)
    content.fill(b"range")
    assert gateway.plain_put("range", bytes(content.view)).status == 200
    buffer = GuardedBuffer(100)
    buffer.view[:] = b"\xee" * 100
    registered = transport.register(buffer.memory)
    got = gateway.get("range", registered.token(10, 90), range=header)
    length = stop - start
    assert (got.status, got.headers["x-amz-rdma-reply"]) == (206, "206")
    assert got.headers["content-range"] == f"bytes {start}-{stop - 1}/{content.size}"
    assert buffer.view[10 : 10 + length] == content.view[start:stop]
    assert bytes(buffer.view[:10]) == b"\xee" * 10
    assert bytes(buffer.view[10 + length :]) == b"\xee" * (90 - length)
    assert buffer.intact()
    registered.revoke()


def test_a_selection_larger_than_the_buffer_moves_nothing(gateway: Gateway, transport: RcTransport) -> None:
    assert gateway.plain_put("larger", b"x" * 1000).status == 200
    buffer = GuardedBuffer(1000)
    registered = transport.register(buffer.memory)
    got = gateway.get("larger", registered.token(0, 999))
    assert (got.status, got.code) == (400, "InvalidArgument")
    assert not any(buffer.view)
    assert gateway.get("larger", registered.token(0, 999), range="bytes=1-").status == 206
    registered.revoke()


def test_an_upload_mixes_parts_by_rdma_and_by_http(gateway: Gateway, transport: RcTransport) -> None:
    size = 5 * MIB
    whole = GuardedBuffer(2 * size + 1234)
    whole.fill(b"multipart")
    registered = transport.register(whole.memory)
    client = gateway.client()
    upload = client.create_multipart_upload(Bucket=BUCKET, Key="mixed")["UploadId"]
    with gateway.connect() as wire:
        query = f"?partNumber=1&uploadId={upload}"
        first = wire.request("PUT", path_of("mixed") + query, x_amz_rdma_token=registered.token(0, size))
        assert (first.status, first.headers["x-amz-rdma-bytes-transferred"]) == (200, str(size))
        second = client.upload_part(
            Bucket=BUCKET, Key="mixed", UploadId=upload, PartNumber=2, Body=bytes(whole.view[size : 2 * size])
        )
        query = f"?partNumber=3&uploadId={upload}"
        third = wire.request("PUT", path_of("mixed") + query, x_amz_rdma_token=registered.token(2 * size, 1234))
        assert third.status == 200
    tags = [first.headers["etag"], second["ETag"], third.headers["etag"]]
    parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
    client.complete_multipart_upload(Bucket=BUCKET, Key="mixed", UploadId=upload, MultipartUpload={"Parts": parts})
    assert gateway.plain_get("mixed").body == whole.view
    target = GuardedBuffer(whole.size)
    into = transport.register(target.memory)
    assert gateway.get("mixed", into.token(0, whole.size)).status == 200
    assert target.view == whole.view
    part = gateway.get("mixed", into.token(0, whole.size), "?partNumber=3")
    assert (part.status, part.headers["x-amz-rdma-bytes-transferred"]) == (206, "1234")
    assert target.view[:1234] == whole.view[2 * size :]
    assert target.intact()
    for each in (registered, into):
        each.revoke()
    client.close()


def test_a_checksum_that_does_not_fit_stores_nothing(gateway: Gateway, transport: RcTransport) -> None:
    assert gateway.plain_put("checked", b"before").status == 200
    buffer = GuardedBuffer(MIB + 3)
    buffer.fill(b"checked")
    registered = transport.register(buffer.memory)
    token = registered.token(0, buffer.size)
    wrong = gateway.put("checked", token, x_amz_checksum_crc32="AAAAAA==")
    assert (wrong.status, wrong.code) == (400, "BadDigest")
    assert gateway.plain_get("checked").body == b"before"
    right = base64.b64encode(zlib.crc32(buffer.view).to_bytes(4, "big")).decode()
    put = gateway.put("checked", token, x_amz_checksum_crc32=right)
    assert (put.status, put.headers["x-amz-checksum-crc32"]) == (200, right)
    registered.revoke()


@pytest.mark.parametrize("wrong", ["rkey", "size", "address"])
def test_memory_that_was_not_registered_is_out_of_reach(gateway: Gateway, transport: RcTransport, wrong: str) -> None:
    assert gateway.plain_put("reach", b"before").status == 200
    buffer = GuardedBuffer(MIB)
    registered = transport.register(buffer.memory)
    token = registered.token(0, MIB)
    known = parse_token(token)
    bad = {
        "rkey": changed(token, rkey=known.rkey ^ 0x33),
        "size": changed(token, size=MIB + 1),
        "address": changed(token, address=known.address - 1),
    }[wrong]
    put = gateway.put("reach", bad)
    assert (put.status, put.code) == (400, "InvalidArgument")
    assert gateway.plain_get("reach").body == b"before"
    content = secrets.token_bytes(MIB + 1)
    assert gateway.plain_put("larger than the region", content).status == 200
    got = gateway.get("larger than the region", bad, range=f"bytes=0-{parse_token(bad).size - 1}")
    assert (got.status, got.code) == (400, "InvalidArgument")
    assert buffer.intact()
    assert gateway.put("reach", token).status == 200
    registered.revoke()
    assert gateway.held() == IDLE


def test_revoked_memory_is_out_of_reach(gateway: Gateway, transport: RcTransport) -> None:
    buffer = GuardedBuffer(MIB)
    registered = transport.register(buffer.memory)
    token = registered.token(0, MIB)
    assert gateway.put("revoked", token).status == 200
    assert registered.revoke()
    assert gateway.put("revoked", token).status == 400
    assert gateway.get("revoked", token).status == 400


def test_a_listener_with_another_nonce_gets_nothing(gateway: Gateway, transport: RcTransport) -> None:
    """Someone who has seen a token but not its nonce, or a stranger's RDMA service."""
    buffer = GuardedBuffer(4096)
    registered = transport.register(buffer.memory)
    stolen = changed(registered.token(0, 4096), secret=secrets.token_bytes(16))
    put = gateway.put("stolen", stolen)
    assert (put.status, put.code) == (503, "ServiceUnavailable")
    assert "retry-after" in put.headers
    assert gateway.plain_get("stolen").status == 404
    registered.revoke()


def test_a_peer_outside_of_the_subnets_is_declined(gateway: Gateway, transport: RcTransport) -> None:
    assert gateway.plain_put("declined", b"by HTTP").status == 200
    registered = transport.register(GuardedBuffer(4096).memory)
    far = changed(registered.token(0, 4096), gid=bytes(10) + b"\xff\xff\xc0\x00\x02\x01")
    put = gateway.put("declined", far)
    assert (put.status, put.code, put.headers["x-amz-rdma-reply"]) == (501, "NotImplemented", "501")
    got = gateway.get("declined", far)
    assert (got.status, got.body, got.headers["x-amz-rdma-reply"]) == (200, b"by HTTP", "501")
    registered.revoke()


def test_16_clients_with_8_requests_in_flight(gateway: Gateway) -> None:
    """128 at a time; the server has 16 buffers."""
    clients = [RcTransport(["rxe1"]) for _ in range(16)]

    def both_ways(number: int) -> None:
        size = 32768 + number
        source, target = GuardedBuffer(size), GuardedBuffer(size)
        source.fill(b"many %d" % number)
        client = clients[number % 16]
        first, second = client.register(source.memory), client.register(target.memory)
        put = gateway.put(f"many-{number}", first.token(0, size))
        assert (put.status, put.headers.get("x-amz-rdma-reply")) == (200, "200"), put.body
        got = gateway.get(f"many-{number}", second.token(0, size))
        assert (got.status, got.headers.get("x-amz-rdma-reply")) == (200, "200"), got.body
        assert target.view == source.view
        assert source.intact()
        assert target.intact()
        assert first.revoke()
        assert second.revoke()

    try:
        with ThreadPoolExecutor(128) as pool:
            list(pool.map(both_ways, range(128)))
    finally:
        for client in clients:
            client.close()
    settled(gateway.held, IDLE)


def test_200_clients_that_come_and_go_leave_nothing_behind(gateway: Gateway, transport: RcTransport) -> None:
    """Each is a new listener with a new nonce, as the server sees it a new process."""
    (rail,) = transport._process().rails
    buffer = GuardedBuffer(4096)
    registered = transport.register(buffer.memory)
    token = registered.token(0, 4096)
    assert gateway.put("come-and-go", token).status == 200
    assert eventually(lambda: gateway.metric("s3verbs_rdma_connections") == 1)
    before = gateway.open()
    with gateway.connect() as wire:
        for number in range(200):
            nonce = secrets.token_bytes(16)
            listener = Listener([rail], nonce, 4)
            try:
                other = changed(token, qp=listener.ports[rail], secret=nonce)
                answer = wire.request("PUT", path_of("come-and-go"), x_amz_rdma_token=other)
                assert answer.status == 200, number
            finally:
                listener.close()
    assert eventually(lambda: gateway.metric("s3verbs_rdma_connections") == 1)
    settled(gateway.open, before)
    registered.revoke()
