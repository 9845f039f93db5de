"""The connections of a process, one for each client process that it talks to. Loop thread only."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from s3verbs.rdma.errors import Decline, Declined, Failure
from s3verbs.rdma.verbs.rc import Connection

Gone = Callable[[Connection], None]


@dataclass(frozen=True, slots=True)
class Key:
    """A listener of one client process. The nonce must not get into a log."""

    gid: bytes
    port: int
    nonce: bytes = field(repr=False)


Dial = Callable[[Key, Gone], Awaitable[Connection]]
"""Makes a connection; calls the second argument when it ends. Raises what `ConnectionCache.lease` raises."""


class ConnectionCache:
    """At most `most` connections, counting those that are being made or taken down. One without a lease is closed after
    `idle_timeout` seconds, or earlier, the longest unused first, to make room."""

    def __init__(self, dial: Dial, loop: asyncio.AbstractEventLoop, *, most: int, idle_timeout: float) -> None:
        self._dial = dial
        self._most = most
        self._idle_timeout = idle_timeout
        self._loop = loop
        self._live: dict[Key, Connection] = {}
        self._dialing: dict[Key, asyncio.Task[Connection]] = {}
        self._idle: OrderedDict[Key, float] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._live) + len(self._dialing) + len(self._leaving)

    async def lease(self, key: Key) -> Connection:
        """A connection that stays open until `release`, unless it fails. Any number of requests share one; those that
        come while it is being made wait for that. Raises Declined(NO_CONNECTION), and what dialing raises."""
        while (connection := self._live.get(key)) is None:
            dialing = self._dialing.get(key)
            if dialing is None:
                if len(self) >= self._most:
                    await self._make_room()
                    continue
                if self._closed:
                    raise Declined(Decline.NO_CONNECTION, "closing")
                dialing = self._loop.create_task(self._make(key), name="dial an RC connection")
                self._dialing[key] = dialing
                # Whoever asked may have gone away: then nobody else looks at its error.
                dialing.add_done_callback(lambda task: task.cancelled() or task.exception())
            connection = await asyncio.shield(dialing)
            break
        connection.leases += 1
        self._idle.pop(key, None)
        return connection

    async def _make(self, key: Key) -> Connection:
        try:
            connection = await self._dial(key, lambda ended: self._drop(key, ended))
        finally:
            del self._dialing[key]
        if connection.usable:
            self._live[key] = connection
            self._rest(key)
        return connection

    def release(self, key: Key, connection: Connection) -> None:
        connection.leases -= 1
        if connection.leases == 0 and self._live.get(key) is connection:
            self._rest(key)

    def _rest(self, key: Key) -> None:
        self._idle.pop(key, None)
        self._idle[key] = self._loop.time() + self._idle_timeout
        self._watch()

    async def _make_room(self) -> None:
        """Wait for one that is being closed; when none is, close the one that has been unused the longest."""
        if not self._leaving:
            if not self._idle:
                raise Declined(Decline.NO_CONNECTION, f"all {self._most} connections are in use")
            self._live[next(iter(self._idle))].end(Failure.CONNECTION_LOST)
        await asyncio.wait(set(self._leaving), return_when=asyncio.FIRST_COMPLETED)

    def _drop(self, key: Key, connection: Connection) -> None:
        """It has ended; whoever still has it finds out by using it."""
        if self._live.get(key) is connection:
            del self._live[key]
            self._idle.pop(key, None)
        leaving = self._loop.create_task(connection.close())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def _watch(self) -> None:
        if self._sweep is None and self._idle:
            self._sweep = self._loop.call_at(next(iter(self._idle.values())), self._swept)

    def _swept(self) -> None:
        self._sweep = None
        now = self._loop.time()
        for key in [key for key, until in self._idle.items() if until <= now]:
            self._live[key].end(Failure.CONNECTION_LOST)
        self._watch()

    async def close(self) -> None:
        """After the last lease is given back."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        if self._dialing:
            await asyncio.wait(list(self._dialing.values()))
        for connection in list(self._live.values()):
            connection.end(Failure.CONNECTION_LOST)
        while self._leaving:
            await asyncio.wait(set(self._leaving))
