"""DC: dynamic connections, for the tokens of cuObject and NIXL. mlx5 only. It has not run on hardware: its calls are
checked against a model of pyverbs and of what the mlx5 driver accepts.

An error flushes what is posted behind it, and a silent peer stops what is posted behind it. So an initiator has work
requests for one target at a time, and a target has one initiator: a client's fault stays the client's. Chunks wait for
initiators in order; while one waits for an initiator of its own, no other joins a busy one.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs.api import AddressHandle
from s3verbs.rdma.verbs.attributes import LocalSpan
from s3verbs.rdma.verbs.chunk_region import ChunkRegion
from s3verbs.rdma.verbs.dc_link import AddressHandles, DcLink, Manner, Target, reason
from s3verbs.rdma.verbs.device import Rail
from s3verbs.rdma.verbs.errors import ConnectionLost, VerbsError
from s3verbs.rdma.verbs.opened_device import DEPTH, OpenedDevice
from s3verbs.rdma.verbs.rc import Connection

_Step = TypeVar("_Step")

INITIATORS = 8
"""Of one rail in one process: so many clients are served at a time, each with DEPTH chunks."""

HANDLES = 256
"""Idle address handles that a rail keeps."""

SHUN = 5.0
"""Seconds for which a peer that did not resolve is not tried again: trying holds the interpreter's lock."""

_MOST_SHUNNED = 1024


@dataclass(slots=True, eq=False)
class _Seat:
    """A place for one initiator. `target` is whose chunks it has; it changes only when there are none (`users` 0).
    `aimed` is the target of the link, whose address handle the seat holds."""

    target: Target | None = None
    users: int = 0
    connection: Connection | None = None
    link: DcLink | None = None
    aimed: Target | None = None
    making: "asyncio.Task[Connection] | None" = None


class DcRail:
    """The initiators of one rail. Loop thread only."""

    def __init__(
        self,
        rail: Rail,
        device: OpenedDevice,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        manner: Manner,
        *,
        transfer_timeout: float,
        initiators: int = INITIATORS,
        handles: int = HANDLES,
    ) -> None:
        """`device` outlives this, and has room for that many queue pairs. `loop` need not run yet. `transfer_timeout`:
        seconds for one chunk, with its retry."""
        self.rail = rail
        self.device = device
        self.transfer_timeout = transfer_timeout
        self._executor = executor
        self._manner = manner
        self._loop = loop
        self._handles = AddressHandles(device, rail, manner, handles)
        self._resolving: dict[bytes, asyncio.Task[None]] = {}
        self._shunned: dict[bytes, float] = {}
        self._seats = [_Seat() for _ in range(initiators)]
        self._waiters: deque[tuple[Target, asyncio.Future[_Seat]]] = deque()

    def open(self, token: Token) -> "DcRegion":
        """Raises Declined for another transport, and for a token without a GID."""
        if token.transport is not Transport.DC:
            raise Declined(Decline.NO_TRANSPORT)
        if token.gid is None:
            raise Declined(Decline.NO_ROUTE, "the token has no GID")
        return DcRegion(self, token, Target(token.gid, token.qp))

    @property
    def busy(self) -> int:
        """Initiators that have chunks."""
        return sum(seat.users > 0 for seat in self._seats)

    @property
    def waiting(self) -> int:
        """Chunks that wait for an initiator."""
        return sum(not future.done() for _, future in self._waiters)

    async def close(self) -> None:
        """After the last region. Never raises."""
        tasks = [*self._resolving.values(), *(seat.making for seat in self._seats if seat.making is not None)]
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(seat.connection.close() for seat in self._seats if seat.connection is not None))
        self._handles.close()

    async def move(
        self, target: Target, local: LocalSpan, remote: int, rkey: int, deadline: float, *, read: bool
    ) -> None:
        """One chunk. `deadline` is in loop time. Nothing touches the local bytes when this has ended, however it ended.
        Raises RemoteAccess; ConnectionLost, after which another try may do; PeerUnreachable."""
        # Resolved first: a peer that nobody knows keeps no initiator from others.
        await self._in_time(self._resolve(target.gid), deadline)
        async with self._sitting(target, deadline) as seat:
            connection = await self._in_time(self._aimed(seat, target), deadline)
            await (connection.read if read else connection.write)(local, remote, rkey, deadline)

    @staticmethod
    async def _in_time(step: Coroutine[Any, Any, _Step], deadline: float) -> _Step:
        try:
            async with asyncio.timeout_at(deadline):
                return await step
        except TimeoutError:
            raise ConnectionLost(Failure.TIMEOUT, "no address or no DC initiator in time") from None

    # -- seats --

    @asynccontextmanager
    async def _sitting(self, target: Target, deadline: float) -> AsyncIterator[_Seat]:
        """A place in the send queue of an initiator for this target, for the time of the block."""
        future: asyncio.Future[_Seat] = self._loop.create_future()
        self._waiters.append((target, future))
        self._serve()
        try:
            await asyncio.wait((future,), timeout=max(0.0, deadline - self._loop.time()))
            if not future.done():
                raise ConnectionLost(Failure.TIMEOUT, "no DC initiator came free in time")
            yield future.result()
        finally:
            if future.done():
                future.result().users -= 1
            else:
                self._waiters.remove((target, future))
            self._serve()

    def _serve(self) -> None:
        left: deque[tuple[Target, asyncio.Future[_Seat]]] = deque()
        short = False
        while self._waiters:
            target, future = self._waiters.popleft()
            seat = self._seat_of(target)
            if seat is None:
                seat = self._free_seat(target)
                if seat is None:
                    short = True
            elif short or seat.users >= DEPTH:
                seat = None
            if seat is None:
                left.append((target, future))
                continue
            seat.target = target
            seat.users += 1
            future.set_result(seat)
        self._waiters = left

    def _seat_of(self, target: Target) -> _Seat | None:
        return next((seat for seat in self._seats if seat.users and seat.target == target), None)

    def _free_seat(self, target: Target) -> _Seat | None:
        """Best one that is aimed there already, then one that has an initiator."""
        free = [seat for seat in self._seats if not seat.users]
        return min(free, key=lambda seat: (seat.aimed != target, seat.connection is None), default=None)

    # -- initiators and address handles --

    async def _aimed(self, seat: _Seat, target: Target) -> Connection:
        while True:
            connection = await self._initiator(seat)
            await self._resolve(target.gid)
            # Nothing is awaited from here on: the seat's users all have this target.
            if seat.aimed == target:
                return connection
            if connection is seat.connection and seat.link is not None:
                handle = self._handles.take(target.gid)
                if handle is not None:
                    self._let_go(seat)
                    seat.link.aim(handle, target.number)
                    seat.aimed = target
                    return connection

    def _let_go(self, seat: _Seat) -> None:
        if seat.aimed is not None:
            self._handles.give(seat.aimed.gid)
            seat.aimed = None

    async def _initiator(self, seat: _Seat) -> Connection:
        if seat.making is None:
            if seat.connection is not None and seat.connection.usable:
                return seat.connection
            seat.making = self._loop.create_task(self._make(seat), name="make a DC initiator")
            seat.making.add_done_callback(_seen)
        # Others wait for it too, and who began it may be cancelled.
        return await asyncio.shield(seat.making)

    async def _make(self, seat: _Seat) -> Connection:
        try:
            if seat.connection is not None:
                await seat.connection.close()
                self._let_go(seat)
                seat.connection = seat.link = None
            if not self.device.take():
                raise ConnectionLost(Failure.CONNECTION_LOST, f"{self.rail.device} has no room for a queue pair")
            try:
                seat.link = await self._loop.run_in_executor(
                    self._executor, DcLink.make, self.device, self.rail, self._manner
                )
            except VerbsError as error:
                self.device.give()
                raise ConnectionLost(Failure.CONNECTION_LOST, f"no DC initiator: {reason(error)}") from error
            seat.connection = Connection(seat.link, self.device, self._executor)
            return seat.connection
        finally:
            seat.making = None

    async def _resolve(self, gid: bytes) -> None:
        """Until there is an address handle. Raises PeerUnreachable."""
        if self._handles.has(gid):
            return
        if self._shunned.get(gid, 0.0) > self._loop.time():
            raise PeerUnreachable(Failure.UNREACHABLE, "the peer did not resolve a moment ago")
        task = self._resolving.get(gid)
        if task is None:
            task = self._resolving[gid] = self._loop.create_task(self._make_handle(gid), name="resolve a GID")
            task.add_done_callback(_seen)
        await asyncio.shield(task)

    async def _make_handle(self, gid: bytes) -> None:
        try:
            handle: AddressHandle = await self._loop.run_in_executor(self._executor, self._handles.make, gid)
        except VerbsError as error:
            self._shun(gid)
            raise PeerUnreachable(Failure.UNREACHABLE, f"no address handle: {reason(error)}") from error
        finally:
            del self._resolving[gid]
        self._shunned.pop(gid, None)
        self._handles.add(gid, handle)

    def _shun(self, gid: bytes) -> None:
        self._shunned.pop(gid, None)
        self._shunned[gid] = self._loop.time() + SHUN
        while len(self._shunned) > _MOST_SHUNNED:
            del self._shunned[next(iter(self._shunned))]


def _seen(task: "asyncio.Task[Any]") -> None:
    """Who waited for it may be gone; its error is no news then."""
    if not task.cancelled():
        task.exception()


class DcRegion(ChunkRegion):
    """A client's buffer, by DC. A RemoteRegion."""

    def __init__(self, rail: DcRail, token: Token, target: Target) -> None:
        super().__init__(token)
        self._rail = rail
        self._target = target

    @property
    def transport(self) -> Transport:
        return Transport.DC

    @property
    def device(self) -> str:
        return self._rail.rail.device

    async def _transfer(self, offset: int, address: int, length: int, *, read: bool) -> None:
        local = self._rail.device.arena.span(address, length)
        remote = self._token.address + offset
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._rail.transfer_timeout
        try:
            try:
                await self._rail.move(self._target, local, remote, self._token.rkey, deadline, read=read)
            except ConnectionLost:
                # Its initiator was lost, to a silent peer or to another chunk's error. The next one is new.
                if loop.time() >= deadline:
                    raise
                await self._rail.move(self._target, local, remote, self._token.rkey, deadline, read=read)
        except ConnectionLost as lost:
            reason = Failure.TIMEOUT if loop.time() >= deadline else lost.reason
            raise PeerUnreachable(reason, str(lost)) from lost
