"""The bounded pool of page-aligned buffers through which payloads move."""

import asyncio
import mmap
from collections import deque

from s3verbs.gateway.errors import S3Error
from s3verbs.storage.model import BLOCK_SIZE


class Buffer:
    """`view` is BLOCK_SIZE bytes, page-aligned. Owned by whoever acquired it until it is released."""

    __slots__ = ("memory", "view")

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, BLOCK_SIZE)
        self.view = memoryview(self.memory)


class BufferPool:
    """At most `count` buffers, made when first needed. Waiters are served in order. Loop thread only."""

    def __init__(self, count: int, *, patience: float = 10.0) -> None:
        self._left = count
        self._idle: list[Buffer] = []
        self._waiters: deque[asyncio.Future[Buffer]] = deque()
        self._patience = patience

    async def acquire(self) -> Buffer:
        """A buffer; waits behind those who came before. Raises S3Error SlowDown when none comes free in time."""
        buffer = self.try_acquire()
        if buffer is not None:
            return buffer
        waiter: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait((waiter,), timeout=self._patience)
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise
        if waiter.done():
            return waiter.result()
        self._give_up(waiter)
        raise S3Error("SlowDown", "No payload buffer came free in time.")

    def try_acquire(self) -> Buffer | None:
        """A buffer if one is free and nobody waits for it."""
        if self._waiters:
            return None
        if self._idle:
            return self._idle.pop()
        if self._left:
            self._left -= 1
            return Buffer()
        return None

    def release(self, buffer: Buffer) -> None:
        """Give it back; no thread may still use it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(buffer)
                return
        self._idle.append(buffer)

    def _give_up(self, waiter: asyncio.Future[Buffer]) -> None:
        if waiter.done():
            self.release(waiter.result())
        else:
            waiter.cancel()
            self._waiters.remove(waiter)

    @property
    def idle(self) -> int:
        """Buffers that nobody holds."""
        return len(self._idle) + self._left
