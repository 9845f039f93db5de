"""The blocking half of DC: making initiators and address handles. mlx5 only. It has not run on hardware.

A DC initiator is a queue pair that names its target in every work request, by address handle, target number and
access key. The target is the client's; nothing is exchanged with it beforehand but the token.

    RESET -> INIT (P_Key, port) -> RTR (path MTU) -> RTS (timeout, retries, PSN, READs in flight)

Sources: mlx5dv_create_qp(3), mlx5dv_wr_post(3), and what the kernel's mlx5 driver demands of each step of a DCI.
"""

import contextlib
import logging
import os
from collections import OrderedDict
from dataclasses import dataclass

from s3verbs.rdma.verbs.api import AddressHandle, DcInitiator
from s3verbs.rdma.verbs.attributes import TO_ERROR, Address, LocalSpan, QueuePairAttributes
from s3verbs.rdma.verbs.constants import QueuePairMask, QueuePairState
from s3verbs.rdma.verbs.device import Rail
from s3verbs.rdma.verbs.errors import VerbsError, VerbsUnavailable
from s3verbs.rdma.verbs.opened_device import DEPTH, OpenedDevice
from s3verbs.rdma.verbs.rc_link import READS

_log = logging.getLogger(__name__)

HOP_LIMIT = 64
_ACK_TIMEOUT = 14
"""4.096 us * 2^14 = 67 ms for one try; see `rc_link`. Shorter than there: a silent peer holds one of few initiators."""
_RETRIES = 7
_RNR_RETRIES = 7
"""For ever. One-sided operations never find a receiver that is not ready; the transition wants a number."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a client's DC target is. `number` is the token's field 5."""

    gid: bytes
    number: int


@dataclass(frozen=True, slots=True)
class Manner:
    """How a rail's initiators speak: the access key of the clients' targets, and what routers and switches see."""

    key: int
    traffic_class: int = 0
    hop_limit: int = HOP_LIMIT


class DcLink:
    """One initiator in RTS, aimed at one target at a time. What `rc.Connection` needs to run it: a DC initiator has no
    connection manager, so the descriptor is one that never becomes readable."""

    def __init__(self, initiator: DcInitiator, key: int) -> None:
        self._initiator = initiator
        self._key = key
        self._aim: tuple[AddressHandle, int] | None = None
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @classmethod
    def make(cls, device: OpenedDevice, rail: Rail, manner: Manner) -> "DcLink":
        """For an executor thread. Raises VerbsError; leaves nothing behind then."""
        with contextlib.ExitStack() as undo:
            initiator = DcInitiator(device.domain, device.queue, DEPTH)
            undo.callback(initiator.close)
            for step in steps(rail.port, device.port(rail.port).mtu, min(READS, device.limits.read_starts)):
                initiator.modify(step)
            undo.pop_all()
        return cls(initiator, manner.key)

    @property
    def queue_pair(self) -> "DcLink":
        return self

    def aim(self, handle: AddressHandle, number: int) -> None:
        """Where the next work requests go. Only when none is posted: an error at one target flushes all behind it."""
        self._aim = handle, number

    def post_read(self, work: int, local: LocalSpan, remote: int, rkey: int) -> None:
        self._post(work, local, remote, rkey, read=True)

    def post_write(self, work: int, local: LocalSpan, remote: int, rkey: int) -> None:
        self._post(work, local, remote, rkey, read=False)

    def _post(self, work: int, local: LocalSpan, remote: int, rkey: int, *, read: bool) -> None:
        assert self._aim is not None
        handle, number = self._aim
        self._initiator.post(work, local, remote, rkey, read=read, handle=handle, target=number, key=self._key)

    def fileno(self) -> int:
        return self._descriptor

    def ended(self) -> bool:
        return False

    def abort(self) -> None:
        """Move it to ERR: what is posted completes as flushed. Does not block, never raises."""
        try:
            self._initiator.modify(TO_ERROR)
        except VerbsError as error:
            _log.debug("DC initiator %d: %s", self._initiator.number, error)

    def close(self) -> None:
        """On return the device touches no memory for it. Raises VerbsError when it could not make sure."""
        self._initiator.close()
        os.close(self._descriptor)


def check(device: OpenedDevice, rail: Rail, manner: Manner) -> None:
    """Make an initiator and destroy it; blocks for some kernel commands. Raises VerbsUnavailable when the device or the
    verbs library cannot."""
    try:
        DcLink.make(device, rail, manner).close()
    except VerbsError as error:
        raise VerbsUnavailable(f"{rail.device} makes no DC initiator: {reason(error)}") from error


def reason(error: VerbsError) -> str:
    """In one line: what pyverbs says of a queue pair has many."""
    return os.strerror(error.code) if error.code else str(error)


def steps(port: int, path_mtu: int, reads: int) -> tuple[QueuePairAttributes, ...]:
    """From RESET to RTS. `path_mtu` is an enum ibv_mtu, `reads` the READs in flight."""
    mask = QueuePairMask
    return (
        QueuePairAttributes(mask.STATE | mask.PKEY_INDEX | mask.PORT, QueuePairState.INIT, port=port),
        QueuePairAttributes(mask.STATE | mask.PATH_MTU, QueuePairState.RTR, path_mtu=path_mtu),
        QueuePairAttributes(
            mask.STATE | mask.TIMEOUT | mask.RETRY_CNT | mask.RNR_RETRY | mask.SQ_PSN | mask.MAX_QP_RD_ATOMIC,
            QueuePairState.RTS,
            timeout=_ACK_TIMEOUT,
            retry_cnt=_RETRIES,
            rnr_retry=_RNR_RETRIES,
            max_rd_atomic=reads,
        ),
    )


class AddressHandles:
    """Address handles by the peer's GID. Those in use are kept, and of the others the `keep` used last."""

    def __init__(self, device: OpenedDevice, rail: Rail, manner: Manner, keep: int) -> None:
        self._device = device
        self._rail = rail
        self._manner = manner
        self._keep = keep
        self._used: dict[bytes, tuple[AddressHandle, int]] = {}
        self._idle: OrderedDict[bytes, AddressHandle] = OrderedDict()

    def make(self, gid: bytes) -> AddressHandle:
        """For an executor thread: the kernel resolves the peer's MAC address, which takes seconds when nobody answers.
        Hand it to `add`. Raises VerbsError."""
        return AddressHandle(
            self._device.domain,
            Address(
                port=self._rail.port,
                gid=gid,
                gid_index=self._rail.gid_index,
                hop_limit=self._manner.hop_limit,
                traffic_class=self._manner.traffic_class,
            ),
        )

    def add(self, gid: bytes, handle: AddressHandle) -> None:
        """Keep one that `make` gave. There is none for this GID yet."""
        self._idle[gid] = handle
        self._trim()

    def has(self, gid: bytes) -> bool:
        return gid in self._used or gid in self._idle

    def take(self, gid: bytes) -> AddressHandle | None:
        """The handle, until `give`; None when there is none."""
        if gid in self._used:
            handle, users = self._used[gid]
        elif gid in self._idle:
            handle, users = self._idle.pop(gid), 0
        else:
            return None
        self._used[gid] = handle, users + 1
        return handle

    def give(self, gid: bytes) -> None:
        handle, users = self._used.pop(gid)
        if users > 1:
            self._used[gid] = handle, users - 1
        else:
            self._idle[gid] = handle
            self._trim()

    def __len__(self) -> int:
        return len(self._used) + len(self._idle)

    def _trim(self) -> None:
        while len(self._idle) > self._keep:
            _close(self._idle.popitem(last=False)[1])

    def close(self) -> None:
        """After the last initiator."""
        for handle in (*self._idle.values(), *(handle for handle, _ in self._used.values())):
            _close(handle)
        self._idle.clear()
        self._used.clear()


def _close(handle: AddressHandle) -> None:
    try:
        handle.close()
    except VerbsError as error:
        _log.debug("address handle: %s", error)
