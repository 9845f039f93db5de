"""What a session's client may say and what it is answered; whom the service talks to.

The kernel puts the sender's pid and uid on every packet. After HELLO the service opens a pidfd of that pid and notes
who it is; then it sends a nonce. The PROOF comes with that pid after that, so the process behind the pidfd was alive
when it spoke, and is the speaker. From then on a packet of another pid is refused: the socket was inherited or passed
on. So is everything after an exec.
"""

import errno
import os
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field

from s3verbs.rdma.samehost import process_memory, protocol
from s3verbs.rdma.samehost.process_memory import Identity
from s3verbs.rdma.samehost.protocol import Message, Refusal
from s3verbs.rdma.samehost.table import SessionTable

SESSIONS_OF_A_PROCESS = 16

_CREDENTIALS = struct.Struct("iII")
ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS.size)
"""Room for the credentials and nothing else: descriptors that a client sends are dropped by the kernel."""


class Refuse(Exception):
    """The answer to a packet is a refusal."""

    def __init__(self, code: Refusal, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True, eq=False)
class Peer:
    """One connection. `slot` is its session's, or -1; `leaving`: ended, but a system call may still be running."""

    socket: socket.socket
    deadline: float
    uid: int = -1
    identity: Identity | None = None
    pidfd: int = -1
    nonce: bytes = b""
    slot: int = -1
    handles: dict[int, int] = field(default_factory=dict)
    unregistering: list[tuple[int, int, int]] = field(default_factory=list)
    """(serial, handle, row) of regions that are invalid but may not be quiet."""
    last_handle: int = 0
    leaving: bool = False
    closed: bool = False


class Conversation:
    """The answers. Single-threaded, and never waits."""

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._obstacle = process_memory.obstacle()
        self._sessions_of: Counter[int] = Counter()

    def answer(self, peer: Peer, message: Message, pid: int, uid: int) -> Message | None:
        """None: a region was made invalid, and the answer must wait until nothing is in flight for it.
        Raises Refuse."""
        if peer.identity is not None and (pid != peer.identity.pid or uid != peer.uid):
            raise Refuse(Refusal.IDENTITY, "another process opened this connection; open one of your own")
        match message:
            case protocol.Hello() if peer.identity is None:
                return self._hello(peer, message, pid, uid)
            case protocol.Proof() if peer.nonce and peer.slot < 0:
                return self._proof(peer, message)
            case protocol.Register() if peer.slot >= 0:
                return self._register(peer, message)
            case protocol.Unregister() if peer.slot >= 0:
                return self._unregister(peer, message)
        raise Refuse(Refusal.MALFORMED, f"{type(message).__name__} is out of turn")

    def _hello(self, peer: Peer, message: protocol.Hello, pid: int, uid: int) -> Message:
        if self._obstacle:
            raise Refuse(Refusal.UNAVAILABLE, self._obstacle)
        if pid <= 0:
            raise Refuse(
                Refusal.IDENTITY, "the gateway cannot see this process: they need a common pid namespace (hostPID)"
            )
        if self._sessions_of[pid] >= SESSIONS_OF_A_PROCESS:
            raise Refuse(Refusal.BUSY, f"a process can have {SESSIONS_OF_A_PROCESS} sessions")
        try:
            peer.pidfd = os.pidfd_open(pid)
            identity = process_memory.identify(pid)
        except OSError as error:
            raise Refuse(Refusal.IDENTITY, f"process {pid} cannot be looked at: {error.strerror}") from None
        peer.uid = uid
        peer.identity = identity
        self._sessions_of[pid] += 1
        peer.nonce = os.urandom(protocol.ID_BYTES)
        return protocol.Challenge(message.serial, peer.nonce)

    def _proof(self, peer: Peer, message: protocol.Proof) -> Message:
        assert peer.identity is not None
        # There is one try for each nonce, so it does not matter how long comparing takes.
        if message.nonce != peer.nonce:
            raise Refuse(Refusal.IDENTITY, "the proof is wrong")
        self._check_identity(peer)
        begun = self._table.begin(peer.identity, peer.uid)
        if begun is None:
            raise Refuse(Refusal.BUSY, f"the gateway has room for {self._table.sessions} sessions")
        peer.slot, id = begun
        return protocol.Session(message.serial, id, self._table.regions)

    def _register(self, peer: Peer, message: protocol.Register) -> Message:
        assert peer.identity is not None
        if not message.length or message.address + message.length > process_memory.USER_ADDRESSES:
            raise Refuse(Refusal.BAD_RANGE, "no process can have that memory")
        pid = peer.identity.pid
        try:
            process_memory.check_access(pid)
        except PermissionError:
            raise Refuse(Refusal.NOT_PERMITTED, process_memory.why_not(pid, peer.uid)) from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise Refuse(Refusal.FULL, "the gateway is short of descriptors") from None
            raise Refuse(Refusal.IDENTITY, f"the memory of process {pid}: {error.strerror}") from None
        if not peer.identity.image:
            # It could be reached now, but could not when it said HELLO: then who it was is not known well enough.
            raise Refuse(Refusal.IDENTITY, "the process was not dumpable when it connected; connect again")
        self._check_identity(peer)
        row = self._table.add(peer.slot, message.address, message.length)
        if row is None:
            raise Refuse(Refusal.FULL, f"a session has room for {self._table.regions} regions")
        peer.last_handle += 1
        peer.handles[peer.last_handle] = row
        return protocol.Registered(message.serial, peer.last_handle)

    def _unregister(self, peer: Peer, message: protocol.Unregister) -> Message | None:
        row = peer.handles.pop(message.handle, None)
        if row is None:
            raise Refuse(Refusal.NO_SUCH_REGION, "no region has that handle")
        self._table.remove(peer.slot, row)
        if (peer.slot, row) in self._table.in_flight():
            peer.unregistering.append((message.serial, message.handle, row))
            return None
        self._table.free(peer.slot, row)
        return protocol.Unregistered(message.serial, message.handle)

    def _check_identity(self, peer: Peer) -> None:
        """Still the program that said HELLO?"""
        assert peer.identity is not None
        try:
            if process_memory.identify(peer.identity.pid) == peer.identity:
                return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise Refuse(Refusal.FULL, "the gateway is short of descriptors") from None
        raise Refuse(Refusal.IDENTITY, "the process has become another program")

    def forget(self, peer: Peer) -> None:
        """The connection is closed."""
        if peer.identity is not None:
            self._sessions_of[peer.identity.pid] -= 1
            if not self._sessions_of[peer.identity.pid]:
                del self._sessions_of[peer.identity.pid]


def speaker(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """pid and uid of the sender, from the kernel."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack_from(data)
            return pid, uid
    raise Refuse(Refusal.IDENTITY, "the kernel does not say who is speaking")
