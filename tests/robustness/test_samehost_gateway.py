"""The same-host transport through a running server, as the suite in the virtual machine does it over verbs: large
objects, many clients, clients and servers that are killed, and what is held afterwards."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import s3verbs
from s3verbs.rdma.client.errors import ClientError, S3Error
from tests.integration.endpoint import ACCESS_KEY, BUCKET, ROOT, SECRET_KEY, Endpoint, run

MIB = 1 << 20

PRELUDE = f"""
import os, sys, threading, hashlib, s3verbs
client = s3verbs.Client(sys.argv[1], access_key={ACCESS_KEY!r}, secret_key={SECRET_KEY!r}, transport="samehost",
                        fallback=False)
"""


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with Endpoint(tmp_path / "data", workers=2) as running:
        yield running
    checked = run("admin", "check", "--data", str(tmp_path / "data"), "--read-payloads", timeout=120)
    assert checked.returncode == 0, checked.stdout


def client(endpoint: Endpoint) -> s3verbs.Client:
    url = f"http://127.0.0.1:{endpoint.port}"
    return s3verbs.Client(url, access_key=ACCESS_KEY, secret_key=SECRET_KEY, transport="samehost", fallback=False)


def start(endpoint: Endpoint, script: str, *arguments: str) -> subprocess.Popen[str]:
    """A client process of its own; `client` is ready in its script."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, f"http://127.0.0.1:{endpoint.port}", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )


def eventually(check: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def metric(endpoint: Endpoint, name: str) -> float:
    page = urllib.request.urlopen(f"http://127.0.0.1:{endpoint.metrics_port}/metrics").read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


def warm_up(endpoint: Endpoint) -> None:
    """Until both workers have opened what they keep: files of metrics, threads."""
    for _ in range(12):
        with client(endpoint) as s3, s3.register(bytearray(100_000)) as region:
            s3.put_from(BUCKET, "warm", region)
            s3.get_into(BUCKET, "warm", region)


def descriptors(endpoint: Endpoint) -> list[int]:
    pids = [endpoint.process.pid, *endpoint.worker_pids]
    return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]


def test_a_quarter_of_a_gibibyte_there_and_back(endpoint: Endpoint) -> None:
    size, guard = 256 * MIB, 64 * MIB
    memory = bytearray(guard + size + guard)
    block = hashlib.shake_128(b"large").digest(MIB)
    view = memoryview(memory)
    for at in range(0, size, MIB):
        view[guard + at : guard + at + MIB] = block
        view[guard + at : guard + at + 8] = at.to_bytes(8, "big")
    sent = hashlib.sha256(view[guard : guard + size]).digest()
    with client(endpoint) as s3, s3.register(view) as whole:
        region = whole[guard : guard + size]
        assert s3.put_from(BUCKET, "large", region).transport == "samehost"
        view[guard : guard + size] = bytes(size)
        assert s3.get_into(BUCKET, "large", region).size == size
    assert hashlib.sha256(view[guard : guard + size]).digest() == sent
    assert memory[:guard] == bytes(guard) == memory[guard + size :]


MANY = """
def both_ways(number):
    size = 32768 * (number % 9) + number + 1
    data = hashlib.shake_128(b"%s %d" % (sys.argv[2].encode(), number)).digest(size)
    whole = bytearray(b"\\xa5" * 4096 + data + b"\\xa5" * 4096)
    with client.register(whole) as registered:
        region = registered[4096 : 4096 + size]
        client.put_from("test-bucket", f"many/{sys.argv[2]}/{number}", region)
        whole[4096 : 4096 + size] = bytes(size)
        got = client.get_into("test-bucket", f"many/{sys.argv[2]}/{number}", region)
        assert got.transport == "samehost"
    assert whole == b"\\xa5" * 4096 + data + b"\\xa5" * 4096

failed = []
def work(slot):
    try:
        for number in range(slot, 48, 8):
            both_ways(number)
    except BaseException as error:
        failed.append(error)
        raise

threads = [threading.Thread(target=work, args=(slot,)) for slot in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
client.close()
print("failed" if failed else "done")
"""


def test_16_clients_with_8_requests_in_flight(endpoint: Endpoint) -> None:
    clients = [start(endpoint, MANY, str(number)) for number in range(16)]
    outputs = [each.communicate(timeout=200)[0] for each in clients]
    assert outputs == ["done\n"] * 16
    assert eventually(lambda: metric(endpoint, "s3verbs_rdma_pool_used_bytes") == 0)
    assert metric(endpoint, "s3verbs_rdma_failures_total") == 0


@pytest.mark.parametrize("work", ["get_into", "put_from"])
def test_clients_that_are_killed_in_the_middle(endpoint: Endpoint, work: str) -> None:
    """At different moments; the object is the old one or a new one, whole, and nothing stays held."""
    warm_up(endpoint)
    before = bytes(64 * MIB)
    script = f"""
region = client.register(bytearray(sys.argv[2].encode() * (64 << 20)))
print("ready", flush=True)
while True:
    client.{work}("test-bucket", "k", region)
"""
    with client(endpoint) as s3, s3.register(bytearray(before)) as region:
        s3.put_from(BUCKET, "k", region)
        held = descriptors(endpoint)
        for number in range(8):
            victim = start(endpoint, script, str(number))
            assert victim.stdout is not None
            assert victim.stdout.readline() == "ready\n"
            time.sleep(0.02 + 0.013 * number)
            victim.kill()
            victim.communicate()
            buffer = bytearray(64 * MIB)
            with s3.register(buffer) as back:
                assert s3.get_into(BUCKET, "k", back).size == 64 * MIB
            assert len(set(buffer)) == 1, "a mixture of two objects"
        assert eventually(lambda: metric(endpoint, "s3verbs_rdma_pool_used_bytes") == 0)
        assert eventually(lambda: all(now <= was + 8 for now, was in zip(descriptors(endpoint), held, strict=True)))


def test_200_clients_that_come_and_go_leave_nothing_behind(endpoint: Endpoint) -> None:
    warm_up(endpoint)
    held = descriptors(endpoint)
    for _ in range(200):
        with client(endpoint) as s3, s3.register(bytearray(4096)) as region:
            assert s3.get_into(BUCKET, "warm", region[:4096], (0, 4096)).transport == "samehost"
    assert eventually(lambda: all(now <= was + 4 for now, was in zip(descriptors(endpoint), held, strict=True)))
    assert eventually(lambda: metric(endpoint, "s3verbs_rdma_pool_used_bytes") == 0)


def test_a_worker_that_is_killed_in_the_middle(endpoint: Endpoint) -> None:
    """The server goes on with another worker; the client is told, and its memory is its own again."""
    buffer = bytearray(b"x" * (128 * MIB))
    with client(endpoint) as s3, s3.register(buffer) as region:
        s3.put_from(BUCKET, "k", region)
        for number in range(4):
            for pid in endpoint.worker_pids:
                os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while True:
                try:
                    assert s3.get_into(BUCKET, "k", region, timeout=10).size == len(buffer), number
                    break
                except ClientError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
    assert buffer == b"x" * (128 * MIB)


def test_a_checksum_that_does_not_fit_stores_nothing(endpoint: Endpoint) -> None:
    with client(endpoint) as s3, s3.register(bytearray(b"a" * (3 * MIB))) as region:
        s3.put_from(BUCKET, "k", region)
        with s3.register(bytearray(b"b" * (3 * MIB))) as other, pytest.raises(S3Error) as caught:
            s3.put_from(BUCKET, "k", other, checksum={"crc32": "AAAAAA=="})
        assert caught.value.code == "BadDigest"
        assert s3.get_into(BUCKET, "k", region).size == 3 * MIB
    assert endpoint.client().get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"a" * (3 * MIB)
