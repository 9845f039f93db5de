"""Transport.SAMEHOST: reads and writes the registered memory of client processes on this host. One for each worker."""

import asyncio
import errno
import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RdmaError, RemoteAccess
from s3verbs.rdma.fabric import RegisteredBuffer
from s3verbs.rdma.samehost.mappings import FileMappings
from s3verbs.rdma.samehost.process_memory import AddressSpace, join_barrier
from s3verbs.rdma.samehost.table import BeingWritten, InFlight, Region, SessionRecord, SessionTable
from s3verbs.rdma.samehost.threads import CopyThreads, Step
from s3verbs.rdma.settle import outlast
from s3verbs.rdma.token import Token, Transport

COPY_THREADS = 4
"""More than copy one range at a time: a client can make its memory slow, and others should still be served."""

CALL_BYTES = 4 << 20
"""The most that one system call moves: a client that unregisters waits for no more than that."""

PATIENCE = 5.0
"""Seconds that a request waits for the parent to come to the end of what it writes into the table."""
PAUSE = 0.001


@dataclass(slots=True, eq=False)
class _Client:
    """A session that this worker has opened; `leases`: regions of requests that use it."""

    record: SessionRecord
    space: AddressSpace
    leases: int = 0
    dropped: bool = False


class SameHostFabric:
    """Implements `rdma.fabric.Fabric`. System calls run on `threads` threads of its own: a client can make one on its
    memory wait (a mapping of a file system that it serves itself, a frozen drive), and then only same-host requests
    wait.
    """

    def __init__(self, table: SessionTable, worker: int, threads: int = COPY_THREADS) -> None:
        """In the worker, after the fork; `worker` is its number in the table."""
        join_barrier()
        self._table = table
        self._threads = CopyThreads(threads)
        self._in_flight = InFlight(table, worker)
        self._clients: dict[bytes, _Client] = {}
        self.mappings = FileMappings()
        self.copying = 0
        """Ranges of files that are being copied."""

    @property
    def transports(self) -> frozenset[Transport]:
        return frozenset({Transport.SAMEHOST})

    @property
    def connections(self) -> int:
        """None: it has no queue pairs."""
        return 0

    async def open(self, token: Token) -> "SameHostRegion":
        """Raises Declined (NO_SESSION, NOT_PERMITTED, NO_TRANSPORT), RemoteAccess when the range is not inside one
        region of the session."""
        if token.transport is not Transport.SAMEHOST:
            raise Declined(Decline.NO_TRANSPORT)
        try:
            client = self._client(token.secret)
        except BeingWritten:
            client = await self._client_later(token.secret)
        region = client.record.find(token.address, token.size)
        if region is None:
            raise RemoteAccess(f"{token!r} is not inside a region of its session")
        return SameHostRegion(self, client, region, token)

    def describe(self) -> str:
        return f"same host: process_vm_readv, process_vm_writev, up to {self._table.sessions} sessions"

    async def close(self) -> None:
        """After the last request: no region is open."""
        self._threads.close()
        self.mappings.close()
        for id in list(self._clients):
            self._drop(id)

    async def _client_later(self, id: bytes) -> _Client:
        """When the parent has written. Raises Declined."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        while loop.time() < until:
            await asyncio.sleep(PAUSE)
            with suppress(BeingWritten):
                return self._client(id)
        raise Declined(Decline.NO_SESSION, "the server's parent process does not run")

    def _client(self, id: bytes) -> _Client:
        """Raises Declined, BeingWritten."""
        table = self._table
        if not table.supervised:
            raise Declined(Decline.NO_SESSION, "the server's parent process is gone")
        client = self._clients.get(id)
        if client is not None and table.sequence(client.record.slot) == client.record.sequence:
            return client
        record = table.session(id)
        if record is None:
            self._drop(id)
            raise Declined(Decline.NO_SESSION)
        if client is not None:
            client.record = record
            return client
        self._drop_ended()
        try:
            client = _Client(record, AddressSpace(record.identity, record.uid))
        except ProcessLookupError as error:
            raise Declined(Decline.NO_SESSION, str(error)) from None
        except PermissionError as error:
            raise Declined(Decline.NOT_PERMITTED, str(error)) from None
        except OSError as error:
            raise Declined(Decline.NO_CONNECTION, str(error)) from None
        self._clients[id] = client
        return client

    def _drop_ended(self) -> None:
        for id in [id for id in self._clients if not self._table.lives(id)]:
            self._drop(id)

    def _drop(self, id: bytes) -> None:
        client = self._clients.pop(id, None)
        if client is not None:
            client.dropped = True
            if not client.leases:
                client.space.close()


class SameHostRegion:
    """Implements `rdma.fabric.RemoteRegion`. `place` and `move` are for the fabric's threads."""

    transport = Transport.SAMEHOST
    device = ""

    def __init__(self, fabric: SameHostFabric, client: _Client, region: Region, token: Token) -> None:
        self.fabric = fabric
        self._table = fabric._table
        self._in_flight = fabric._in_flight
        self._threads = fabric._threads
        self._client = client
        self._region = region
        self._id = token.secret
        self._address = token.address
        self._size = token.size
        self._moved = False
        self._closed = False
        self._running = 0
        self._quiet: asyncio.Future[None] | None = None
        client.leases += 1

    @property
    def size(self) -> int:
        return self._size

    async def read(self, offset: int, into: RegisteredBuffer, length: int) -> None:
        self._check(offset, length, into.view.nbytes)
        await self.run(functools.partial(self.move, self._client.space.read, offset, into.address, length))

    async def write(self, offset: int, data: RegisteredBuffer, length: int, start: int = 0) -> None:
        if start < 0:
            raise ValueError(f"start {start}")
        self._check(offset, length, data.view.nbytes - start)
        write = self._client.space.write
        await self.run(functools.partial(self.move, write, offset, data.address + start, length))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._running:
            self._quiet = asyncio.get_running_loop().create_future()
            await outlast(self._quiet)
        self._client.leases -= 1
        if self._client.dropped and not self._client.leases:
            self._client.space.close()

    async def run(self, step: Step, *, threads: int = 1, stop: Step = lambda: None) -> None:
        """Await work that uses this region, as CopyThreads.run: when it returns or raises no thread uses the caller's
        buffers."""
        if self._closed:
            raise ValueError("the region is closed")
        self._running += 1
        try:
            await self._threads.run(step, threads=threads, stop=stop)
        finally:
            self._running -= 1
            if not self._running and self._quiet is not None:
                self._quiet.set_result(None)

    def place(self, offset: int, local: int, length: int) -> None:
        """`length` bytes at our address `local` -> client memory at `offset`."""
        self._check(offset, length, length)
        self.move(self._client.space.write, offset, local, length)

    def move(self, call: Callable[[int, int, int], int], offset: int, local: int, length: int) -> None:
        """Raises as RemoteRegion's `read` and `write` do."""
        done = 0
        while done < length:
            slot = self._in_flight.announce(self._region)
            try:
                # In this order: see the table's head.
                if not self._table.supervised or not self._table.holds(self._id, self._region):
                    raise self._taken_away()
                done += call(self._address + offset + done, local + done, min(CALL_BYTES, length - done))
                self._moved = True
            except OSError as error:
                raise self._translated(error) from None
            finally:
                self._in_flight.clear(slot)

    def _taken_away(self) -> RdmaError:
        if self._table.supervised and self._table.lives(self._id):
            return RemoteAccess("the client has unregistered the memory")
        return self._gone("the session has ended")

    def _gone(self, text: str) -> RdmaError:
        return PeerUnreachable(Failure.CONNECTION_LOST, text) if self._moved else Declined(Decline.NO_SESSION, text)

    def _translated(self, error: OSError) -> RdmaError:
        if error.errno == errno.ESRCH:
            return self._gone(str(error))
        if error.errno in (errno.EPERM, errno.EACCES) and not self._moved:
            return Declined(Decline.NOT_PERMITTED, str(error))
        if error.errno == errno.EFAULT:
            return RemoteAccess("the client's memory is not mapped, or not writable")
        return PeerUnreachable(Failure.CONNECTION_LOST, str(error))

    def _check(self, offset: int, length: int, room: int) -> None:
        if offset < 0 or length < 0 or length > room or offset + length > self._size:
            raise ValueError(f"[{offset}, {offset + length}) of {self._size} bytes, through {room}")
