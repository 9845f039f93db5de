"""The client's end of reliable connections: servers connect, show the nonce, and then reach registered memory.

One thread has the rdma_cm event channel, all its ids and the queue pairs. The client never posts a work request: what
a queue pair lets a server do is decided by rkeys, so a connection alone gives access to nothing.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address

from s3verbs.rdma import handshake
from s3verbs.rdma.client.verbs_rail import ClientRail
from s3verbs.rdma.verbs.api import QueuePair
from s3verbs.rdma.verbs.cm import ConnectionId, ConnectParameters, Event, EventChannel, EventKind, Peer
from s3verbs.rdma.verbs.constants import Access, QueuePairState
from s3verbs.rdma.verbs.errors import VerbsError

log = logging.getLogger("s3verbs.client")

BACKLOG = 128
_PAUSE = 0.1
"""Seconds to wait after an event that could not be taken: one that stays must not keep a core busy."""

_ENDS = frozenset(
    {
        EventKind.DISCONNECTED,
        EventKind.REJECTED,
        EventKind.UNREACHABLE,
        EventKind.CONNECT_ERROR,
        EventKind.DEVICE_REMOVAL,
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class _Connection:
    id: ConnectionId
    queue_pair: QueuePair
    rail: ClientRail


class Listener:
    """Listens on the address of each rail, on ports that the kernel chooses.

    At most `most` connections are held. One more ends the oldest: a server that vanished without a word keeps its
    place otherwise, for the client's end has nothing to notice it by. A server whose connection is ended makes a new
    one and tries again.
    """

    def __init__(self, rails: Sequence[ClientRail], nonce: bytes, most: int) -> None:
        """Raises VerbsUnavailable, VerbsError."""
        self._nonce = nonce
        self._most = most
        self._connections: dict[ConnectionId, _Connection] = {}
        self._rails: dict[ConnectionId, ClientRail] = {}
        self.ports: dict[ClientRail, int] = {}
        self.rejected = 0
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._channel = EventChannel()
            try:
                for rail in rails:
                    self._listen(rail)
            except BaseException:
                self._channel.close()
                raise
        except BaseException:
            os.close(self._wake)
            raise
        self._thread = threading.Thread(target=self._run, name="s3verbs-rdma-listener", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def close(self) -> None:
        """End all connections. On return their queue pairs are gone."""
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _listen(self, rail: ClientRail) -> None:
        listening = self._channel.create_id()
        address = rail.rail.address
        scope = 0
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            scope = socket.if_nametoindex(address.scope_id)
        listening.bind(Peer(address, 0, scope))
        listening.listen(BACKLOG)
        self._rails[listening] = rail
        self.ports[rail] = listening.local.port

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        try:
            while self._wake not in dict(poll.poll()):
                try:
                    while (event := self._channel.next_event()) is not None:
                        self._take(event)
                except VerbsError as error:
                    log.warning("RDMA: listener: %s", error)
                    time.sleep(_PAUSE)
        finally:
            for connection in list(self._connections.values()):
                self._end(connection)
            self._channel.close()

    def _take(self, event: Event) -> None:
        if event.kind is EventKind.CONNECT_REQUEST:
            self._requested(event)
        elif event.kind in _ENDS:
            if (connection := self._connections.get(event.id)) is not None:
                self._end(connection)
            elif (rail := self._rails.pop(event.id, None)) is not None:
                log.warning("RDMA: %s is gone: %s", rail, event.kind.name)
                rail.removed = True
                for connection in [each for each in self._connections.values() if each.rail is rail]:
                    self._end(connection)
                event.id.close()

    def _requested(self, event: Event) -> None:
        rail = self._rail_of(event.id)
        if rail is None or not handshake.is_request(event.private_data, self._nonce):
            self.rejected += 1
            self._refuse(event.id)
            return
        while len(self._connections) >= self._most:
            self._end(next(iter(self._connections.values())))
        try:
            self._accept(event, rail)
        except VerbsError as error:
            log.warning("RDMA: %s: cannot accept a connection: %s", rail, error)
            if (connection := self._connections.get(event.id)) is not None:
                self._end(connection)
            else:
                self._refuse(event.id)

    def _rail_of(self, id_: ConnectionId) -> ClientRail | None:
        port = id_.local.port
        return next((rail for rail, own in self.ports.items() if own == port and rail.rail.device == id_.device), None)

    def _accept(self, event: Event, rail: ClientRail) -> None:
        connection = _Connection(event.id, rail.queue_pair(), rail)
        self._connections[event.id] = connection
        reads = min(event.responder_resources, rail.reads)
        init = event.id.queue_pair_attributes(QueuePairState.INIT)
        connection.queue_pair.modify(init.but(access=Access.REMOTE_READ | Access.REMOTE_WRITE))
        to_receive = event.id.queue_pair_attributes(QueuePairState.RTR)
        connection.queue_pair.modify(to_receive.but(max_dest_rd_atomic=reads))
        connection.queue_pair.modify(event.id.queue_pair_attributes(QueuePairState.RTS).but(max_rd_atomic=0))
        event.id.accept(
            ConnectParameters(
                connection.queue_pair.number,
                handshake.reply(self._nonce),
                responder_resources=reads,
                initiator_depth=0,
            )
        )

    def _end(self, connection: _Connection) -> None:
        del self._connections[connection.id]
        with contextlib.suppress(VerbsError):
            connection.id.disconnect()
        for part in (connection.queue_pair, connection.id):
            try:
                part.close()
            except VerbsError as error:
                log.warning("RDMA: %s: closing a connection: %s", connection.rail, error)

    def _refuse(self, id_: ConnectionId) -> None:
        with contextlib.suppress(VerbsError):
            id_.reject()
        with contextlib.suppress(VerbsError):
            id_.close()
