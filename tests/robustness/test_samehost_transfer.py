"""Bytes between two processes through the same-host transport."""

import ctypes
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3verbs.rdma.client.samehost import SameHostTransport
from tests.robustness.samehost_client import Guarded
from tests.robustness.samehost_gateway import Gateway, pattern

SMALL = 1 << 20
"""Bytes of guard where a stray write would be near."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path / "s.sock", workers=2) as started:
        yield started


@pytest.fixture
def transport(gateway: Gateway) -> Iterator[SameHostTransport]:
    opened = SameHostTransport("127.0.0.1", 0, str(gateway.path))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("size", "shift"), [(1, 0), (1, 4095), (2, 4095), (4096, 1), (65_537, 13), (1 << 20, 7), (64 << 20, 4091)]
)
def test_bytes_arrive_where_they_belong_and_nowhere_else(
    gateway: Gateway, transport: SameHostTransport, size: int, shift: int
) -> None:
    buffer = Guarded(size, shift)
    registration = transport.register(buffer.memory)
    token = registration.token(0, size)
    assert gateway.write(token, 5, size) == ""
    assert buffer.content == pattern(5, size)
    assert buffer.guards_are_whole()
    assert gateway.read(token, size, worker=1) == (hashlib.sha256(buffer.content).hexdigest(), "")
    assert registration.revoke()
    assert gateway.write(token, 6, size) == "RemoteAccess"
    assert buffer.content == pattern(5, size)


@pytest.mark.parametrize("size", [1, 4097, (1 << 20) + 1, 8 << 20, (64 << 20) - 5])
@pytest.mark.parametrize("offset", [0, 4095])
def test_a_payload_file_arrives_whole(
    gateway: Gateway, transport: SameHostTransport, tmp_path: Path, size: int, offset: int
) -> None:
    content = os.urandom(size + offset + 9)
    file = tmp_path / "payload"
    file.write_bytes(content)
    buffer = Guarded(size + 10, 3, guard=SMALL)
    token = transport.register(buffer.memory).token(0, size + 10)
    answer = gateway.ask(do="sink", token=token, segments=[["hello"], [str(file), offset, size], ["world"]])
    assert answer == {"error": "", "moved": size + 10}
    assert buffer.content == b"hello" + content[offset : offset + size] + b"world"
    assert buffer.guards_are_whole()


def test_a_range_of_a_region_is_reached_by_its_own_token(gateway: Gateway, transport: SameHostTransport) -> None:
    buffer = Guarded(10_000, guard=SMALL)
    registration = transport.register(buffer.memory)
    token = registration.token(1000, 500)
    assert gateway.write(token, 1, 100, offset=400) == ""
    assert buffer.content[1400:1500] == pattern(1, 100)
    assert gateway.write(token, 1, 101, offset=400) == "ValueError"
    assert buffer.content.count(0xA5) >= 9900
    assert buffer.guards_are_whole()


def test_a_payload_file_that_is_shorter_ends_the_transfer(
    gateway: Gateway, transport: SameHostTransport, tmp_path: Path
) -> None:
    buffer = Guarded(8 << 20, guard=SMALL)
    token = transport.register(buffer.memory).token(0, 8 << 20)
    for size in (0, 100, 4096, (8 << 20) - 1, (8 << 20) - 5000):
        file = tmp_path / "short"
        file.write_bytes(bytes(size))
        answer = gateway.ask(do="sink", token=token, segments=[[str(file), 0, 8 << 20]])
        assert (answer["error"], answer["moved"]) == ("EOFError", 0)
    assert gateway.ask(do="pid")["error"] == ""
    assert buffer.guards_are_whole()


def test_a_payload_file_that_is_cut_meanwhile_kills_no_worker(
    gateway: Gateway, transport: SameHostTransport, tmp_path: Path
) -> None:
    size = 32 << 20
    file = tmp_path / "payload"
    buffer = Guarded(size, guard=4096)
    token = transport.register(buffer.memory).token(0, size)
    pids = gateway.worker_pids()
    outcomes = set()
    for cut in range(20):
        file.write_bytes(bytes(size))
        gateway.send(do="sink", token=token, segments=[[str(file), 0, size]])
        for _ in range(cut * 20):
            file.stat()
        os.truncate(file, 1000 * cut)
        outcomes.add(gateway.receive()["error"])
    assert outcomes <= {"", "EOFError"}
    assert gateway.worker_pids() == pids


def test_more_bytes_than_the_token_allows_are_refused(
    gateway: Gateway, transport: SameHostTransport, tmp_path: Path
) -> None:
    file = tmp_path / "payload"
    file.write_bytes(bytes(5000))
    buffer = Guarded(4096, guard=SMALL)
    token = transport.register(buffer.memory).token(0, 4096)
    answer = gateway.ask(do="sink", token=token, segments=[[str(file), 0, 5000]])
    assert (answer["error"], answer["moved"]) == ("RemoteAccess", 0)
    answer = gateway.ask(do="sink", token=token, segments=[[str(file), 0, 4000], ["x" * 97]])
    assert (answer["error"], answer["moved"]) == ("RemoteAccess", 4000)
    assert buffer.guards_are_whole()


def test_a_file_that_cannot_be_mapped_is_read(gateway: Gateway, transport: SameHostTransport) -> None:
    # Files of sysfs can be read, but not mapped.
    file = Path("/sys/kernel/notes")
    content = file.read_bytes()
    buffer = Guarded(len(content), guard=SMALL)
    token = transport.register(buffer.memory).token(0, buffer.size)
    answer = gateway.ask(do="sink", token=token, segments=[[str(file), 0, len(content)]])
    assert answer == {"error": "", "moved": len(content)}
    assert buffer.content == content


def test_memory_that_cannot_be_written_is_an_error_of_the_client(
    gateway: Gateway, transport: SameHostTransport, tmp_path: Path
) -> None:
    size = 3 << 20
    file = tmp_path / "payload"
    file.write_bytes(bytes(size))
    buffer = Guarded(size, guard=SMALL)
    token = transport.register(buffer.memory).token(0, size)
    protect(buffer.address - buffer.address % 4096 + (1 << 20), 4096, 1)
    assert gateway.write(token, 1, size) == "RemoteAccess"
    assert gateway.ask(do="sink", token=token, segments=[[str(file), 0, size]])["error"] == "RemoteAccess"
    assert gateway.read(token, size)[1] == ""
    assert buffer.guards_are_whole()


def protect(address: int, length: int, protection: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), protection) == 0
