"""The client library against the running server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import s3verbs
from s3verbs.rdma.client.errors import AccessDenied, ConnectFailed, NotFound, PreconditionFailed, S3Error
from tests.integration.endpoint import ACCESS_KEY, BUCKET, SECRET_KEY, Endpoint
from tests.unit.rdma_client.scripted import FakeTransport, Guarded

DATA = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with Endpoint(tmp_path_factory.mktemp("server") / "data", workers=2) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


def client(endpoint: Endpoint, transport: Any, **options: Any) -> s3verbs.Client:
    options = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, **options}
    return s3verbs.Client(f"http://127.0.0.1:{endpoint.port}", transport=transport, **options)


def test_a_token_of_no_session_is_declined_and_the_bytes_go_over_http(endpoint: Endpoint) -> None:
    """The fake transport's session is nobody's: the real server declines, and nothing of the fallback is a stand-in."""
    transport = FakeTransport()
    memory = Guarded(len(DATA))
    memory.view[:] = DATA
    with client(endpoint, transport) as s3, s3.register(memory.view) as region:
        put = s3.put_from(BUCKET, "declined", region, checksum="crc64nvme", metadata={"a": "b"})
        assert put.transport == "http"
        memory.view[:] = bytes(len(DATA))
        got = s3.get_into(BUCKET, "declined", region, verify_checksum=True)
        assert (got.transport, got.size, got.etag, got.verified) == ("http", len(DATA), put.etag, "crc64nvme")
        assert got.headers["x-amz-meta-a"] == "b"
        assert memory.content == DATA
        assert s3.get_into(BUCKET, "declined", region, (7, 19)).size == 12
        counters = s3.counters()
    assert memory.content[:12] == DATA[7:19]
    assert counters.declines == {"declined": 3}
    assert (counters.fallbacks, counters.rdma_share, counters.failures) == (3, 0.0, {})
    assert not transport.valid
    boto = endpoint.client()
    assert boto.get_object(Bucket=BUCKET, Key="declined")["Body"].read() == DATA
    boto.close()


def test_errors_are_errors_with_a_token_too(endpoint: Endpoint) -> None:
    with client(endpoint, FakeTransport()) as s3, s3.register(bytearray(100)) as region:
        with pytest.raises(NotFound, match="NoSuchKey"):
            s3.get_into(BUCKET, "missing", region)
        with pytest.raises(NotFound, match="NoSuchBucket"):
            s3.put_from("no-such-bucket", "k", region)
        s3.put_from(BUCKET, "there", region)
        with pytest.raises(PreconditionFailed):
            s3.put_from(BUCKET, "there", region, if_none_match="*")
        with pytest.raises(PreconditionFailed):
            s3.get_into(BUCKET, "there", region, if_match='"other"')
        with pytest.raises(S3Error, match="InvalidRange"):
            s3.get_into(BUCKET, "there", region, (1000, 1010))
    with client(endpoint, FakeTransport(), secret_key="wrong") as s3:
        region = s3.register(bytearray(100))
        with pytest.raises(AccessDenied, match="SignatureDoesNotMatch"):
            s3.get_into(BUCKET, "there", region)


@pytest.mark.parametrize("transport", ["http", "fake"])
def test_parts_ranges_and_empty_objects(endpoint: Endpoint, transport: str) -> None:
    array = np.arange(3 << 20, dtype="<i4")
    with client(endpoint, FakeTransport() if transport == "fake" else "http", part_size=5 << 20) as s3:
        put = s3.put_from(BUCKET, "parts", s3.register(array), checksum="crc32")
        assert (put.parts, put.size) == (3, array.nbytes)
        target = np.zeros_like(array)
        assert s3.get_into(BUCKET, "parts", s3.register(target)).parts == 3
        assert np.array_equal(array, target)
        part = s3.register(bytearray(5 << 20))
        assert s3.get_into(BUCKET, "parts", part, part_number=3).size == array.nbytes - (10 << 20)
        assert s3.put_from(BUCKET, "empty", part[:0]).size == 0
        assert s3.get_into(BUCKET, "empty", part).size == 0


async def test_many_at_a_time_from_an_event_loop(endpoint: Endpoint) -> None:
    with client(endpoint, "http") as s3:
        array = np.random.default_rng(1).integers(0, 256, (64, 4096), dtype="u1")
        region = s3.register(array)
        rows = [region[start : start + 4096] for start in range(0, array.nbytes, 4096)]
        await asyncio.gather(*(s3.aput_from(BUCKET, f"row/{i}", row) for i, row in enumerate(rows)))
        target = np.zeros_like(array)
        rows = [s3.register(row) for row in target]
        await asyncio.gather(*(s3.aget_into(BUCKET, f"row/{i}", row) for i, row in enumerate(rows)))
    assert np.array_equal(array, target)


def test_a_server_that_is_killed_is_not_waited_for(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "data") as running, client(running, FakeTransport()) as s3:
        region = s3.register(bytearray(b"1234"))
        s3.put_from(BUCKET, "k", region)
        running.stop()
        with pytest.raises(ConnectFailed):
            s3.get_into(BUCKET, "k", region)
        running.start()
        # On a new port, as the tests' servers always are: a client of the old one stays without an answer.
        with client(running, "http") as again:
            assert again.get_into(BUCKET, "k", again.register(bytearray(4))).size == 4
