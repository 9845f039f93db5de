"""The data operations with an RDMA token: every row of the contract's tables, through the whole gateway over the
loopback fabric."""

import hashlib
import socket
import struct
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest
from awscrt import checksums as crt

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.loopback import Fault
from s3verbs.rdma.token import Transport
from s3verbs.storage.model import INLINE_LIMIT
from tests.integration.endpoint import BUCKET, Response, Wire
from tests.integration.rdma_gateway import RELAXED, RdmaGateway

NOWHERE = "00007f1dc46fd010:00100000:0000abcd:0000:001234:1:00000000000000000000ffff7f000001"
SIZES = [1, INLINE_LIMIT, INLINE_LIMIT + 1, CHUNK - 1, CHUNK, CHUNK + 1, 6 * CHUNK + 4097]
HEADERS = {"cuobj": "x_amz_rdma_token", "nixl": "x_rdma_info"}


def pattern(size: int, seed: int = 1) -> bytes:
    return hashlib.shake_128(bytes([seed])).digest(size)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RdmaGateway]:
    running = await RdmaGateway(tmp_path).start(seed=7)
    yield running
    await running.stop()


def moved(response: Response, status: int, size: int) -> None:
    assert response.status == status, response.body
    assert response.headers["x-amz-rdma-reply"] == str(status)
    assert response.headers["x-amz-rdma-bytes-transferred"] == str(size)
    assert response.headers["content-length"] == "0"


# -- success --


@pytest.mark.parametrize("dialect", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("bucket", [BUCKET, RELAXED])
@pytest.mark.parametrize("size", SIZES)
async def test_an_object_goes_there_and_back(gateway: RdmaGateway, size: int, bucket: str, dialect: str) -> None:
    data = pattern(size)
    source, target = gateway.expose(data), gateway.expose(bytes(size))
    put = await gateway.request("PUT", f"/{bucket}/k", **{dialect: str(source.token)})
    moved(put, 200, size)
    assert source.bytes == data
    plain = await gateway.request("GET", f"/{bucket}/k")
    assert (plain.body, plain.headers["etag"]) == (data, put.headers["etag"])
    assert "x-amz-checksum-crc64nvme" in put.headers
    if bucket == BUCKET:
        assert put.headers["etag"] == f'"{hashlib.md5(data).hexdigest()}"'
    get = await gateway.request("GET", f"/{bucket}/k", **{dialect: str(target.token)})
    moved(get, 200, size)
    assert target.bytes == data
    assert get.headers["etag"] == put.headers["etag"]
    assert get.headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize("payload", ["UNSIGNED-PAYLOAD", hashlib.sha256(b"").hexdigest()])
async def test_both_ways_to_sign_no_body_are_taken(gateway: RdmaGateway, payload: str) -> None:
    source = gateway.expose(b"data")
    moved(await gateway.put("k", source, x_amz_content_sha256=payload), 200, 4)
    moved(await gateway.get("k", source, x_amz_content_sha256=payload), 200, 4)


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("0-0", 0, 1),
        ("1-", 1, None),
        ("-1", -1, None),
        ("5-1048581", 5, 1048582),
        ("4095-4096", 4095, 4097),
        ("1048575-2097152", 1048575, 2097153),
        ("3000000-99999999", 3000000, None),
    ],
)
async def test_ranges(gateway: RdmaGateway, asked: str, start: int, stop: int | None) -> None:
    data = pattern(3 * CHUNK + 17)
    await gateway.put("k", gateway.expose(data))
    target = gateway.expose(bytes(len(data)))
    got = await gateway.get("k", target, range=f"bytes={asked}")
    expected = data[start:stop]
    moved(got, 206, len(expected))
    first = start % len(data)
    assert got.headers["content-range"] == f"bytes {first}-{first + len(expected) - 1}/{len(data)}"
    assert target.bytes == expected + bytes(len(data) - len(expected))


async def test_a_range_that_cannot_be_met_moves_nothing(gateway: RdmaGateway) -> None:
    await gateway.put("k", gateway.expose(b"data"))
    target = gateway.expose(bytes(4))
    got = await gateway.get("k", target, range="bytes=4-9")
    assert (got.status, got.code, gateway.fabric.opened) == (416, "InvalidRange", 1)
    assert "x-amz-rdma-reply" not in got.headers


async def test_parts_may_come_by_either_way(gateway: RdmaGateway) -> None:
    client_parts = [pattern(5 << 20, 1), pattern(5 << 20, 2), pattern(100, 3)]
    started = await gateway.request("POST", f"/{BUCKET}/m?uploads=")
    upload = started.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
    etags = []
    for number, data in enumerate(client_parts, 1):
        path = f"/{BUCKET}/m?partNumber={number}&uploadId={upload}"
        if number == 2:
            sent = await gateway.request("PUT", path, data)
        else:
            sent = await gateway.request("PUT", path, x_amz_rdma_token=str(gateway.expose(data).token))
            moved(sent, 200, len(data))
        etags.append(sent.headers["etag"])
    listed = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{e}</ETag></Part>" for n, e in enumerate(etags, 1))
    document = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    assert (await gateway.request("POST", f"/{BUCKET}/m?uploadId={upload}", document)).status == 200
    whole = b"".join(client_parts)
    target = gateway.expose(bytes(len(whole)))
    moved(await gateway.get("m", target), 200, len(whole))
    assert target.bytes == whole
    for number, data in enumerate(client_parts, 1):
        part = gateway.expose(bytes(len(data)))
        got = await gateway.get(f"m?partNumber={number}", part)
        moved(got, 206, len(data))
        assert (part.bytes, got.headers["x-amz-mp-parts-count"]) == (data, "3")
    middle = gateway.expose(bytes(2000))
    moved(await gateway.get("m", middle, range=f"bytes={(10 << 20) - 1900}-{(10 << 20) + 99}"), 206, 2000)
    assert middle.bytes == whole[(10 << 20) - 1900 : (10 << 20) + 100]


async def test_an_empty_object_moves_nothing(gateway: RdmaGateway) -> None:
    await gateway.request("PUT", f"/{BUCKET}/empty", b"")
    target = gateway.expose(b"keep")
    got = await gateway.get("empty", target)
    moved(got, 200, 0)
    assert (target.bytes, gateway.fabric.opened) == (b"keep", 0)


async def test_conditions_are_decided_before_a_byte_moves(gateway: RdmaGateway) -> None:
    put = await gateway.put("k", gateway.expose(b"data"))
    target = gateway.expose(b"keep")
    not_modified = await gateway.get("k", target, if_none_match=put.headers["etag"])
    failed = await gateway.get("k", target, if_match='"other"')
    assert (not_modified.status, failed.status, failed.code) == (304, 412, "PreconditionFailed")
    assert "x-amz-rdma-reply" not in {**not_modified.headers, **failed.headers}
    taken = await gateway.put("k", gateway.expose(b"more"), if_none_match="*")
    assert (taken.status, await gateway.stored("k"), target.bytes) == (412, b"data", b"keep")
    assert gateway.fabric.opened == 2
    moved(await gateway.put("k", gateway.expose(b"more"), if_match=put.headers["etag"]), 200, 4)
    assert await gateway.stored("k") == b"more"


async def test_a_buffer_may_be_larger_than_what_is_asked_for_but_not_smaller(gateway: RdmaGateway) -> None:
    data = pattern(100_000)
    await gateway.put("k", gateway.expose(data))
    large, small = gateway.expose(bytes(100_010)), gateway.expose(bytes(99_999))
    moved(await gateway.get("k", large), 200, 100_000)
    assert large.bytes == data + bytes(10)
    refused = await gateway.get("k", small)
    assert (refused.status, refused.code, small.bytes) == (400, "InvalidArgument", bytes(99_999))
    assert "x-amz-rdma-reply" not in refused.headers
    moved(await gateway.get("k", small, range="bytes=0-99998"), 206, 99_999)


def b64(raw: bytes) -> str:
    return b64encode(raw).decode()


def claims(data: bytes) -> dict[str, str]:
    return {
        "content_md5": b64(hashlib.md5(data).digest()),
        "x_amz_checksum_crc32": b64(crc32(data).to_bytes(4, "big")),
        "x_amz_checksum_crc32c": b64(crt.crc32c(data).to_bytes(4, "big")),
        "x_amz_checksum_crc64nvme": b64(crt.crc64nvme(data).to_bytes(8, "big")),
        "x_amz_checksum_sha1": b64(hashlib.sha1(data).digest()),
        "x_amz_checksum_sha256": b64(hashlib.sha256(data).digest()),
    }


@pytest.mark.parametrize("size", [100, 3 * CHUNK + 1])
@pytest.mark.parametrize("claim", claims(b""))
async def test_claims_are_compared_with_what_was_pulled(gateway: RdmaGateway, claim: str, size: int) -> None:
    data = pattern(size)
    right = await gateway.put("k", gateway.expose(data), **{claim: claims(data)[claim]})
    moved(right, 200, size)
    if claim != "content_md5":
        name = claim.replace("_", "-")
        assert right.headers[name] == claims(data)[claim]
        read = await gateway.get("k", gateway.expose(bytes(size)), x_amz_checksum_mode="ENABLED")
        assert read.headers[name] == claims(data)[claim]
    wrong = await gateway.put("k", gateway.expose(pattern(size, 9)), **{claim: claims(data)[claim]})
    assert (wrong.status, wrong.code) == (400, "BadDigest")
    assert "x-amz-rdma-reply" not in wrong.headers
    assert await gateway.stored("k") == data


# -- what is refused before any work --

BAD_TOKENS = {
    "empty": "",
    "short": NOWHERE[:-1],
    "long": NOWHERE + "0",
    "not hex": NOWHERE.replace("abcd", "xyzw"),
    "a narrow field": NOWHERE.replace("0000abcd", "abcd"),
    "another separator": NOWHERE.replace(":", "-"),
    "size 0": NOWHERE.replace("00100000", "00000000"),
    "past the last address": NOWHERE.replace("00007f1dc46fd010", "fffffffffffff010"),
    "an unknown suffix": NOWHERE + ":rc2:" + "0" * 32,
    "a short nonce": NOWHERE + ":rc1:" + "0" * 31,
    "a same-host token with an rkey": NOWHERE + ":cma1:" + "0" * 32,
    "RC without a GID": NOWHERE.replace(":1:0000", ":0:0000") + ":rc1:" + "0" * 32,
    "the AMD form": "0" * 88,
}


@pytest.mark.parametrize("token", BAD_TOKENS.values(), ids=BAD_TOKENS)
@pytest.mark.parametrize("dialect", HEADERS.values(), ids=HEADERS)
async def test_a_malformed_token_is_refused(gateway: RdmaGateway, token: str, dialect: str) -> None:
    for method in ("GET", "PUT"):
        response = await gateway.request(method, f"/{BUCKET}/k", **{dialect: token})
        assert (response.status, response.code) == (400, "InvalidArgument")
        assert "x-amz-rdma-reply" not in response.headers
    assert await gateway.stored("k") is None


async def test_minios_own_address_and_size_count(gateway: RdmaGateway) -> None:
    memory = gateway.expose(b"0123456789", Transport.DC)
    token = f"{memory.token}:{memory.token.address + 2:016x}:{5:016x}"
    moved(await gateway.request("PUT", f"/{BUCKET}/k", x_amz_rdma_token=token), 200, 5)
    assert await gateway.stored("k") == b"23456"


REFUSED = {
    "two tokens": ({"x_rdma_info": NOWHERE}, b"", "InvalidArgument"),
    "a body": ({"x_amz_content_sha256": "UNSIGNED-PAYLOAD"}, b"body", "InvalidArgument"),
    "a hash of something": ({"x_amz_content_sha256": "0" * 64}, b"", "XAmzContentSHA256Mismatch"),
    "a stream": (
        {"x_amz_content_sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x_amz_decoded_content_length": "0"},
        b"",
        "InvalidArgument",
    ),
    "aws-chunked": ({"content_encoding": "aws-chunked"}, b"", "InvalidArgument"),
}


@pytest.mark.parametrize(("headers", "body", "code"), REFUSED.values(), ids=REFUSED)
async def test_what_does_not_go_with_a_token(
    gateway: RdmaGateway, headers: dict[str, str], body: bytes, code: str
) -> None:
    memory = gateway.expose(b"data")
    response = await gateway.request("PUT", f"/{BUCKET}/k", body, x_amz_rdma_token=str(memory.token), **headers)
    assert (response.status, response.code) == (400, code)
    assert (gateway.fabric.opened, await gateway.stored("k")) == (0, None)


@pytest.mark.parametrize("dialect", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_token_that_is_not_signed_is_refused(gateway: RdmaGateway, method: str, dialect: str) -> None:
    token = gateway.expose(b"data").token

    def talk(wire: Wire) -> Response:
        head = wire.signed(method, f"/{BUCKET}/k", head_only=True)
        wire.send(head[:-2] + f"{dialect.replace('_', '-')}: {token}\r\n\r\n".encode())
        return wire.read(method)

    response = await gateway.wire(talk)
    assert (response.status, response.code, gateway.fabric.opened) == (403, "AccessDenied", 0)


async def test_nobody_without_a_key_gets_rdma(gateway: RdmaGateway) -> None:
    def talk(wire: Wire) -> Response:
        wire.send(f"GET /{BUCKET}/k HTTP/1.1\r\nHost: x\r\nx-amz-rdma-token: {NOWHERE}\r\n\r\n".encode())
        return wire.read()

    response = await gateway.wire(talk)
    assert (response.status, response.code, gateway.fabric.opened) == (403, "AccessDenied", 0)


@pytest.mark.parametrize("token", [NOWHERE, "no token at all"])
async def test_other_operations_ignore_a_token(gateway: RdmaGateway, token: str) -> None:
    await gateway.request("PUT", f"/{BUCKET}/k", b"data")
    for dialect in HEADERS.values():
        head = await gateway.request("HEAD", f"/{BUCKET}/k", **{dialect: token})
        assert (head.status, head.headers["content-length"]) == (200, "4")
        assert (await gateway.request("GET", f"/{BUCKET}?list-type=2", **{dialect: token})).status == 200
        copy = {"x_amz_copy_source": f"/{BUCKET}/k", dialect: token}
        assert (await gateway.request("PUT", f"/{BUCKET}/copy", **copy)).status == 200
        assert (await gateway.request("DELETE", f"/{BUCKET}/copy", **{dialect: token})).status == 204


async def test_ordinary_errors_stay_ordinary(gateway: RdmaGateway) -> None:
    memory = gateway.expose(b"data")
    missing = await gateway.get("missing", memory)
    assert (missing.status, missing.code) == (404, "NoSuchKey")
    nowhere = await gateway.put("k", memory, bucket="no-such-bucket")
    assert (nowhere.status, nowhere.code) == (404, "NoSuchBucket")
    part = await gateway.put("k?partNumber=1&uploadId=none", memory)
    assert (part.status, part.code) == (404, "NoSuchUpload")
    assert "x-amz-rdma-reply" not in {**missing.headers, **nowhere.headers, **part.headers}
    assert gateway.fabric.opened == 0


# -- decline --


async def declined(gateway: RdmaGateway, token: str, reason: str, **headers: str) -> None:
    await gateway.request("PUT", f"/{BUCKET}/k", b"the object")
    upload = await gateway.request("POST", f"/{BUCKET}/m?uploads=")
    upload_id = upload.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
    for name, dialect in HEADERS.items():
        token_header = {dialect: token, **headers}
        for path in (f"/{BUCKET}/new", f"/{BUCKET}/m?partNumber=1&uploadId={upload_id}"):
            put = await gateway.request("PUT", path, **token_header)
            assert (put.status, put.code, put.headers["x-amz-rdma-reply"]) == (501, "NotImplemented", "501")
        get = await gateway.request("GET", f"/{BUCKET}/k", **token_header)
        assert get.headers["x-amz-rdma-reply"] == "501"
        assert "x-amz-rdma-bytes-transferred" not in get.headers
        if name == "cuobj":
            assert (get.status, get.body) == (200, b"the object")
            ranged = await gateway.request("GET", f"/{BUCKET}/k", range="bytes=4-5", **token_header)
            assert (ranged.status, ranged.body) == (206, b"ob")
        else:
            assert get.status == 501
    assert await gateway.stored("new") is None
    listed = await gateway.request("GET", f"/{BUCKET}/m?uploadId={upload_id}")
    assert b"<PartNumber>" not in listed.body
    await gateway.request("DELETE", f"/{BUCKET}/m?uploadId={upload_id}")
    lines = await gateway.logged()
    refused = [line for line in lines if line["rdma_outcome"] == "declined"]
    assert {(line["rdma_dialect"], line["rdma_reason"]) for line in refused} == {(name, reason) for name in HEADERS}


async def test_declined_where_rdma_is_off(tmp_path: Path) -> None:
    gateway = await RdmaGateway(tmp_path).start(transports=())
    await declined(gateway, NOWHERE, "rdma_off")
    malformed = await gateway.request("PUT", f"/{BUCKET}/k", x_amz_rdma_token="x")
    assert (malformed.status, malformed.code) == (400, "InvalidArgument")
    await gateway.stop()


async def test_declined_without_the_tokens_transport(tmp_path: Path) -> None:
    gateway = await RdmaGateway(tmp_path).start(transports=(Transport.RC,))
    await declined(gateway, NOWHERE, "no_transport")
    await gateway.stop()


async def test_declined_for_an_unknown_agent(gateway: RdmaGateway) -> None:
    memory = gateway.expose(b"data")
    await declined(gateway, str(memory.token), "agent", x_amz_rdma_agent="something-new")
    moved(await gateway.get("k", gateway.expose(bytes(10)), x_amz_rdma_agent="cuobj"), 200, 10)


async def test_declined_without_a_session(gateway: RdmaGateway) -> None:
    memory = gateway.expose(bytes(10), Transport.SAMEHOST)
    gateway.memory.revoke(memory.token)
    await declined(gateway, str(memory.token), "no_session")


@pytest.mark.parametrize("reason", [Decline.NO_ROUTE, Decline.PEER_NOT_ALLOWED, Decline.NO_CONNECTION])
async def test_declined_when_it_comes_to_connecting(gateway: RdmaGateway, reason: Decline) -> None:
    memory = gateway.expose(bytes(10))
    for number in range(7):
        gateway.faults.add("open", number, Fault(lambda: Declined(reason)))
    await declined(gateway, str(memory.token), reason.value)


@pytest.mark.parametrize("size", [10, 3 * CHUNK])
async def test_a_lack_of_buffers_waits_then_declines(tmp_path: Path, size: int) -> None:
    gateway = await RdmaGateway(tmp_path).start(patience=0.05)
    data = pattern(size)
    await gateway.request("PUT", f"/{BUCKET}/k", data)
    held = [gateway.pool.try_acquire() for _ in range(gateway.pool.total)]
    memory = gateway.expose(bytes(size))
    put = await gateway.put("new", memory)
    assert (put.status, put.headers["x-amz-rdma-reply"]) == (501, "501")
    get = await gateway.get("k", memory)
    assert (get.status, get.body, get.headers["x-amz-rdma-reply"]) == (200, data, "501")
    for buffer in held:
        assert buffer is not None
        gateway.pool.release(buffer)
    moved(await gateway.get("k", memory), 200, size)
    assert memory.bytes == data
    await gateway.stop()


# -- failure --

FAILURES = {
    "a bad rkey": (RemoteAccess, 400, "InvalidArgument", "remote_access"),
    "connection lost": (lambda: PeerUnreachable(Failure.CONNECTION_LOST), 503, "ServiceUnavailable", "connection_lost"),
    "unreachable": (lambda: PeerUnreachable(Failure.UNREACHABLE), 503, "ServiceUnavailable", "unreachable"),
}


@pytest.mark.parametrize("step", ["open", "middle"])
@pytest.mark.parametrize(("error", "status", "code", "reason"), FAILURES.values(), ids=FAILURES)
async def test_a_failed_transfer_is_an_error_and_changes_nothing(
    gateway: RdmaGateway, error: type[Exception], status: int, code: str, reason: str, step: str
) -> None:
    before, data = pattern(1000, 3), pattern(5 * CHUNK)
    await gateway.request("PUT", f"/{BUCKET}/k", before)
    await gateway.request("PUT", f"/{BUCKET}/large", data)
    gateway.faults.add("open" if step == "open" else "read", 0 if step == "open" else 3, Fault(error))
    put = await gateway.put("k", gateway.expose(data))
    assert (put.status, put.code) == (status, code)
    assert put.headers.get("retry-after") == ("1" if status == 503 else None)
    assert await gateway.stored("k") == before
    gateway.faults.add("open" if step == "open" else "write", 1 if step == "open" else 3, Fault(error))
    target = gateway.expose(bytes(len(data)))
    get = await gateway.get("large", target)
    assert get.status == status
    assert (get.code or get.headers["x-amz-error-code"]) == code
    assert "x-amz-rdma-reply" not in {**get.headers, **put.headers}
    moved(await gateway.get("large", target), 200, len(data))
    assert target.bytes == data
    lines = await gateway.logged()
    assert [line["rdma_reason"] for line in lines if line["rdma_outcome"] == "failed"] == [reason] * 2


async def test_memory_that_nobody_registered(gateway: RdmaGateway) -> None:
    memory = gateway.expose(b"data")
    await gateway.put("k", memory)
    wrong = str(memory.token).replace(f"{memory.token.rkey:08x}", "00000bad")
    put = await gateway.request("PUT", f"/{BUCKET}/k2", x_amz_rdma_token=wrong)
    get = await gateway.request("GET", f"/{BUCKET}/k", x_amz_rdma_token=wrong)
    assert (put.status, put.code, get.status, get.code) == (400, "InvalidArgument", 400, "InvalidArgument")
    assert (memory.bytes, await gateway.stored("k2")) == (b"data", None)


@pytest.mark.parametrize("step", ["open", "read", "write"])
async def test_a_client_that_does_not_answer_costs_no_longer_than_the_time_limit(tmp_path: Path, step: str) -> None:
    gateway = await RdmaGateway(tmp_path).start(transfer_timeout=0.2)
    data = pattern(3 * CHUNK)
    await gateway.request("PUT", f"/{BUCKET}/k", data)
    gateway.faults.add(step, 0, Fault(hang=True, flush=0.05))  # type: ignore[arg-type]
    memory = gateway.expose(data)
    if step == "write":
        response = await gateway.get("k", memory)
        assert response.headers["x-amz-error-code"] == "ServiceUnavailable"
    else:
        response = await gateway.put("k", memory)
        assert response.code == "ServiceUnavailable"
    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert await gateway.stored("k") == data
    await gateway.stop()


@pytest.mark.parametrize("step", ["open", "read", "write"])
@pytest.mark.parametrize("by_reset", [True, False])
async def test_a_client_that_hangs_up_holds_nothing(tmp_path: Path, step: str, by_reset: bool) -> None:
    """A reset ends the transfer; a client that only stops sending may still wait for its answer, until time is up."""
    gateway = await RdmaGateway(tmp_path).start(transfer_timeout=60 if by_reset else 0.3)
    data = pattern(3 * CHUNK)
    await gateway.request("PUT", f"/{BUCKET}/k", data)
    gateway.faults.add(step, 0, Fault(hang=True))  # type: ignore[arg-type]
    memory = gateway.expose(data)

    def talk(wire: Wire) -> Response:
        wire.send(wire.signed("GET" if step == "write" else "PUT", f"/{BUCKET}/k", x_amz_rdma_token=str(memory.token)))
        while step not in gateway.faults.passed:
            time.sleep(0.001)
        if by_reset:
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return Response(0, {}, b"")

    await gateway.wire(talk)
    await gateway.settle()
    assert gateway.pool.idle == gateway.pool.total
    assert await gateway.stored("k") == data
    await gateway.stop()


@pytest.mark.parametrize("dialect", HEADERS)
async def test_the_log_tells_what_moved_and_who_asked(gateway: RdmaGateway, dialect: str) -> None:
    data = pattern(2 * CHUNK)
    for method, memory in (("PUT", gateway.expose(data)), ("GET", gateway.expose(bytes(len(data))))):
        await gateway.request(method, f"/{BUCKET}/k", **{HEADERS[dialect]: str(memory.token)})
    await gateway.stored("k")
    put, get, plain = await gateway.logged()
    for line in (put, get):
        assert (line["rdma"], line["rdma_dialect"]) == ("rc", dialect)
        assert (line["rdma_outcome"], line["rdma_reason"]) == ("moved", "")
        assert (line["rdma_device"], line["rdma_bytes"], line["bytes_in"], line["bytes_out"]) == (
            *("loopback0", len(data)),
            *(0, 0),
        )
        assert line["rdma_ms"] > 0
    assert (plain["rdma"], plain["rdma_dialect"], plain["rdma_bytes"], plain["bytes_out"]) == ("", "", 0, len(data))
