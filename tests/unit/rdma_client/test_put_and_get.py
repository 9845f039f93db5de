"""The tables of the wire contract, sections 4 and 5, as a client must read them."""

import pytest

from s3verbs.rdma.client.errors import (
    AccessDenied,
    BadAnswer,
    BufferTooSmall,
    Declined,
    NotFound,
    NotModified,
    PreconditionFailed,
    RegionReadOnly,
    S3Error,
    ShortTransfer,
    TokenIgnored,
)
from s3verbs.rdma.token import parse
from tests.unit.rdma_client.scripted import (
    FakeTransport,
    Guarded,
    Request,
    ScriptedServer,
    Step,
    Store,
    answer,
    client,
    s3_error,
)

DATA = bytes(range(256)) * 40
DECLINED_PUT = s3_error(501, "NotImplemented", x_amz_rdma_reply="501")


def moved(count: int | str, status: int = 200, **headers: str) -> bytes:
    return answer(status, etag='"e"', x_amz_rdma_reply=str(status), x_amz_rdma_bytes_transferred=str(count), **headers)


def test_put_moves_the_regions_bytes_and_nothing_by_http(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport)
    server.script.append(store.put)
    with client(server, transport) as s3, s3.register(DATA) as region:
        result = s3.put_from("bucket", "key/ä b", region, metadata={"Colour": "red"}, content_type="a/b")
        assert (result.size, result.transport, result.etag, result.parts) == (len(DATA), "samehost", '"e"', 1)
        counters = s3.counters()
    assert store.data == DATA
    assert (counters.operations, counters.bytes, counters.rdma_share) == ({"samehost": 1}, {"samehost": len(DATA)}, 1.0)
    (request,) = server.requests
    assert request.target == "/bucket/key/%C3%A4%20b"
    assert request.headers["content-length"] == "0"
    assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    signed = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-rdma-token", "x-amz-content-sha256", "x-amz-meta-colour", "content-type"} <= set(signed)
    assert parse(request.token or "").size == len(DATA)


def test_get_fills_the_region_and_nothing_else(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport, DATA)
    server.script += [store.get, store.get]
    memory = Guarded(len(DATA) + 10)
    with client(server, transport) as s3, s3.register(memory.view) as region:
        result = s3.get_into("bucket", "key", region)
        assert (result.size, result.transport, result.status, result.verified) == (len(DATA), "samehost", 200, None)
        assert memory.content == DATA + bytes(10)
        part = s3.get_into("bucket", "key", region[4:9], (100, 105))
        assert (part.size, part.status) == (5, 206)
    assert memory.content == DATA[:4] + DATA[100:105] + DATA[9:] + bytes(10)
    assert server.requests[1].headers["range"] == "bytes=100-104"
    assert server.accepted == 1


def test_an_empty_object_goes_both_ways(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport, b"x")
    server.script += [store.put, store.get, store.get]
    memory = Guarded(10)
    with client(server, transport) as s3, s3.register(memory.view) as region:
        assert s3.put_from("bucket", "key", region[:0]).size == 0
        assert store.data == b""
        assert s3.get_into("bucket", "key", region[:0]).size == 0
        assert s3.get_into("bucket", "key", region).transport == "samehost"
    # A token cannot say 0 bytes.
    assert [request.token is None for request in server.requests] == [True, True, False]
    assert memory.content == bytes(10)


def test_a_declined_put_goes_over_http(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport)
    server.script += [DECLINED_PUT, store.put]
    with client(server, transport) as s3, s3.register(DATA) as region:
        assert s3.put_from("bucket", "key", region, metadata={"a": "b"}).transport == "http"
        counters = s3.counters()
        assert not region.quarantined
    assert store.data == DATA
    assert server.requests[1].token is None
    assert server.requests[1].headers["x-amz-meta-a"] == "b"
    assert (counters.fallbacks, counters.declines, counters.rdma_share) == (1, {"declined": 1}, 0.0)


@pytest.mark.parametrize("framing", ["length", "chunked", "until the end"])
def test_the_body_of_a_declined_get_is_the_object(
    server: ScriptedServer, transport: FakeTransport, framing: str
) -> None:
    if framing == "length":
        said = answer(200, DATA, x_amz_rdma_reply="501")
    elif framing == "chunked":
        chunks = b"".join(b"%x;e=1\r\n%s\r\n" % (len(part), part) for part in (DATA[:7], DATA[7:9000], DATA[9000:]))
        said = answer(200, x_amz_rdma_reply="501", content_length="", transfer_encoding="chunked")
        said += chunks + b"0\r\nx-trailer: 1\r\n\r\n"
    else:
        said = answer(200, x_amz_rdma_reply="501", content_length="") + DATA

    def step(request: Request) -> bytes | None:
        request.connection.sendall(said)
        return b"" if framing != "until the end" else None

    server.script += [step, moved(3)]
    memory = Guarded(len(DATA))
    with client(server, transport) as s3, s3.register(memory.view) as region:
        result = s3.get_into("bucket", "key", region)
        assert (result.size, result.transport) == (len(DATA), "http")
        assert memory.content == DATA
        assert s3.get_into("bucket", "key", region).size == 3
    assert server.accepted == (2 if framing == "until the end" else 1)


def test_a_get_that_is_declined_without_the_object_is_sent_again(
    server: ScriptedServer, transport: FakeTransport
) -> None:
    store = Store(transport, DATA)
    server.script += [DECLINED_PUT, store.get]
    memory = Guarded(len(DATA))
    with client(server, transport) as s3, s3.register(memory.view) as region:
        assert s3.get_into("bucket", "key", region).transport == "http"
    assert memory.content == DATA


@pytest.mark.parametrize("said", [DECLINED_PUT, answer(200, DATA, x_amz_rdma_reply="501"), answer(200, DATA)])
def test_without_fallback_a_decline_is_an_error(server: ScriptedServer, transport: FakeTransport, said: bytes) -> None:
    server.script.append(said)
    memory = Guarded(len(DATA))
    with client(server, transport, fallback=False) as s3, s3.register(memory.view) as region:
        with pytest.raises(Declined):
            s3.get_into("bucket", "key", region)
        assert s3.counters().failures == {"Declined": 1}
    assert memory.content == bytes(len(DATA))
    assert len(server.requests) == 1


def test_a_put_to_a_server_that_ignores_tokens_is_an_error_and_happens_once(
    server: ScriptedServer, transport: FakeTransport
) -> None:
    store = Store(transport)
    server.script += [answer(200, etag='"empty"'), store.put, answer(200, DATA), store.put, store.get, store.put]
    memory = bytearray(DATA)
    with client(server, transport) as s3, s3.register(memory) as region:
        with pytest.raises(TokenIgnored, match="stored an EMPTY object at bucket/key"):
            s3.put_from("bucket", "key", region)
        # No second object is lost to it.
        assert s3.put_from("bucket", "key", region).transport == "http"
        assert store.data == DATA
        assert s3.get_into("bucket", "key", region).transport == "http"
        assert s3.put_from("bucket", "key", region).transport == "http"
        assert s3.counters().declines == {"ignored": 4}
        # The server was upgraded: a GET notices.
        store.data = b"new"
        assert s3.get_into("bucket", "key", region).transport == "samehost"
        assert s3.put_from("bucket", "key", region).transport == "samehost"
    tokens = [request.token is not None for request in server.requests]
    assert tokens == [True, False, True, False, True, True]


def test_a_get_from_a_server_that_ignores_tokens_is_an_ordinary_one(
    server: ScriptedServer, transport: FakeTransport
) -> None:
    server.script.append(answer(206, DATA[:10], content_range="bytes 0-9/100"))
    memory = Guarded(20)
    with client(server, transport) as s3, s3.register(memory.view) as region:
        result = s3.get_into("bucket", "key", region, (0, 10))
        assert (result.size, result.transport, result.status) == (10, "http", 206)
    assert memory.content == DATA[:10] + bytes(10)


@pytest.mark.parametrize(
    ("said", "error", "code"),
    [
        (s3_error(404, "NoSuchKey"), NotFound, "NoSuchKey"),
        (s3_error(404, "NoSuchKey", x_amz_rdma_reply="501"), NotFound, "NoSuchKey"),
        (s3_error(403, "AccessDenied"), AccessDenied, "AccessDenied"),
        (s3_error(403, "AccessDenied", x_amz_rdma_reply="501"), AccessDenied, "AccessDenied"),
        (s3_error(501, "NotImplemented"), S3Error, "NotImplemented"),
        (s3_error(400, "InvalidArgument"), S3Error, "InvalidArgument"),
        (s3_error(409, "OperationAborted", x_amz_rdma_reply="200"), S3Error, "OperationAborted"),
        (answer(304), NotModified, "NotModified"),
        (answer(412), PreconditionFailed, "PreconditionFailed"),
        (answer(301, location="http://elsewhere/"), S3Error, ""),
        (answer(507, x_amz_error_code="InsufficientStorage"), S3Error, "InsufficientStorage"),
    ],
)
@pytest.mark.parametrize("verb", ["put", "get"])
def test_an_s3_error_is_never_a_decline(
    server: ScriptedServer, transport: FakeTransport, verb: str, said: bytes, error: type[S3Error], code: str
) -> None:
    server.script.append(said)
    with client(server, transport) as s3, s3.register(bytearray(100)) as region:
        with pytest.raises(error) as raised:
            (s3.put_from if verb == "put" else s3.get_into)("bucket", "key", region)
        assert raised.value.code == code
        assert raised.value.request_id == "R1"
        assert not region.quarantined
    assert transport.revokes == 1
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (moved(99), ShortTransfer),
        (moved(101), ShortTransfer),
        (moved(""), BadAnswer),
        (moved("-1"), BadAnswer),
        (moved("1e2"), BadAnswer),
        (moved("9" * 30), BadAnswer),
        (answer(200, x_amz_rdma_reply="200"), BadAnswer),
        (answer(200, x_amz_rdma_reply="501"), BadAnswer),
        (answer(200, x_amz_rdma_reply="yes", x_amz_rdma_bytes_transferred="100"), BadAnswer),
        (answer(200, x_amz_rdma_reply="500", x_amz_rdma_bytes_transferred="100"), BadAnswer),
    ],
)
def test_a_put_counts_only_when_every_byte_was_moved(
    server: ScriptedServer, transport: FakeTransport, said: bytes, error: type[Exception]
) -> None:
    server.script.append(said)
    with client(server, transport) as s3, s3.register(bytearray(100)) as region, pytest.raises(error):
        s3.put_from("bucket", "key", region)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (moved(101), ShortTransfer),
        (moved(9, 206, content_range="bytes 0-9/100"), ShortTransfer),
        (moved(10, 206, content_range="bytes 9-0/100"), BadAnswer),
        (moved(10, 206, content_range="pages 0-9/100"), BadAnswer),
        (moved(10), BadAnswer),
        (answer(206, b"body", x_amz_rdma_reply="206", x_amz_rdma_bytes_transferred="4"), BadAnswer),
        (answer(206, x_amz_rdma_reply="206"), BadAnswer),
        (answer(206, DATA[:9], content_range="bytes 0-9/100"), BadAnswer),
        (answer(206, DATA[:99], content_range="bytes 0-98/100", x_amz_rdma_reply="501") + b"garbage", None),
        (answer(206, DATA[:101], content_range="bytes 0-100/200"), BufferTooSmall),
        (answer(200, DATA[:10]), BadAnswer),
    ],
)
def test_a_get_counts_only_when_it_is_what_was_asked_for(
    server: ScriptedServer, transport: FakeTransport, said: bytes, error: type[Exception] | None
) -> None:
    memory = Guarded(100)
    server.script += [said, moved(1, 206, content_range="bytes 0-0/9")]
    with client(server, transport) as s3, s3.register(memory.view) as region:
        if error is None:
            assert s3.get_into("bucket", "key", region, (0, 10)).size == 99
            assert s3.get_into("bucket", "key", region, (0, 10)).size == 1
            assert server.accepted == 2
        else:
            with pytest.raises(error):
                s3.get_into("bucket", "key", region, (0, 10))
    assert len(memory.content) == 100


def test_a_body_without_length_that_is_larger_than_the_region_is_an_error(
    server: ScriptedServer, transport: FakeTransport
) -> None:
    server.script.append(
        lambda request: request.connection.sendall(answer(200, content_length="") + DATA)  # type: ignore[func-returns-value]
    )
    memory = Guarded(100)
    with client(server, transport) as s3, s3.register(memory.view) as region, pytest.raises(BufferTooSmall):
        s3.get_into("bucket", "key", region)
    assert memory.content == DATA[:100]


def test_conditions_and_parts_are_headers_and_parameters(server: ScriptedServer, transport: FakeTransport) -> None:
    server.script += [moved(5), moved(5), moved(5)]
    with client(server, transport) as s3, s3.register(bytearray(5)) as region:
        s3.put_from("b", "k", region, if_none_match="*", headers={"Cache-Control": "no-store"})
        s3.get_into("b", "k", region, if_match='"e"', part_number=3, version_id="v/1")
        s3.put_part_from("b", "k", region, upload_id="u+1", part_number=7)
    first, second, third = server.requests
    assert (first.headers["if-none-match"], first.headers["cache-control"]) == ("*", "no-store")
    assert (second.headers["if-match"], second.target) == ('"e"', "/b/k?partNumber=3&versionId=v%2F1")
    assert third.target == "/b/k?partNumber=7&uploadId=u%2B1"


def test_a_read_only_buffer_can_only_be_put_from(server: ScriptedServer, transport: FakeTransport) -> None:
    with client(server, transport) as s3, s3.register(b"constant") as region, pytest.raises(RegionReadOnly):
        s3.get_into("bucket", "key", region)
    assert not server.requests


@pytest.mark.parametrize("algorithm", ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"])
def test_a_checksum_goes_with_a_put_and_is_compared_after_a_get(
    server: ScriptedServer, transport: FakeTransport, algorithm: str
) -> None:
    store = Store(transport)
    name = f"x-amz-checksum-{algorithm}"

    def with_checksum(value: str) -> Step:
        def get(request: Request) -> bytes:
            assert request.headers["x-amz-checksum-mode"] == "ENABLED"
            return store.get(request).replace(b"\r\n\r\n", f"\r\n{name}: {value}\r\n\r\n".encode())

        return get

    server.script.append(store.put)
    with client(server, transport) as s3, s3.register(bytearray(DATA)) as region:
        s3.put_from("bucket", "key", region, checksum=algorithm)
        sent = server.requests[0].headers[name]
        assert set(sent) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
        server.script += [with_checksum(sent), with_checksum("AAAA"), with_checksum("AAAA-2")]
        assert s3.get_into("bucket", "key", region, verify_checksum=True).verified == algorithm
        from s3verbs.rdma.client.errors import ChecksumMismatch

        with pytest.raises(ChecksumMismatch):
            s3.get_into("bucket", "key", region, verify_checksum=True)
        # The checksum of parts' checksums cannot be compared.
        assert s3.get_into("bucket", "key", region, verify_checksum=True).verified is None


def test_checksums_that_the_caller_knows_are_sent_as_they_are(server: ScriptedServer, transport: FakeTransport) -> None:
    server.script.append(moved(5))
    with client(server, transport) as s3, s3.register(b"12345") as region:
        s3.put_from("b", "k", region, checksum={"crc64nvme": "c2l4dGVlbiE="})
        with pytest.raises(ValueError, match="md5"):
            s3.put_from("b", "k", region, checksum={"md5": "x"})
        with pytest.raises(ValueError, match="md4"):
            s3.put_from("b", "k", region, checksum="md4")
    assert server.requests[0].headers["x-amz-checksum-crc64nvme"] == "c2l4dGVlbiE="


def test_a_region_of_another_client_is_refused(server: ScriptedServer, transport: FakeTransport) -> None:
    with client(server, transport) as one, client(server, FakeTransport()) as other:
        with pytest.raises(ValueError, match="another client"):
            one.put_from("b", "k", other.register(b"1"))
        with pytest.raises(ValueError, match="not empty"):
            one.put_from("b", "", one.register(b"1"))
        with pytest.raises(ValueError, match="positive"):
            one.put_from("b", "k", one.register(b"1"), timeout=0)
