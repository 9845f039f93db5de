"""A client's buffer over RC, as one request sees it: bounds, deadlines, the one reconnect and the one retry."""

import asyncio

from s3verbs.rdma.errors import Declined, Failure, PeerUnreachable, RemoteAccess
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs.chunk_region import ChunkRegion
from s3verbs.rdma.verbs.connections import ConnectionCache, Key
from s3verbs.rdma.verbs.errors import ConnectionLost
from s3verbs.rdma.verbs.rc import Connection

_NONE = ConnectionLost(Failure.CONNECTION_LOST, "the connection was lost before")


class RcRegion(ChunkRegion):
    """A RemoteRegion over RC. Holds a lease on a connection until `close`."""

    def __init__(self, token: Token, key: Key, connection: Connection, cache: ConnectionCache, timeout: float) -> None:
        """Takes over the lease on `connection`. `timeout`: seconds for one chunk, with reconnect and retry."""
        super().__init__(token)
        self._key = key
        self._connection: Connection | None = connection
        self._cache = cache
        self._timeout = timeout
        self._reconnecting = asyncio.Lock()
        self._reconnected = False
        self._refused: RemoteAccess | None = None
        """What the client's device said of one chunk; it ends the connection under the others."""
        self._device = connection.device.name

    @property
    def transport(self) -> Transport:
        return Transport.RC

    @property
    def device(self) -> str:
        return self._device

    async def _transfer(self, offset: int, address: int, length: int, *, read: bool) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        connection = self._connection
        if connection is None:
            connection = await self._another(None, _NONE, deadline)
        try:
            await self._once(connection, offset, address, length, deadline, read=read)
            return
        except ConnectionLost as lost:
            if loop.time() >= deadline:
                raise PeerUnreachable(Failure.TIMEOUT, str(lost)) from lost
            connection = await self._another(connection, lost, deadline)
        try:
            await self._once(connection, offset, address, length, deadline, read=read)
        except ConnectionLost as lost:
            reason = Failure.TIMEOUT if loop.time() >= deadline else lost.reason
            raise PeerUnreachable(reason, str(lost)) from lost

    async def _once(
        self, connection: Connection, offset: int, address: int, length: int, deadline: float, *, read: bool
    ) -> None:
        span = connection.device.arena.span(address, length)
        remote = self._token.address + offset
        move = connection.read if read else connection.write
        try:
            await move(span, remote, self._token.rkey, deadline)
        except RemoteAccess as error:
            self._refused = error
            raise
        except ConnectionLost as lost:
            if self._refused is not None:
                raise RemoteAccess(str(self._refused)) from lost
            raise
        self._device = connection.device.name

    async def _another(self, lost: Connection | None, why: ConnectionLost, deadline: float) -> Connection:
        """The connection that all chunks of this request go on with; made by the first of them that lost its own. One
        that is cancelled meanwhile leaves it to the next."""
        async with self._reconnecting:
            if self._connection is not lost and self._connection is not None:
                return self._connection
            if self._reconnected:
                raise PeerUnreachable(why.reason, f"lost again: {why}") from why
            if self._connection is not None:
                self._cache.release(self._key, self._connection)
                self._connection = None
            try:
                async with asyncio.timeout_at(deadline):
                    self._connection = await self._cache.lease(self._key)
            except TimeoutError:
                self._reconnected = True
                raise PeerUnreachable(Failure.TIMEOUT, f"no connection in time after: {why}") from why
            except Declined as decline:
                self._reconnected = True
                # Too late to serve this request in another way.
                raise PeerUnreachable(why.reason, f"{decline}, after: {why}") from why
            except PeerUnreachable:
                self._reconnected = True
                raise
            self._reconnected = True
            return self._connection

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            # Cancelled or not: a lease that stays would keep the connection for ever.
            self._reconnected = True
            if self._connection is not None:
                self._cache.release(self._key, self._connection)
                self._connection = None
