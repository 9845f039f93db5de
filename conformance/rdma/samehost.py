"""The same-host lane: a session over the server's UNIX socket. Source: docs/samehost-protocol.md.

Each message is one packet of a SOCK_SEQPACKET socket: magic, version, type, two reserved bytes, a serial that the
answer repeats, and a body that the type fixes; little-endian.
"""

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
from enum import IntEnum
from pathlib import Path

from conformance.rdma.expect import Failed
from conformance.rdma.lanes import LaneUnavailable
from conformance.rdma.memory import GUARD, Memory
from conformance.rdma.token import Token

_HEADER = struct.Struct("<4sBBHI")
_RANGE = struct.Struct("<QQ")
_HANDLE = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("iII")
_MOST = 600
"""Bytes of the longest message."""

_PATIENCE = 5.0
_PR_SET_PTRACER = 0x59616D61
_NOT_PERMITTED = 1
"""The refusal that a client can do something about: Yama's ptrace_scope."""


class _Kind(IntEnum):
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    SESSION = 4
    REGISTER = 5
    REGISTERED = 6
    UNREGISTER = 7
    UNREGISTERED = 8
    REFUSED = 9
    ENDED = 10


class _Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def _places(port: int, named: str) -> list[Path]:
    """Where a server's socket can be; the first that exists is taken."""
    named = named or os.environ.get("S3VERBS_SOCKET", "")
    if named:
        return [Path(named)]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folders = [f"{runtime}/s3verbs"] if runtime else []
    folders += ["/run/s3verbs", f"/tmp/s3verbs-{os.geteuid()}"]
    return [Path(folder) / f"{port}.sock" for folder in folders]


class Session:
    """One session of this process. Any thread."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, LaneUnavailable."""
        self._lock = threading.Lock()
        self._serial = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(_PATIENCE)
            self._socket.connect(str(path))
            peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self._supervisor, uid, _ = _CREDENTIALS.unpack(peer)
            if uid not in (0, os.geteuid()):
                raise LaneUnavailable(f"{path} is another user's (uid {uid})")
            nonce = self._ask(_Kind.HELLO, b"", _Kind.CHALLENGE)
            opened = self._ask(_Kind.PROOF, nonce, _Kind.SESSION)
        except _Refused as refusal:
            self._socket.close()
            raise LaneUnavailable(f"{path}: {refusal}") from None
        except BaseException:
            self._socket.close()
            raise
        self.suffix = f":cma1:{opened[:16].hex()}"

    def register(self, address: int, length: int) -> int:
        """A handle. Raises LaneUnavailable."""
        for last in (False, True):
            try:
                return int(_HANDLE.unpack(self._ask(_Kind.REGISTER, _RANGE.pack(address, length), _Kind.REGISTERED))[0])
            except _Refused as refusal:
                if last or refusal.code != _NOT_PERMITTED:
                    raise LaneUnavailable(str(refusal)) from None
                prctl = ctypes.CDLL(None, use_errno=True).prctl
                prctl(_PR_SET_PTRACER, ctypes.c_ulong(self._supervisor), 0, 0, 0)
        raise AssertionError

    def unregister(self, handle: int) -> None:
        """On return the server cannot reach the region any more."""
        self._ask(_Kind.UNREGISTER, _HANDLE.pack(handle), _Kind.UNREGISTERED)

    def end(self) -> None:
        """End the session, and wait until the server has seen it."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(_MOST):
                pass
        self._socket.close()

    def _ask(self, kind: _Kind, body: bytes, expected: _Kind) -> bytes:
        """The body of the answer. Raises _Refused, OSError; Failed when the server does not speak the protocol."""
        with self._lock:
            self._serial += 1
            self._socket.send(_HEADER.pack(b"S3SH", 1, kind, 0, self._serial) + body)
            packet, descriptors, _, _ = socket.recv_fds(self._socket, _MOST, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        if len(packet) < _HEADER.size:
            raise ConnectionError("the server has ended the session")
        magic, version, answered, _, serial = _HEADER.unpack_from(packet)
        rest = packet[_HEADER.size :]
        if answered == _Kind.REFUSED:
            raise _Refused(struct.unpack_from("<H", rest)[0], rest[2:].decode(errors="replace"))
        if (magic, version, answered, serial) != (b"S3SH", 1, expected, self._serial):
            raise Failed(f"{expected.name} from the UNIX socket", packet[:64].hex())
        return rest


class _Exposure:
    def __init__(self, session: Session, memory: Memory) -> None:
        self._session = session
        self._address = memory.address
        self._handle: int | None = session.register(memory.address, memory.size)

    def token(self, offset: int, size: int) -> str:
        return str(Token(self._address + offset, size, suffix=self._session.suffix))

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._session.unregister(handle)


class SameHostLane:
    """Implements Lane: this process's memory, registered with a server of this machine."""

    name = "samehost"

    def __init__(self, host: str, port: int, socket_path: str = "") -> None:
        """Raises LaneUnavailable."""
        places = _places(port, socket_path)
        found = next((place for place in places if place.exists()), None)
        if found is None:
            raise LaneUnavailable(f"no UNIX socket for port {port} ({', '.join(map(str, places))}); see --socket")
        self._path = found
        self._host, self._port = host, port
        self._session = self._open()
        self._empty = self._open()
        """Another session, without a region."""

    def _open(self) -> Session:
        try:
            return Session(self._path)
        except OSError as error:
            raise LaneUnavailable(f"{self._path}: {error}") from None

    def expose(self, memory: Memory) -> _Exposure:
        return _Exposure(self._session, memory)

    def wrong_tokens(self, memory: Memory, exposure: object) -> dict[str, str]:
        start, size, suffix = memory.address, memory.size, self._session.suffix
        ranges = {
            "ends one byte past the region": (start + 1, size),
            "begins one byte before the region": (start - 1, size),
            "before the region": (start - GUARD, size),
            "behind the region": (start + size, size),
            "the region and far beyond": (start, 0xFFFFFFFF),
            "address 0": (0, size),
            "the last addresses": ((1 << 64) - size, size),
        }
        tokens = {name: str(Token(address, length, suffix=suffix)) for name, (address, length) in ranges.items()}
        tokens["a region of another session"] = str(Token(start, size, suffix=self._empty.suffix))
        return tokens

    def dead_tokens(self) -> dict[str, tuple[str, int]]:
        memory = Memory(1 << 20)
        session = self._open()
        session.register(memory.address, memory.size)
        ended = str(Token(memory.address, memory.size, suffix=session.suffix))
        session.end()
        memory.close()
        return {"an ended session": (ended, 501), "a process that was killed": (self._killed(), 501)}

    def _killed(self) -> str:
        """The token of a process that is dead."""
        program = f"from conformance.rdma.samehost import hold; hold({str(self._path)!r})"
        root = Path(__file__).resolve().parents[2]
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root) as process:
            assert process.stdout is not None
            token = process.stdout.readline().strip()
            process.kill()
        if not token:
            raise ConnectionError("a second process got no session")
        return token

    def close(self) -> None:
        self._session.end()
        self._empty.end()


def hold(path: str) -> None:
    """Open a session, expose memory, print its token, and wait to be killed."""
    memory = Memory(1 << 20)
    exposure = _Exposure(Session(Path(path)), memory)
    print(exposure.token(0, memory.size), flush=True)
    threading.Event().wait()
