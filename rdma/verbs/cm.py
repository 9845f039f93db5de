"""rdma_cm: how two processes find each other's queue pairs and agree. Binds librdmacm with ctypes.

pyverbs has a binding too, but its calls wait with the GIL held, it cannot send private data with an accept, and an
event tells neither its status nor the connection it belongs to. What is bound here is the part of rdma-core's
rdma/rdma_cma.h that has been stable ABI since 2010 (RDMACM_1.0, and rdma_init_qp_attr of RDMACM_1.2).

Queue pairs are not made by librdmacm: the caller brings one of `api`, passes its number, and moves it through INIT,
RTR and RTS with the attributes that `ConnectionId.queue_pair_attributes` gives. An active side does that when it has
seen CONNECT_RESPONSE and looked at the private data, and then calls `establish`; a passive side before `accept`.

    active    create, resolve_address, (ADDR_RESOLVED) resolve_route, (ROUTE_RESOLVED) connect, (CONNECT_RESPONSE)
              establish ... disconnect, close
    passive   create, bind, listen, (CONNECT_REQUEST brings a new ConnectionId) accept or reject, (ESTABLISHED) ...

Nothing here blocks except `EventChannel.next_event` for as long as it is told. One thread at a time per channel and its
ids. Calls release the GIL. Failures are VerbsError with an errno.
"""

import ctypes
import errno
import ipaddress
import os
import select
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from s3verbs.rdma.verbs.attributes import Address, QueuePairAttributes
from s3verbs.rdma.verbs.cm_structs import CmEventStruct, CmIdStruct, ConnParamStruct, QpAttrStruct
from s3verbs.rdma.verbs.constants import QueuePairMask, QueuePairState
from s3verbs.rdma.verbs.errors import VerbsError, VerbsUnavailable

_PORT_SPACE_TCP = 0x0106
_RESERVED_MASK = 0xF << 21
"""Bits that kernels add for RoCE and that libibverbs does not know."""

CONNECT_PRIVATE_DATA = 56
"""Bytes of private data that fit into a connect request (RDMA_PS_TCP); 196 into an accept, 148 into a reject."""

REJECT_INVALID_SERVICE_ID = 8
"""`Event.status` of REJECTED: nobody listens on the port (enum ib_cm_rej_reason in the kernel)."""

REJECT_CONSUMER_DEFINED = 28
"""`Event.status` of REJECTED: the listener said no."""


class EventKind(IntEnum):
    """enum rdma_cm_event_type."""

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15


@dataclass(frozen=True, slots=True)
class Peer:
    """Where to connect to or to listen on. `scope` is the interface's index for link-local IPv6, else 0."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int = 0
    scope: int = 0


@dataclass(frozen=True, slots=True)
class ConnectParameters:
    """struct rdma_conn_param. `responder_resources`: RDMA READs that the peer may have in flight here;
    `initiator_depth`: those that this side will have at the peer. Neither above the device's limit."""

    queue_pair: int
    private_data: bytes
    responder_resources: int
    initiator_depth: int
    retry_count: int = 7
    rnr_retry_count: int = 7


@dataclass(frozen=True, slots=True)
class Event:
    """`status`: 0, a negative errno, or the reason of a REJECTED. `private_data` may be followed by zeros that the
    sender did not send. The two counts are as this side sees them: on CONNECT_REQUEST `responder_resources` is what
    the peer would like to have in flight here (accept with that or less, or it cannot READ), on CONNECT_RESPONSE
    `initiator_depth` is what the peer lets this side have there."""

    kind: EventKind
    status: int
    id: "ConnectionId"
    private_data: bytes
    responder_resources: int
    initiator_depth: int


class EventChannel:
    """Where the events of its connection ids arrive. `fileno` is readable when there is one."""

    def __init__(self) -> None:
        """Raises VerbsUnavailable, VerbsError (ENODEV or ENOENT: rdma_ucm is not loaded)."""
        self._library = _librdmacm()
        self._raw = self._library.rdma_create_event_channel()
        if not self._raw:
            raise _failure("rdma_create_event_channel")
        self._descriptor = ctypes.cast(self._raw, ctypes.POINTER(ctypes.c_int)).contents.value
        os.set_blocking(self._descriptor, False)
        self._ids: dict[int, ConnectionId] = {}

    def fileno(self) -> int:
        return self._descriptor

    def next_event(self, timeout: float = 0.0) -> Event | None:
        """The next event, waiting up to `timeout` seconds; None when none came. It is acknowledged already."""
        if timeout > 0:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if not poll.poll(timeout * 1000):
                return None
        raw = ctypes.POINTER(CmEventStruct)()
        if self._library.rdma_get_cm_event(self._raw, ctypes.byref(raw)):
            if ctypes.get_errno() in (errno.EAGAIN, errno.EINTR):
                return None
            raise _failure("rdma_get_cm_event")
        found = raw.contents
        parameters = found.conn
        length = parameters.private_data_len if parameters.private_data else 0
        event = Event(
            EventKind(found.event),
            found.status,
            self._ids.get(found.id or 0) or ConnectionId(self, found.id),
            ctypes.string_at(parameters.private_data, length) if length else b"",
            parameters.responder_resources,
            parameters.initiator_depth,
        )
        self._library.rdma_ack_cm_event(raw)
        return event

    def create_id(self) -> "ConnectionId":
        raw = ctypes.c_void_p()
        _check(
            self._library.rdma_create_id(self._raw, ctypes.byref(raw), None, _PORT_SPACE_TCP),
            "rdma_create_id",
        )
        assert raw.value is not None
        return ConnectionId(self, raw.value)

    def close(self) -> None:
        """Closes the ids that are left, then the channel."""
        for connection in list(self._ids.values()):
            connection.close()
        if self._raw:
            self._library.rdma_destroy_event_channel(self._raw)
            self._raw = None


class ConnectionId:
    """A struct rdma_cm_id of port space RDMA_PS_TCP: a socket of rdma_cm. Made by its channel."""

    def __init__(self, channel: EventChannel, raw: int) -> None:
        self._channel = channel
        self._library = channel._library
        self._raw: int | None = raw
        channel._ids[raw] = self

    @property
    def _struct(self) -> CmIdStruct:
        if self._raw is None:
            raise VerbsError("the connection id is closed", errno.EBADF)
        return CmIdStruct.from_address(self._raw)

    @property
    def device(self) -> str:
        """Name of the RDMA device that it is bound to, or ""."""
        context = self._struct.verbs
        if not context:
            return ""
        device = ctypes.c_void_p.from_address(context).value  # struct ibv_context starts with its struct ibv_device *
        name: bytes = _libibverbs().ibv_get_device_name(device)
        return name.decode()

    @property
    def port_number(self) -> int:
        """Of the device; 0 when not bound to one."""
        return int(self._struct.port_num)

    @property
    def local(self) -> Peer:
        """The address and the rdma_cm port of this side."""
        return _peer(bytes(self._struct.source))

    @property
    def remote(self) -> Peer:
        return _peer(bytes(self._struct.destination))

    def bind(self, local: Peer) -> None:
        """Port 0: the kernel chooses; see `local`."""
        _check(self._library.rdma_bind_addr(self._raw, _sockaddr(local)), "rdma_bind_addr")

    def listen(self, backlog: int) -> None:
        _check(self._library.rdma_listen(self._raw, backlog), "rdma_listen")

    def resolve_address(self, source: Peer | None, destination: Peer, timeout: float) -> None:
        """ADDR_RESOLVED or ADDR_ERROR follows within `timeout` seconds. The source picks the device."""
        start = None if source is None else _sockaddr(source)
        _check(
            self._library.rdma_resolve_addr(self._raw, start, _sockaddr(destination), _milliseconds(timeout)),
            "rdma_resolve_addr",
        )

    def resolve_route(self, timeout: float) -> None:
        """ROUTE_RESOLVED or ROUTE_ERROR follows within `timeout` seconds."""
        _check(self._library.rdma_resolve_route(self._raw, _milliseconds(timeout)), "rdma_resolve_route")

    def queue_pair_attributes(self, state: QueuePairState) -> QueuePairAttributes:
        """What the next state of this connection's queue pair is to be made with: INIT, RTR, RTS."""
        raw, mask = QpAttrStruct(qp_state=int(state)), ctypes.c_int()
        _check(
            self._library.rdma_init_qp_attr(self._raw, ctypes.byref(raw), ctypes.byref(mask)),
            "rdma_init_qp_attr",
        )
        return _attributes(raw, mask.value & ~_RESERVED_MASK)

    def connect(self, parameters: ConnectParameters) -> None:
        """CONNECT_RESPONSE, REJECTED, UNREACHABLE or CONNECT_ERROR follows; the caller bounds the time."""
        with_data = _parameters(parameters)
        _check(self._library.rdma_connect(self._raw, ctypes.byref(with_data)), "rdma_connect")

    def establish(self) -> None:
        """Tell the peer that the queue pair is in RTS."""
        _check(self._library.rdma_establish(self._raw), "rdma_establish")

    def accept(self, parameters: ConnectParameters) -> None:
        """The queue pair must be in RTS. ESTABLISHED, or an error event, follows."""
        with_data = _parameters(parameters)
        _check(self._library.rdma_accept(self._raw, ctypes.byref(with_data)), "rdma_accept")

    def reject(self, private_data: bytes = b"") -> None:
        """Say no to a connect request, or to an accept. `close` follows."""
        _check(self._library.rdma_reject(self._raw, private_data or None, len(private_data)), "rdma_reject")

    def disconnect(self) -> None:
        """DISCONNECTED follows on both sides. Without an effect when the connection is gone."""
        _check(self._library.rdma_disconnect(self._raw), "rdma_disconnect", ignore=(errno.EINVAL, errno.ENOTCONN))

    def close(self) -> None:
        """The queue pair must be closed already. Unread events of this id are dropped."""
        if self._raw is not None:
            self._channel._ids.pop(self._raw, None)
            raw, self._raw = self._raw, None
            _check(self._library.rdma_destroy_id(raw), "rdma_destroy_id")


def load() -> None:
    """Raises VerbsUnavailable."""
    _librdmacm()
    _libibverbs()


@cache
def _librdmacm() -> ctypes.CDLL:
    library = _library("librdmacm.so.1")
    pointer = ctypes.c_void_p
    library.rdma_create_event_channel.restype = pointer
    library.rdma_destroy_event_channel.argtypes = (pointer,)
    library.rdma_destroy_event_channel.restype = None
    library.rdma_create_id.argtypes = (pointer, pointer, pointer, ctypes.c_int)
    library.rdma_destroy_id.argtypes = (pointer,)
    library.rdma_get_cm_event.argtypes = (pointer, pointer)
    library.rdma_ack_cm_event.argtypes = (pointer,)
    library.rdma_bind_addr.argtypes = (pointer, ctypes.c_char_p)
    library.rdma_listen.argtypes = (pointer, ctypes.c_int)
    library.rdma_resolve_addr.argtypes = (pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)
    library.rdma_resolve_route.argtypes = (pointer, ctypes.c_int)
    library.rdma_init_qp_attr.argtypes = (pointer, pointer, pointer)
    library.rdma_connect.argtypes = (pointer, pointer)
    library.rdma_establish.argtypes = (pointer,)
    library.rdma_accept.argtypes = (pointer, pointer)
    library.rdma_reject.argtypes = (pointer, ctypes.c_char_p, ctypes.c_uint8)
    library.rdma_disconnect.argtypes = (pointer,)
    return library


@cache
def _libibverbs() -> ctypes.CDLL:
    library = _library("libibverbs.so.1")
    library.ibv_get_device_name.argtypes = (ctypes.c_void_p,)
    library.ibv_get_device_name.restype = ctypes.c_char_p
    return library


def _library(name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name, use_errno=True)
    except OSError as error:
        package = name.split(".")[0] + "1"
        raise VerbsUnavailable(f"{error}: install {package} (Debian, Ubuntu) or rdma-core") from error


def _check(result: int, what: str, *, ignore: tuple[int, ...] = ()) -> None:
    if result and ctypes.get_errno() not in ignore:
        raise _failure(what)


def _failure(what: str) -> VerbsError:
    code = ctypes.get_errno()
    return VerbsError(f"{what}: {os.strerror(code)}", code)


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _sockaddr(peer: Peer) -> bytes:
    if peer.address.version == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", peer.port, peer.address.packed)
    head = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI16s", peer.port, 0, peer.address.packed)
    return head + struct.pack("=I", peer.scope)


def _peer(sockaddr: bytes) -> Peer:
    (family,) = struct.unpack_from("=H", sockaddr)
    (port,) = struct.unpack_from("!H", sockaddr, 2)
    if family == socket.AF_INET6:
        (scope,) = struct.unpack_from("=I", sockaddr, 24)
        return Peer(ipaddress.IPv6Address(sockaddr[8:24]), port, scope)
    return Peer(ipaddress.IPv4Address(sockaddr[4:8]), port)


def _parameters(values: ConnectParameters) -> ConnParamStruct:
    # ctypes keeps the bytes alive with the struct.
    return ConnParamStruct(
        private_data=ctypes.cast(ctypes.c_char_p(values.private_data), ctypes.c_void_p),
        private_data_len=len(values.private_data),
        responder_resources=values.responder_resources,
        initiator_depth=values.initiator_depth,
        retry_count=values.retry_count,
        rnr_retry_count=values.rnr_retry_count,
        qp_num=values.queue_pair,
    )


def _attributes(raw: Any, mask: int) -> QueuePairAttributes:
    path = raw.ah_attr
    address = None
    if mask & QueuePairMask.AV:
        address = Address(
            port=path.port_num,
            gid=bytes(path.dgid) if path.is_global else None,
            gid_index=path.sgid_index,
            hop_limit=path.hop_limit,
            traffic_class=path.traffic_class,
            flow_label=path.flow_label,
            lid=path.dlid,
            service_level=path.sl,
            path_bits=path.src_path_bits,
            static_rate=path.static_rate,
        )
    return QueuePairAttributes(
        mask=QueuePairMask(mask),
        state=QueuePairState(raw.qp_state),
        path_mtu=raw.path_mtu,
        qkey=raw.qkey,
        rq_psn=raw.rq_psn,
        sq_psn=raw.sq_psn,
        dest_qp_num=raw.dest_qp_num,
        access=raw.qp_access_flags,
        address=address,
        pkey_index=raw.pkey_index,
        max_rd_atomic=raw.max_rd_atomic,
        max_dest_rd_atomic=raw.max_dest_rd_atomic,
        min_rnr_timer=raw.min_rnr_timer,
        port=raw.port_num,
        timeout=raw.timeout,
        retry_cnt=raw.retry_cnt,
        rnr_retry=raw.rnr_retry,
    )
