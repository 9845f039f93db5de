"""Objects in parts: multipart uploads and ranges, against a scripted server that keeps them."""

import re
import threading
import time

import pytest

from s3verbs.rdma.client.errors import BadAnswer, BufferTooSmall, NotFound, PreconditionFailed, S3Error
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

DATA = bytes(range(251)) * 41
PART = 1000


class Uploads:
    """Multipart uploads over the fake transport; `decline` parts with these numbers, `fail` those."""

    def __init__(self, transport: FakeTransport) -> None:
        self.transport = transport
        self.parts: dict[int, bytes] = {}
        self.object: bytes | None = None
        self.headers: dict[str, dict[str, str]] = {}
        self.aborted = False
        self.decline: set[int] = set()
        self.fail: set[int] = set()
        self.complete_says: bytes | None = None
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> bytes:
        if request.target.endswith("?uploads="):
            self.headers["begin"] = request.headers
            return answer(200, b"<R><UploadId>u&amp;1</UploadId></R>")
        assert "uploadId=u%261" in request.target
        if request.method == "DELETE":
            self.aborted = True
            return answer(204)
        if request.method == "POST":
            return self._complete(request)
        number = int(re.search(r"partNumber=(\d+)", request.target)[1])  # type: ignore[index]
        if number in self.fail:
            return s3_error(400, "BadDigest")
        if self.fail and number > max(self.fail):
            time.sleep(0.02)
        if request.token is not None and number in self.decline:
            return s3_error(501, "NotImplemented", x_amz_rdma_reply="501")
        store = Store(self.transport)
        said = store.put(request).replace(b'"e"', f'"e{number}"'.encode())
        with self._lock:
            self.parts[number] = store.data
        checksum = request.headers.get("x-amz-checksum-crc32")
        return said.replace(b"\r\n\r\n", f"\r\nx-amz-checksum-crc32: {checksum}\r\n\r\n".encode()) if checksum else said

    def _complete(self, request: Request) -> bytes:
        self.headers["complete"] = request.headers
        self.document = request.body.decode()
        if self.complete_says is not None:
            return self.complete_says
        numbers = [int(number) for number in re.findall(r"<PartNumber>(\d+)<", self.document)]
        assert re.findall(r"<ETag>(.*?)</ETag>", self.document) == [f'"e{number}"' for number in numbers]
        self.object = b"".join(self.parts[number] for number in numbers)
        return answer(200, b"\n<R><ETag>&quot;whole-11&quot;</ETag></R>", x_amz_version_id="v")


def test_a_large_region_becomes_a_multipart_upload(server: ScriptedServer, transport: FakeTransport) -> None:
    uploads = Uploads(transport)
    server.script += [uploads] * 20
    with client(server, transport, part_size=PART, concurrency=3) as s3, s3.register(DATA) as region:
        result = s3.put_from("b", "k", region, metadata={"a": "b"}, if_none_match="*", checksum="crc32")
        counters = s3.counters()
    assert uploads.object == DATA
    assert (result.etag, result.size, result.parts, result.transport) == ('"whole-11"', len(DATA), 11, "samehost")
    assert result.version_id == "v"
    assert counters.operations == {"samehost": 11}
    assert uploads.headers["begin"]["x-amz-meta-a"] == "b"
    assert uploads.headers["begin"]["x-amz-checksum-algorithm"] == "CRC32"
    assert "if-none-match" not in uploads.headers["begin"]
    assert uploads.headers["complete"]["if-none-match"] == "*"
    assert uploads.document.count("<ChecksumCRC32>") == 11
    assert not uploads.aborted


def test_parts_may_be_declined_one_by_one(server: ScriptedServer, transport: FakeTransport) -> None:
    uploads = Uploads(transport)
    uploads.decline = {2, 5}
    server.script += [uploads] * 20
    with client(server, transport, part_size=PART) as s3, s3.register(DATA) as region:
        assert s3.put_from("b", "k", region).transport == "http+samehost"
        assert 0 < s3.counters().rdma_share < 1
    assert uploads.object == DATA


def test_a_failed_part_aborts_the_upload(server: ScriptedServer, transport: FakeTransport) -> None:
    uploads = Uploads(transport)
    uploads.fail = {4}
    server.script += [uploads] * 20
    with (
        client(server, transport, part_size=PART, concurrency=2) as s3,
        s3.register(DATA) as region,
        pytest.raises(S3Error, match="BadDigest"),
    ):
        s3.put_from("b", "k", region)
    assert uploads.aborted
    assert uploads.object is None
    assert len(uploads.parts) < 10


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (answer(200, b"<?xml?><Error><Code>InternalError</Code><Message>no</Message></Error>"), S3Error),
        (answer(200, b"<R/>"), BadAnswer),
        (s3_error(412, "PreconditionFailed"), PreconditionFailed),
    ],
)
def test_a_failed_completion_is_an_error_whatever_its_status(
    server: ScriptedServer, transport: FakeTransport, said: bytes, error: type[Exception]
) -> None:
    uploads = Uploads(transport)
    uploads.complete_says = said
    server.script += [uploads] * 20
    with client(server, transport, part_size=PART) as s3, s3.register(DATA) as region, pytest.raises(error):
        s3.put_from("b", "k", region)
    assert uploads.aborted


def test_an_upload_without_an_id_is_a_bad_answer(server: ScriptedServer, transport: FakeTransport) -> None:
    server.script.append(answer(200))
    with client(server, transport, part_size=PART) as s3, s3.register(DATA) as region, pytest.raises(BadAnswer):
        s3.put_from("b", "k", region)


def test_an_upload_has_no_checksum_that_is_known_before_nor_too_many_parts(
    server: ScriptedServer, transport: FakeTransport
) -> None:
    with client(server, transport, part_size=1) as s3:
        region = s3.register(bytes(10_001))
        with pytest.raises(ValueError, match="algorithm"):
            s3.put_from("b", "k", region, checksum={"crc32": "AAAAAA=="})
        with pytest.raises(ValueError, match="10000 parts"):
            s3.put_from("b", "k", region)
    assert not server.requests


@pytest.mark.parametrize(
    "selected", [None, (0, None), (7, None), (7, 4007), (0, len(DATA) + 5), (9000, None), "bytes=7-"]
)
@pytest.mark.parametrize("spare", [0, 5, 5000])
def test_a_large_region_is_filled_by_ranges(
    server: ScriptedServer, transport: FakeTransport, selected: tuple[int, int | None] | str | None, spare: int
) -> None:
    store = Store(transport, DATA)
    server.script += [store.get] * 20
    start, stop = (7, None) if selected == "bytes=7-" else selected or (0, None)  # type: ignore[misc]
    wanted = DATA[start:stop]
    memory = Guarded(max(len(wanted) + spare, PART + 1))
    with client(server, transport, part_size=PART, concurrency=3) as s3, s3.register(memory.view) as region:
        result = s3.get_into("b", "k", region, selected)
        assert result.size == len(wanted)
        assert result.parts == -(-len(wanted) // PART)
    assert memory.content[: len(wanted)] == wanted
    assert not any(memory.content[len(wanted) :])
    assert all(request.headers.get("if-match") == '"e"' for request in server.requests[1:])


def test_an_empty_object_has_no_ranges(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport, b"")
    server.script += [store.get] * 2
    with client(server, transport, part_size=PART) as s3, s3.register(bytearray(5000)) as region:
        assert s3.get_into("b", "k", region).size == 0
        server.script += [store.get]
        with pytest.raises(S3Error, match="InvalidRange"):
            s3.get_into("b", "k", region, (1, None))


def test_an_object_that_does_not_fit_is_noticed_after_its_first_range(
    server: ScriptedServer, transport: FakeTransport
) -> None:
    server.script += [Store(transport, DATA).get]
    memory = Guarded(5000)
    with (
        client(server, transport, part_size=PART) as s3,
        s3.register(memory.view) as region,
        pytest.raises(BufferTooSmall),
    ):
        s3.get_into("b", "k", region)
    assert memory.content[PART:] == bytes(4000)


def test_an_object_that_is_replaced_meanwhile_is_never_mixed(server: ScriptedServer, transport: FakeTransport) -> None:
    server.script += [Store(transport, DATA).get] + [s3_error(412, "PreconditionFailed")] * 10
    with (
        client(server, transport, part_size=PART) as s3,
        s3.register(bytearray(len(DATA))) as region,
        pytest.raises(PreconditionFailed),
    ):
        s3.get_into("b", "k", region)


def test_an_object_that_is_not_there_is_not_found(server: ScriptedServer, transport: FakeTransport) -> None:
    server.script += [s3_error(404, "NoSuchKey")]
    with (
        client(server, transport, part_size=PART) as s3,
        s3.register(bytearray(len(DATA))) as region,
        pytest.raises(NotFound),
    ):
        s3.get_into("b", "k", region)


def test_a_suffix_and_a_part_are_one_request(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport, DATA[:10])
    moved = {"x_amz_rdma_reply": "206", "x_amz_rdma_bytes_transferred": "5"}
    server.script += [answer(206, content_range="bytes 5-9/10", **moved), store.get]
    with client(server, transport, part_size=PART) as s3, s3.register(bytearray(5000)) as region:
        assert s3.get_into("b", "k", region, "bytes=-5").size == 5
        assert s3.get_into("b", "k", region, part_number=2).size == 10
    assert len(server.requests) == 2
