"""Bytes between two processes through the same-host transport."""

import ctypes
import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3verbs.rdma.client.samehost import SameHostTransport
from s3verbs.rdma.client.transport import Memory
from tests.robustness.samehost_gateway import Gateway, pattern

GUARD = 64 << 20
GUARD_BYTE = 0xA5


class Guarded:
    """A buffer in the middle of guard bytes."""

    def __init__(self, size: int, shift: int = 0, guard: int = GUARD) -> None:
        self.size = size
        self.guard = guard
        self._whole = mmap.mmap(-1, size + 2 * guard + 4096)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._whole))
        ctypes.memset(self._base, GUARD_BYTE, len(self._whole))
        self._start = guard + shift
        self.memory = Memory(self._base + self._start, size, self)

    @property
    def content(self) -> bytes:
        return self._whole[self._start : self._start + self.size]

    @content.setter
    def content(self, data: bytes) -> None:
        self._whole[self._start : self._start + self.size] = data

    def guards_are_whole(self) -> bool:
        view = memoryview(self._whole)
        before, after = view[: self._start], view[self._start + self.size :]
        return all(piece == bytes([GUARD_BYTE]) * len(piece) for piece in (before, after))


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
    buffer = Guarded(size + 10, 3)
    token = transport.register(buffer.memory).token(0, size + 10)
    answer = gateway.ask(do="sink", token=token, segments=[["hello"], [str(file), offset, size], ["world"]])
    assert answer == {"error": "", "moved": size + 10}
    assert buffer.content == b"hello" + content[offset : offset + size] + b"world"
    assert buffer.guards_are_whole()
