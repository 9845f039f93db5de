"""The blocking half of an RC connection: making it with rdma_cm, and taking it down. For executor threads.

Steps and their order: docs/wire-format.md. The listener's proof is checked before the queue pair leaves RESET.
"""

import contextlib
import errno
import logging
import time
from dataclasses import dataclass

from s3verbs.rdma import handshake
from s3verbs.rdma.errors import Failure
from s3verbs.rdma.verbs import cm
from s3verbs.rdma.verbs.api import QueuePair
from s3verbs.rdma.verbs.attributes import TO_ERROR
from s3verbs.rdma.verbs.constants import QueuePairState
from s3verbs.rdma.verbs.errors import ConnectFailed, VerbsError
from s3verbs.rdma.verbs.opened_device import DEPTH, OpenedDevice

_log = logging.getLogger(__name__)

READS = 16
"""RDMA READs in flight on one connection, if both devices can."""

_ACK_TIMEOUT = 16
"""4.096 us * 2^16 = 268 ms for one try. rdma_cm's own choice (19) would need a minute to notice a dead peer."""

_RETRIES = 6
"""With the one above a silent peer is given up after 2 to 8 s: devices may wait up to 4 times the timeout. Not 7, the
most: Linux's Soft-RoCE (rxe_comp.c) takes that for no limit, as if it were the count for RNR."""

_PEERS_FAULT = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH})
"""What address resolution fails with when nobody answers; everything else is about this machine."""


@dataclass(frozen=True, slots=True)
class Route:
    """From an address of a port of `device` to a listener."""

    device: OpenedDevice
    port: int
    source: cm.Peer
    destination: cm.Peer


class Link:
    """A queue pair in RTS with its rdma_cm id and event channel."""

    def __init__(self, channel: cm.EventChannel, connection: cm.ConnectionId, queue_pair: QueuePair) -> None:
        self._channel = channel
        self._connection = connection
        self.queue_pair = queue_pair

    @classmethod
    def connect(cls, route: Route, nonce: bytes, timeout: float) -> "Link":
        """Raises ConnectFailed; leaves nothing behind then. Takes `timeout` seconds and some milliseconds at most."""
        try:
            return cls._connect(route, nonce, timeout)
        except ConnectFailed as error:
            if error.reason is Failure.UNREACHABLE and not error.local and not _active(route):
                text = f"port {route.port} of {route.device.name} is down"
                raise ConnectFailed(error.reason, text, local=True) from error
            raise

    @classmethod
    def _connect(cls, route: Route, nonce: bytes, timeout: float) -> "Link":
        with contextlib.ExitStack() as undo:
            try:
                channel = cm.EventChannel()
                undo.callback(_quietly, channel.close)
                connection = channel.create_id()
                dialing = _Dialing(channel, connection, time.monotonic() + timeout)
                dialing.resolve(route)
                queue_pair = QueuePair(route.device.domain, route.device.queue, DEPTH)
                # Registered after the channel, so undone before it: rdma_cm ids outlive their queue pairs.
                undo.callback(_quietly, queue_pair.close)
                dialing.request(queue_pair, nonce, min(READS, route.device.limits.read_starts))
                dialing.bring_up(queue_pair)
            except VerbsError as error:
                raise ConnectFailed(Failure.UNREACHABLE, str(error), local=True) from error
            undo.pop_all()
        return cls(channel, connection, queue_pair)

    def fileno(self) -> int:
        """Readable when `ended` may have something to say."""
        return self._channel.fileno()

    def ended(self) -> bool:
        """Whether the peer has hung up, or the device is going away. Does not block."""
        while True:
            try:
                event = self._channel.next_event()
            except VerbsError:
                return True
            if event is None:
                return False
            if event.kind not in (cm.EventKind.ESTABLISHED, cm.EventKind.ADDR_CHANGE):
                return True

    def abort(self) -> None:
        """Move the queue pair to ERR: what is posted completes as flushed. Does not block, never raises."""
        try:
            self.queue_pair.modify(TO_ERROR)
        except VerbsError as error:
            _log.debug("queue pair %d: %s", self.queue_pair.number, error)

    def close(self) -> None:
        """On return the device touches no memory for this connection. Raises VerbsError when it could not make sure."""
        _quietly(self._connection.disconnect)
        self.queue_pair.close()
        _quietly(self._connection.close)
        _quietly(self._channel.close)


class _Dialing:
    def __init__(self, channel: cm.EventChannel, connection: cm.ConnectionId, deadline: float) -> None:
        self._channel = channel
        self._connection = connection
        self._deadline = deadline

    def resolve(self, route: Route) -> None:
        self._connection.resolve_address(route.source, route.destination, self._left())
        self._expect(cm.EventKind.ADDR_RESOLVED)
        self._connection.resolve_route(self._left())
        self._expect(cm.EventKind.ROUTE_RESOLVED)
        if self._connection.device != route.device.name:
            text = f"{route.source.address} is an address of {self._connection.device}, not of {route.device.name}"
            raise ConnectFailed(Failure.UNREACHABLE, text, local=True)

    def request(self, queue_pair: QueuePair, nonce: bytes, reads: int) -> None:
        """Until the listener has proved that it knows the nonce."""
        private_data = handshake.request(nonce)
        self._connection.connect(cm.ConnectParameters(queue_pair.number, private_data, 0, reads, _RETRIES))
        event = self._expect(cm.EventKind.CONNECT_RESPONSE)
        if not handshake.is_reply(event.private_data, nonce):
            _quietly(self._connection.reject)
            raise ConnectFailed(Failure.REJECTED, "the listener did not prove that it knows the nonce")
        if event.initiator_depth < 1:
            _quietly(self._connection.reject)
            raise ConnectFailed(Failure.REJECTED, "the listener allows no RDMA READ")

    def bring_up(self, queue_pair: QueuePair) -> None:
        # No remote access: the peer is to be read and written, and to do nothing here.
        queue_pair.modify(self._connection.queue_pair_attributes(QueuePairState.INIT).but(access=0))
        queue_pair.modify(self._connection.queue_pair_attributes(QueuePairState.RTR))
        ready = self._connection.queue_pair_attributes(QueuePairState.RTS)
        queue_pair.modify(ready.but(timeout=_ACK_TIMEOUT, retry_cnt=_RETRIES))
        self._connection.establish()

    def _left(self) -> float:
        return max(0.001, self._deadline - time.monotonic())

    def _expect(self, wanted: cm.EventKind) -> cm.Event:
        event = self._channel.next_event(self._left())
        if event is None:
            raise ConnectFailed(Failure.UNREACHABLE, f"no {wanted.name} in time")
        if event.kind is wanted and event.status == 0:
            return event
        text = f"{event.kind.name}, status {event.status}"
        if event.kind is cm.EventKind.REJECTED and event.status == cm.REJECT_CONSUMER_DEFINED:
            raise ConnectFailed(Failure.REJECTED, "the listener refused the connection")
        local = event.kind in (cm.EventKind.ADDR_ERROR, cm.EventKind.ROUTE_ERROR, cm.EventKind.DEVICE_REMOVAL)
        if local and -event.status in _PEERS_FAULT:
            local = False
        raise ConnectFailed(Failure.UNREACHABLE, text, local=local)


def _active(route: Route) -> bool:
    try:
        return route.device.port(route.port).active
    except VerbsError:
        return False


def _quietly(step: object) -> None:
    """For steps of taking down that a vanished device may refuse."""
    assert callable(step)
    try:
        step()
    except VerbsError as error:
        _log.debug("%s", error)
