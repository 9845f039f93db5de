"""The client library against the running server."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import s3verbs
from s3verbs.rdma.client.errors import (
    AccessDenied,
    ConnectFailed,
    ConnectionBroken,
    DeadlineExceeded,
    NotFound,
    NotModified,
    PreconditionFailed,
    S3Error,
)
from tests.integration.endpoint import ACCESS_KEY, BUCKET, ROOT, SECRET_KEY, Endpoint
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


SIZES = [1, 511, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (9 << 20) + 7]


@pytest.mark.parametrize("size", SIZES)
def test_same_host_moves_every_size_and_touches_nothing_else(endpoint: Endpoint, size: int) -> None:
    memory = Guarded(size)
    data = np.random.default_rng(size).integers(0, 256, size, dtype="u1").tobytes()
    memory.view[:] = data
    with client(endpoint, "samehost", fallback=False) as s3, s3.register(memory.view) as region:
        put = s3.put_from(BUCKET, f"size/{size}", region)
        assert (put.transport, put.size) == ("samehost", size)
        memory.view[:] = bytes(size)
        got = s3.get_into(BUCKET, f"size/{size}", region, verify_checksum=True)
        assert (got.transport, got.size, got.etag, got.verified) == ("samehost", size, put.etag, "crc64nvme")
        assert memory.content == data
        assert s3.counters().rdma_share == 1.0
        start, stop = size // 3, size // 3 + max(1, size // 2)
        memory.view[:] = bytes(size)
        part = s3.get_into(BUCKET, f"size/{size}", region[: stop - start], (start, stop))
        assert (part.transport, part.size) == ("samehost", min(stop, size) - start)
    assert memory.content == data[start:stop].ljust(size, b"\0")
    boto = endpoint.client()
    assert boto.get_object(Bucket=BUCKET, Key=f"size/{size}")["Body"].read() == data
    boto.close()


def test_same_host_with_large_guards(endpoint: Endpoint) -> None:
    """64 MiB around the buffer, as one registration, so that the gateway could write there."""
    guard, size = 64 << 20, 3 << 20
    memory = np.full(2 * guard + size, 0xA5, dtype="u1")
    with client(endpoint, "samehost", fallback=False) as s3, s3.register(memory) as whole:
        region = whole[guard : guard + size]
        memory[guard : guard + size] = np.arange(size) % 251
        s3.put_from(BUCKET, "guarded", region)
        memory[guard : guard + size] = 0
        assert s3.get_into(BUCKET, "guarded", region).size == size
    assert np.array_equal(memory[guard : guard + size], np.arange(size) % 251)
    assert (memory[:guard] == 0xA5).all()
    assert (memory[guard + size :] == 0xA5).all()


def test_same_host_is_found_by_itself(endpoint: Endpoint) -> None:
    with client(endpoint, "auto") as s3, s3.register(bytearray(10)) as region:
        assert (s3.transport, region.transport, s3.why_http) == ("samehost", "samehost", "")
        assert s3.put_from(BUCKET, "auto", region).transport == "samehost"


def test_same_host_errors_move_nothing(endpoint: Endpoint) -> None:
    memory = Guarded(100)
    with client(endpoint, "samehost", fallback=False) as s3, s3.register(memory.view) as region:
        s3.put_from(BUCKET, "before", region)
        with pytest.raises(S3Error, match="BadDigest"):
            s3.put_from(BUCKET, "before", region[:50], checksum={"crc32": "AAAAAA=="})
        memory.view[:] = b"x" * 100
        with pytest.raises(NotFound):
            s3.get_into(BUCKET, "missing", region)
        with pytest.raises(NotModified):
            s3.get_into(BUCKET, "before", region, if_none_match="*")
        with pytest.raises(PreconditionFailed):
            s3.put_from(BUCKET, "before", region, if_none_match="*")
        with pytest.raises(S3Error, match="InvalidArgument"):
            s3.get_into(BUCKET, "before", region[:99])
        assert memory.content == b"x" * 100
        assert s3.get_into(BUCKET, "before", region).size == 100
    assert memory.content == bytes(100)


def test_same_host_parts_are_one_object(endpoint: Endpoint) -> None:
    array = np.arange(3 << 20, dtype="<i4")
    with client(endpoint, "samehost", fallback=False, part_size=5 << 20, concurrency=3) as s3:
        put = s3.put_from(BUCKET, "same-host-parts", s3.register(array))
        assert (put.parts, put.transport) == (3, "samehost")
        target = np.zeros_like(array)
        got = s3.get_into(BUCKET, "same-host-parts", s3.register(target))
        assert (got.parts, got.transport) == (3, "samehost")
        assert np.array_equal(array, target)
        boto = endpoint.client()
        upload = boto.create_multipart_upload(Bucket=BUCKET, Key="mixed")["UploadId"]
        one = s3.put_part_from(BUCKET, "mixed", s3.register(b"a" * (5 << 20)), upload_id=upload, part_number=1)
        two = boto.upload_part(Bucket=BUCKET, Key="mixed", UploadId=upload, PartNumber=2, Body=b"b" * 10)
        parts = [{"PartNumber": 1, "ETag": one.etag}, {"PartNumber": 2, "ETag": two["ETag"]}]
        boto.complete_multipart_upload(Bucket=BUCKET, Key="mixed", UploadId=upload, MultipartUpload={"Parts": parts})
        boto.close()
        region = s3.register(bytearray((5 << 20) + 10))
        assert s3.get_into(BUCKET, "mixed", region[:10], part_number=2).transport == "samehost"


def test_same_host_from_many_threads_into_one_region(endpoint: Endpoint) -> None:
    rows, size = 32, 64 << 10
    source = np.random.default_rng(3).integers(0, 256, (rows, size), dtype="u1")
    target = np.zeros_like(source)
    with client(endpoint, "samehost", fallback=False) as s3:
        sending, filling = s3.register(source), s3.register(target)

        def both(row: int) -> None:
            part = slice(row * size, row * size + size)
            for _ in range(3):
                s3.put_from(BUCKET, f"thread/{row}", sending[part])
                s3.get_into(BUCKET, f"thread/{row}", filling[part])

        with ThreadPoolExecutor(16) as threads:
            list(threads.map(both, range(rows)))
        assert s3.counters().operations == {"samehost": 2 * 3 * rows}
    assert np.array_equal(source, target)


def test_same_host_goes_on_after_the_gateway_was_started_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Endpoint(tmp_path / "data", "--listen", f"127.0.0.1:{port}") as running, client(running, "auto") as s3:
        region = s3.register(bytearray(b"1234"))
        assert s3.put_from(BUCKET, "k", region).transport == "samehost"
        running.stop(signal.SIGKILL)
        with pytest.raises((ConnectFailed, ConnectionBroken)):
            s3.put_from(BUCKET, "k", region)
        running.start()
        deadline = time.monotonic() + 60
        while s3.get_into(BUCKET, "k", region).transport != "samehost":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not region.quarantined
        assert region.close()


def test_a_gateway_that_is_late_touches_nothing(endpoint: Endpoint) -> None:
    memory = Guarded(len(DATA))
    memory.view[:] = DATA
    with client(endpoint, "samehost") as s3, s3.register(memory.view) as region:
        s3.put_from(BUCKET, "late", region)
        memory.view[:] = bytes(len(DATA))
        workers = endpoint.worker_pids
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            # The idle connection's worker never reads the request, and goes on when the client has given up.
            with pytest.raises(DeadlineExceeded):
                s3.get_into(BUCKET, "late", region, timeout=2.0)
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while region.quarantined:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # The memory is ours; what those workers make of the old request is refused.
        memory.view[:] = b"\1" * len(DATA)
        with client(endpoint, "http") as other:
            for _ in range(20):
                assert other.get_into(BUCKET, "late", other.register(bytearray(len(DATA)))).size == len(DATA)
        assert memory.content == b"\1" * len(DATA)
        assert s3.get_into(BUCKET, "late", region).transport == "samehost"
    assert memory.content == DATA


def test_a_client_that_dies_in_the_middle_leaves_the_old_object(endpoint: Endpoint, tmp_path: Path) -> None:
    with client(endpoint, "samehost") as s3, s3.register(bytearray(b"old!")) as region:
        s3.put_from(BUCKET, "half", region)
        script = f"""
import os, threading, time, s3verbs
client = s3verbs.Client("http://127.0.0.1:{endpoint.port}", access_key={ACCESS_KEY!r}, secret_key={SECRET_KEY!r},
                        transport="samehost")
region = client.register(bytearray(256 << 20))
threading.Thread(target=lambda: client.put_from({BUCKET!r}, "half", region), daemon=True).start()
time.sleep(0.05)
os._exit(7)
"""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60).returncode == 7
        # Whole or not at all: the four bytes, or all that the other has put before it died.
        region = s3.register(bytearray(256 << 20))
        assert s3.get_into(BUCKET, "half", region).size in (4, 256 << 20)


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
