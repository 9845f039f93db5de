"""A client of the same-host socket that says what the test wants, and memory to offer it."""

import array
import ctypes
import mmap
import os
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

from s3verbs.rdma.client.transport import Memory
from s3verbs.rdma.samehost import protocol
from s3verbs.rdma.samehost.protocol import Message
from s3verbs.rdma.token import Token, Transport

GUARD = 64 << 20
GUARD_BYTE = 0xA5


class Guarded:
    """A buffer in the middle of guard bytes."""

    def __init__(self, size: int, shift: int = 0, guard: int = GUARD) -> None:
        self.size = size
        # Private: a forked process has memory of its own there.
        self._whole = mmap.mmap(-1, size + 2 * guard + 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._whole))
        ctypes.memset(self._base, GUARD_BYTE, len(self._whole))
        self._start = guard + shift
        self.address = self._base + self._start
        self.memory = Memory(self.address, size, self)

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

    def untouched(self) -> bool:
        return self.guards_are_whole() and self.content == bytes([GUARD_BYTE]) * self.size


class RawClient:
    """Use as a context manager."""

    def __init__(self, path: Path, *, handshake: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.id = b""
        self.descriptors: list[int] = []
        if handshake:
            challenge = self.ask(protocol.Hello(1))
            assert isinstance(challenge, protocol.Challenge), challenge
            session = self.ask(protocol.Proof(2, challenge.nonce))
            assert isinstance(session, protocol.Session), session
            self.id = session.id

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)

    def send(self, message: Message | bytes) -> None:
        self.socket.send(message if isinstance(message, bytes) else protocol.encode(message))

    def receive(self) -> Message | None:
        """None at the end."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self.socket, 4096, 4)
        except ConnectionResetError:
            return None
        self.descriptors += descriptors
        return protocol.decode(packet) if packet else None

    def ask(self, message: Message | bytes) -> Message | None:
        self.send(message)
        return self.receive()

    def register(self, address: int, length: int) -> int:
        answer = self.ask(protocol.Register(3, address, length))
        assert isinstance(answer, protocol.Registered), answer
        return answer.handle

    def token(self, address: int, size: int, id: bytes | None = None) -> str:
        return str(Token(address, size, transport=Transport.SAMEHOST, secret=id or self.id))

    def send_as(self, message: Message, pid: int, uid: int) -> None:
        """With credentials of one's choice; the kernel lets root do so."""
        credentials = struct.pack("iII", pid, uid, 0)
        self.socket.sendmsg([protocol.encode(message)], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])

    def send_with_descriptor(self, message: Message, descriptor: int) -> None:
        rights = array.array("i", [descriptor])
        self.socket.sendmsg([protocol.encode(message)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


class Child:
    """A forked process that runs `act(say, wait)`: `say` sends a text to the test, `wait` waits for its word."""

    def __init__(self, act: Callable[[Callable[[str], None], Callable[[], str]], None]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(30)
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self._ours.close()
                act(lambda text: theirs.sendall(text.encode()), lambda: theirs.recv(4096).decode())
                code = 0
            except BaseException:  # noqa: BLE001 it must not get into the test's own code
                traceback.print_exc()
            finally:
                os._exit(code)
        theirs.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._ours.close()

    def hear(self) -> str:
        return self._ours.recv(4096).decode()

    def tell(self, text: str = "go on") -> None:
        self._ours.sendall(text.encode())

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def ended(self) -> int:
        """Its exit code."""
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)
