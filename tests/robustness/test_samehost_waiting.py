"""A client's memory that does not answer: pages whose faults wait for a handler (userfaultfd) that does nothing. Memory
on a file system that the client serves itself is the same to the gateway."""

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s3verbs.rdma.samehost import protocol
from tests.robustness.samehost_client import Child, Guarded, RawClient
from tests.robustness.samehost_gateway import Gateway, pattern

SYSCALL = {"x86_64": 323, "aarch64": 282}[platform.machine()]
UFFD_API, UFFDIO_API, UFFDIO_REGISTER = 0xAA, 0xC018AA3F, 0xC020AA00
MODE_MISSING = 1

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others cannot make the kernel's faults wait")


class WaitingMemory:
    """Nobody can read or write it until `let_go`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._descriptor = ctypes.CDLL(None, use_errno=True).syscall(SYSCALL, os.O_CLOEXEC)
        assert self._descriptor >= 0, os.strerror(ctypes.get_errno())
        fcntl.ioctl(self._descriptor, UFFDIO_API, bytearray(struct.pack("QQQ", UFFD_API, 0, 0)))
        fcntl.ioctl(
            self._descriptor, UFFDIO_REGISTER, bytearray(struct.pack("QQQQ", self.address, size, MODE_MISSING, 0))
        )

    @property
    def content(self) -> bytes:
        return self._memory[:]

    def let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path / "s.sock", workers=2) as started:
        yield started


@pytest.fixture
def memory() -> Iterator[WaitingMemory]:
    made = WaitingMemory(1 << 20)
    yield made
    made.let_go()


def is_at_it(gateway: Gateway, worker: int = 0) -> bool:
    """Whether a thread of the worker is inside of the system call."""
    pid = gateway.ask(worker, do="pid")["pid"]
    return any("userfault" in (task / "wchan").read_text() for task in Path(f"/proc/{pid}/task").iterdir())


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_nobody_else_waits_for_it(gateway: Gateway, memory: WaitingMemory) -> None:
    buffer = Guarded(8192, guard=4096)
    with RawClient(gateway.path) as client, RawClient(gateway.path) as other:
        handle = client.register(memory.address, memory.size)
        gateway.send(do="write", token=client.token(memory.address, memory.size), seed=1, length=10_000, offset=5)
        other.register(buffer.address, 8192)
        eventually(lambda: is_at_it(gateway))
        # Neither the worker nor the parent.
        assert gateway.write(other.token(buffer.address, 8192), 2, 8192) == ""
        assert buffer.content == pattern(2, 8192)
        client.send(protocol.Unregister(9, handle))
        other.ask(protocol.Unregister(9, 1))
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(20)
        memory.let_go()
        assert client.receive() == protocol.Unregistered(9, handle)
        assert gateway.receive()["error"] == ""
        assert memory.content[5:10_005] == pattern(1, 10_000)


def test_the_end_of_the_session_waits_for_it_too(gateway: Gateway, memory: WaitingMemory) -> None:
    with RawClient(gateway.path) as client:
        client.register(memory.address, memory.size)
        gateway.send(do="read", token=client.token(memory.address, memory.size), length=10_000, offset=5)
        eventually(lambda: is_at_it(gateway))
        client.send(b"nonsense")
        assert isinstance(client.receive(), protocol.Refused)
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(20)
        memory.let_go()
        assert client.receive() == protocol.Ended(0)
        gateway.receive()


def test_the_death_of_the_client_ends_it(gateway: Gateway) -> None:
    def client(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        memory = WaitingMemory(1 << 20)
        with RawClient(gateway.path) as raw:
            raw.register(memory.address, memory.size)
            say(raw.token(memory.address, memory.size))
            wait()

    with Child(client) as child:
        token = child.hear()
        gateway.send(do="write", token=token, seed=1, length=10_000, offset=0)
        eventually(lambda: is_at_it(gateway))
        child.kill()
        gateway.receive()
        eventually(lambda: gateway.write(token, 1, 1) == "Declined")


def test_a_payload_file_for_it_waits_alone(gateway: Gateway, memory: WaitingMemory, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(pattern(3, memory.size))
    with RawClient(gateway.path) as client:
        handle = client.register(memory.address, memory.size)
        token = client.token(memory.address, memory.size)
        gateway.send(do="sink", token=token, segments=[[str(file), 0, memory.size]])
        eventually(lambda: is_at_it(gateway))
        client.send(protocol.Unregister(9, handle))
        memory.let_go()
        assert client.receive() == protocol.Unregistered(9, handle)
        # It was one system call, and had begun.
        assert gateway.receive() == {"error": "", "moved": memory.size}
        assert memory.content == pattern(3, memory.size)


def test_a_request_that_is_cancelled_waits_for_its_system_call(gateway: Gateway, memory: WaitingMemory) -> None:
    with RawClient(gateway.path) as client:
        client.register(memory.address, memory.size)
        gateway.send(do="cancel", token=client.token(memory.address, memory.size), seconds=0.1)
        eventually(lambda: is_at_it(gateway))
        gateway.workers[0].settimeout(0.5)
        with pytest.raises(TimeoutError):
            gateway.receive()
        gateway.workers[0].settimeout(60)
        memory.let_go()
        assert gateway.receive() == {"error": "", "cancelled": True}


def test_a_request_that_has_not_begun_is_called_off(gateway: Gateway, memory: WaitingMemory) -> None:
    with RawClient(gateway.path) as client:
        client.register(memory.address, memory.size)
        token = client.token(memory.address, memory.size)
        # As many as the worker has threads.
        for _ in range(4):
            gateway.send(do="read", token=token, length=10, offset=0)
        eventually(lambda: is_at_it(gateway))
        assert gateway.ask(do="cancel", token=token, seconds=0.3) == {"error": "", "cancelled": True}
        memory.let_go()
        assert [gateway.receive()["error"] for _ in range(4)] == [""] * 4
