"""The event loop's half of an RC connection: reads, writes, and what ends them."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from s3verbs.rdma.errors import Failure, RemoteAccess
from s3verbs.rdma.verbs.attributes import Completion, LocalSpan
from s3verbs.rdma.verbs.completion import failure_of
from s3verbs.rdma.verbs.constants import CompletionStatus
from s3verbs.rdma.verbs.errors import ConnectionLost, VerbsError
from s3verbs.rdma.verbs.opened_device import DEPTH, OpenedDevice

_log = logging.getLogger(__name__)

GRACE = 2.0
"""Seconds that an abandoned transfer gets to end by itself: one chunk takes far less, and the connection lives on."""

FLUSH = 1.0
"""Seconds for the completions of a queue pair in ERR. After that it is destroyed without waiting for them."""


class Posts(Protocol):
    def post_read(self, work: int, local: LocalSpan, remote: int, rkey: int) -> None: ...
    def post_write(self, work: int, local: LocalSpan, remote: int, rkey: int) -> None: ...


class AnyLink(Protocol):
    """What `rc_link.Link` gives."""

    @property
    def queue_pair(self) -> Posts: ...
    def fileno(self) -> int: ...
    def ended(self) -> bool: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Connection:
    """One queue pair to one client process. Loop thread only.

    A transfer's buffer is untouched after `read` or `write` has ended, however it ended: its work request has
    completed, was flushed, or its queue pair is destroyed. Where not even that can be made sure the call does not end,
    and its buffer stays out of use.
    """

    def __init__(
        self,
        link: AnyLink,
        device: OpenedDevice,
        executor: Executor,
        *,
        on_end: Callable[["Connection"], None] = lambda _: None,
    ) -> None:
        """Takes over the link, and the room that was taken for it at the device. `on_end` is called once, when no more
        transfers can start."""
        self.device = device
        self.leases = 0
        self._link = link
        self._executor = executor
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(DEPTH)
        self._posted: dict[int, asyncio.Future[Completion]] = {}
        self._ended: Failure | None = None
        self._closing: asyncio.Task[None] | None = None
        self._loop.add_reader(link.fileno(), self._event)

    @property
    def usable(self) -> bool:
        return self._ended is None

    async def read(self, local: LocalSpan, remote: int, rkey: int, deadline: float) -> None:
        """Peer memory at `remote` -> `local`. `deadline` is in loop time. Raises RemoteAccess, ConnectionLost."""
        await self._transfer(self._link.queue_pair.post_read, local, remote, rkey, deadline)

    async def write(self, local: LocalSpan, remote: int, rkey: int, deadline: float) -> None:
        """`local` -> peer memory at `remote`; as `read`."""
        await self._transfer(self._link.queue_pair.post_write, local, remote, rkey, deadline)

    async def _transfer(
        self,
        post: Callable[[int, LocalSpan, int, int], None],
        local: LocalSpan,
        remote: int,
        rkey: int,
        deadline: float,
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise ConnectionLost(Failure.TIMEOUT, "no free place in the send queue in time") from None
        try:
            if self._ended is not None:
                raise ConnectionLost(self._ended, "the connection has ended")
            work, future = self.device.completions.begin()
            try:
                post(work, local, remote, rkey)
            except VerbsError as error:
                self.device.completions.forget(work)
                self.end(Failure.CONNECTION_LOST)
                raise ConnectionLost(Failure.CONNECTION_LOST, f"posting failed: {error}") from error
            self._posted[work] = future
            try:
                await self._completed(future, deadline)
            finally:
                del self._posted[work]
        finally:
            self._slots.release()
        self._judge(future.result())

    async def _completed(self, future: asyncio.Future[Completion], deadline: float) -> None:
        """Until the future is done, whatever happens; then the cancellation that came meanwhile."""
        try:
            await asyncio.wait((future,), timeout=max(0.0, deadline - self._loop.time()))
        except asyncio.CancelledError:
            await self._settle(future, GRACE)
            raise
        if not future.done():
            self.end(Failure.TIMEOUT)
            await self._settle(future, 0.0)

    async def _settle(self, future: asyncio.Future[Completion], grace: float) -> None:
        """Further cancellations wait too: the caller reuses the buffer as soon as this returns."""
        cancelled = False
        give_up = self._loop.time() + grace
        while not future.done():
            left = give_up - self._loop.time()
            if left <= 0:
                self.end(Failure.CONNECTION_LOST)
            try:
                await asyncio.wait((future,), timeout=left if left > 0 else None)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    def _judge(self, completion: Completion) -> None:
        if completion.status is CompletionStatus.SUCCESS:
            return
        text = f"{completion.status.name} on {self.device.name}"
        # The status of one work request ends the queue pair; those behind it are flushed.
        reason = failure_of(completion.status)
        already = self._ended
        self.end(Failure.CONNECTION_LOST)
        if reason is Failure.REMOTE_ACCESS:
            raise RemoteAccess(text)
        raise ConnectionLost(already or reason, text)

    def _event(self) -> None:
        if self._link.ended():
            self.end(Failure.CONNECTION_LOST)

    def end(self, reason: Failure) -> None:
        """No more transfers start; those in progress end soon, as flushed. Idempotent."""
        if self._ended is not None:
            return
        self._ended = reason
        self._loop.remove_reader(self._link.fileno())
        self._link.abort()
        self._on_end(self)
        self._closing = self._loop.create_task(self._take_down(), name="close an RC connection")

    async def close(self) -> None:
        """End it, and wait until everything of it is freed. Cancelling the wait does not stop that."""
        self.end(Failure.CONNECTION_LOST)
        assert self._closing is not None
        await asyncio.shield(self._closing)

    async def _take_down(self) -> None:
        if self._posted:
            await asyncio.wait(list(self._posted.values()), timeout=FLUSH)
        try:
            await self._loop.run_in_executor(self._executor, self._link.close)
        except VerbsError as error:
            # The device may still write. Those who wait for their buffers keep waiting.
            _log.critical("a queue pair of %s could not be destroyed: %s", self.device.name, error)
            return
        self.device.give()
        for work in list(self._posted):
            self.device.completions.flushed(work)
