"""From a token's address to a connection: which rail, one thread per attempt, one more attempt."""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable
from s3verbs.rdma.verbs.cm import Peer
from s3verbs.rdma.verbs.connections import Gone, Key
from s3verbs.rdma.verbs.device import Rail, address_of
from s3verbs.rdma.verbs.errors import ConnectFailed
from s3verbs.rdma.verbs.opened_device import OpenedDevice
from s3verbs.rdma.verbs.rails import Rails
from s3verbs.rdma.verbs.rc import AnyLink, Connection
from s3verbs.rdma.verbs.rc_link import Link, Route

_log = logging.getLogger(__name__)

_ATTEMPTS = 2
"""Times that a peer is called before it counts as unreachable. Rails that cannot even call do not count."""

Connect = Callable[[Route, bytes, float], AnyLink]


class Dialer:
    """Loop thread only; `connect` runs in the executor."""

    def __init__(
        self,
        devices: Mapping[str, OpenedDevice],
        rails: Rails,
        executor: Executor,
        closer: Executor,
        timeout: float,
        connect: Connect = Link.connect,
    ) -> None:
        """`timeout`: seconds for one attempt. `closer` takes connections down: never behind peers that do not answer,
        for buffers may wait for that."""
        self._devices = devices
        self._rails = rails
        self._executor = executor
        self._closer = closer
        self._timeout = timeout
        self._connect = connect

    async def dial(self, key: Key, on_end: Gone) -> Connection:
        """Raises Declined(NO_ROUTE, NO_CONNECTION), PeerUnreachable. Not to be cancelled: a thread that is connecting
        cannot be."""
        failure: ConnectFailed | None = None
        attempts = 0
        rails = self._rails.to(key.gid)
        # With one rail both attempts go there.
        for rail in rails if len(rails) > 1 else rails * _ATTEMPTS:
            if attempts == _ATTEMPTS:
                break
            if failure is not None and failure.local and len(rails) == 1:
                break
            try:
                connection = await self._try(rail, key, on_end)
            except ConnectFailed as error:
                failure = error
                _log.info("no connection from %s to %s: %s", rail, address_of(key.gid), error)
                if error.local:
                    self._rails.failed(rail)
                    continue
                if error.reason is Failure.REJECTED:
                    break
                attempts += 1
                continue
            self._rails.worked(rail)
            return connection
        if failure is None or failure.local:
            raise Declined(Decline.NO_ROUTE, str(failure or "no device has a route to the peer"))
        raise PeerUnreachable(failure.reason, str(failure))

    async def _try(self, rail: Rail, key: Key, on_end: Gone) -> Connection:
        device = self._devices[rail.device]
        if not device.take():
            raise Declined(Decline.NO_CONNECTION, f"{device.name} has no queue pair left")
        try:
            scope = _scope(rail)
            destination = Peer(address_of(key.gid), key.port, scope)
            route = Route(device, rail.port, Peer(rail.address, 0, scope), destination)
            loop = asyncio.get_running_loop()
            link = await loop.run_in_executor(self._executor, self._connect, route, key.nonce, self._timeout)
        except BaseException:
            device.give()
            raise
        return Connection(link, device, self._closer, on_end=on_end)


def _scope(rail: Rail) -> int:
    """Of link-local addresses, which only mean something on one interface."""
    if not rail.address.is_link_local or rail.address.version == 4:
        return 0
    try:
        return socket.if_nametoindex(rail.netdev)
    except OSError as error:
        raise ConnectFailed(Failure.UNREACHABLE, f"{rail.netdev} is gone: {error}", local=True) from error
