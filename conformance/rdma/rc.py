"""The RC lane: rdma_cm listener, nonce handshake, memory regions. Source: section 6 of the contract.

The listener accepts a server that shows the nonce of the token, and answers with the proof that it knows it too; it
posts nothing itself. It uses rdma-core's own libraries, so it needs no pyverbs.
"""

import ctypes
import hmac
import ipaddress
import os
import secrets
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.rdma import rdma_core as core
from conformance.rdma.lanes import LaneUnavailable
from conformance.rdma.memory import GUARD, Memory
from conformance.rdma.token import Token, gid_of

_MAGIC = b"S3RV\x01"
_SYSFS = Path("/sys/class/infiniband")


def _proof(nonce: bytes) -> bytes:
    return _MAGIC + hmac.digest(nonce, b"accept", "sha256")[:16]


def _addresses() -> Iterator[str]:
    """IPv4 addresses of this machine's RDMA devices, from their GIDs."""
    for path in sorted(_SYSFS.glob("*/ports/*/gids/*")):
        try:
            gid = ipaddress.IPv6Address(path.read_text().strip())
        except (OSError, ValueError):
            continue
        if gid.ipv4_mapped is not None:
            yield str(gid.ipv4_mapped)


class Listener:
    """Serves connect requests on one thread until `close`. `replies`: nonce -> private data of the accept."""

    def __init__(self, cm: Any, verbs: Any, address: str, replies: dict[bytes, bytes]) -> None:
        """Raises OSError."""
        self._cm, self._verbs = cm, verbs
        self._replies = replies
        self._connections: set[int] = set()
        self._channel = self._check(cm.rdma_create_event_channel(), "rdma_create_event_channel")
        self._id = ctypes.c_void_p()
        self._zero(cm.rdma_create_id(self._channel, ctypes.byref(self._id), None, core.PS_TCP), "rdma_create_id")
        octets = (ctypes.c_uint8 * 4)(*ipaddress.IPv4Address(address).packed)
        where = core.SockaddrIn(family=socket.AF_INET, address=octets)
        self._zero(cm.rdma_bind_addr(self._id, ctypes.byref(where)), f"rdma_bind_addr {address}")
        self._zero(cm.rdma_listen(self._id, 64), "rdma_listen")
        self.port = socket.ntohs(cm.rdma_get_src_port(self._id))
        context = ctypes.c_void_p.from_address(self._id.value or 0).value  # struct rdma_cm_id begins with it
        self.pd = self._check(verbs.ibv_alloc_pd(context), "ibv_alloc_pd")
        self._cq = self._check(verbs.ibv_create_cq(context, 16, None, None, 0), "ibv_create_cq")
        self._wake = os.eventfd(0)
        self._thread = threading.Thread(target=self._serve, name="rc-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections."""
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)
        self._verbs.ibv_destroy_cq(self._cq)
        self._verbs.ibv_dealloc_pd(self.pd)

    def _serve(self) -> None:
        descriptor = ctypes.cast(self._channel, ctypes.POINTER(ctypes.c_int)).contents.value
        os.set_blocking(descriptor, False)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._wake not in dict(poll.poll()):
            self._take()
        for connection in list(self._connections):
            self._end(connection)
        self._cm.rdma_destroy_id(self._id)
        self._cm.rdma_destroy_event_channel(self._channel)

    def _take(self) -> None:
        raw = ctypes.POINTER(core.CmEvent)()
        if self._cm.rdma_get_cm_event(self._channel, ctypes.byref(raw)):
            return
        event = raw.contents
        kind, connection = event.event, event.id
        shown = ctypes.string_at(event.conn.private_data, event.conn.private_data_len) if kind == 4 else b""
        reads = event.conn.responder_resources
        self._cm.rdma_ack_cm_event(raw)
        if kind == core.CONNECT_REQUEST:
            reply = self._replies.get(shown[len(_MAGIC) : len(_MAGIC) + 16]) if shown.startswith(_MAGIC) else None
            if reply is None or not self._accept(connection, reply, reads):
                self._cm.rdma_reject(connection, None, 0)
                self._cm.rdma_destroy_id(connection)
        elif kind in core.ENDINGS and connection in self._connections:
            self._end(connection)

    def _accept(self, connection: int, reply: bytes, reads: int) -> bool:
        attributes = core.QpInitAttr(
            send_cq=self._cq,
            recv_cq=self._cq,
            max_send_wr=1,
            max_recv_wr=1,
            max_send_sge=1,
            max_recv_sge=1,
            qp_type=core.QPT_RC,
        )
        if self._cm.rdma_create_qp(connection, self.pd, ctypes.byref(attributes)):
            return False
        data = ctypes.create_string_buffer(reply, len(reply))
        parameters = core.ConnParam(
            private_data=ctypes.addressof(data), private_data_len=len(reply), responder_resources=min(reads, 16)
        )
        if self._cm.rdma_accept(connection, ctypes.byref(parameters)):
            self._cm.rdma_destroy_qp(connection)
            return False
        self._connections.add(connection)
        return True

    def _end(self, connection: int) -> None:
        self._connections.discard(connection)
        self._cm.rdma_disconnect(connection)
        self._cm.rdma_destroy_qp(connection)
        self._cm.rdma_destroy_id(connection)

    @staticmethod
    def _check(pointer: int | None, what: str) -> int:
        if not pointer:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
        return pointer

    @staticmethod
    def _zero(result: int, what: str) -> None:
        if result:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


class _Exposure:
    def __init__(self, lane: "RcLane", memory: Memory) -> None:
        self._lane = lane
        self._address = memory.address
        access = core.LOCAL_WRITE | core.REMOTE_WRITE | core.REMOTE_READ
        self._mr = lane.verbs.ibv_reg_mr(lane.listener.pd, memory.address, memory.size, access)
        if not self._mr:
            raise OSError(ctypes.get_errno(), "ibv_reg_mr: " + os.strerror(ctypes.get_errno()))
        self.rkey = int(self._mr.contents.rkey)

    def token(self, offset: int, size: int) -> str:
        return self._lane.token(self._address + offset, size, self.rkey)

    def close(self) -> None:
        region, self._mr = self._mr, None
        if region:
            self._lane.verbs.ibv_dereg_mr(region)


class RcLane:
    """Implements Lane: this process's memory, reached through a RoCE device at `address`."""

    name = "rc"

    def __init__(self, address: str = "") -> None:
        """Raises LaneUnavailable."""
        try:
            self.cm, self.verbs = core.load()
        except OSError as error:
            raise LaneUnavailable(f"rdma-core is not installed: {error}") from None
        address = address or next(_addresses(), "")
        if not address:
            raise LaneUnavailable("this machine has no RoCE device with an IPv4 address")
        self._gid = gid_of(address)
        self._nonce, self._liars = secrets.token_bytes(16), secrets.token_bytes(16)
        replies = {self._nonce: _proof(self._nonce), self._liars: _proof(self._nonce)}
        try:
            self.listener = Listener(self.cm, self.verbs, address, replies)
            gone = Listener(self.cm, self.verbs, address, {})
        except OSError as error:
            raise LaneUnavailable(str(error)) from None
        self._closed_port = gone.port
        gone.close()

    def token(self, address: int, size: int, rkey: int, *, port: int = 0, nonce: bytes = b"") -> str:
        suffix = f":rc1:{(nonce or self._nonce).hex()}"
        return str(Token(address, size, rkey, qp=port or self.listener.port, gid=self._gid, suffix=suffix))

    def expose(self, memory: Memory) -> _Exposure:
        return _Exposure(self, memory)

    def wrong_tokens(self, memory: Memory, exposure: Any) -> dict[str, str]:
        start, size, rkey = memory.address, memory.size, exposure.rkey
        return {
            "ends one byte past the region": self.token(start + 1, size, rkey),
            "begins one byte before the region": self.token(start - 1, size, rkey),
            "before the region": self.token(start - GUARD, size, rkey),
            "behind the region": self.token(start + size, size, rkey),
            "another rkey": self.token(start, size, rkey ^ 0x5A5A5A00),
            "address 0": self.token(0, size, rkey),
        }

    def dead_tokens(self) -> dict[str, tuple[str, int]]:
        return {
            "nobody listens": (self.token(0x10000, 1 << 20, 1, port=self._closed_port), 503),
            "the listener refuses the nonce": (self.token(0x10000, 1 << 20, 1, nonce=secrets.token_bytes(16)), 503),
            "the listener cannot prove the nonce": (self.token(0x10000, 1 << 20, 1, nonce=self._liars), 503),
        }

    def close(self) -> None:
        self.listener.close()
