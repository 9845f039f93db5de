"""PUT: a payload from a client's memory, by RDMA READ."""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

from s3verbs.rdma.errors import Declined
from s3verbs.rdma.fabric import CHUNK, RemoteRegion
from s3verbs.rdma.settle import finished
from s3verbs.rdma.staging import StagingBuffer, StagingPool


class StagedChunk:
    """`view` is the caller's until `release`; no thread may use it after that. A second `release` does nothing."""

    __slots__ = ("_buffer", "_pool", "view")

    def __init__(self, buffer: StagingBuffer, count: int, pool: StagingPool) -> None:
        self.view = buffer.view[:count]
        self._buffer: StagingBuffer | None = buffer
        self._pool = pool

    def release(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.release(buffer)


class _Read(NamedTuple):
    task: "asyncio.Task[None]"
    buffer: StagingBuffer
    size: int


class RdmaSource:
    """A ChunkSource: the first `length` bytes of `region`, in order, in chunks of CHUNK bytes.

    Up to `depth` chunks are on their way. For the first of them `next` waits in the pool's queue; the others use
    buffers that nobody waits for. So a caller should release a chunk as soon as it has no more use for it, not after
    the next one has come: with every buffer in such a caller's hands, all would wait for each other until the pool
    declines. `peer` is the key that the pool shares buffers by. The region stays the caller's. Loop thread only.
    """

    def __init__(
        self, region: RemoteRegion, length: int, pool: StagingPool, *, depth: int = 4, peer: Hashable = None
    ) -> None:
        if not 0 <= length <= region.size:
            raise ValueError(f"a payload of {length} bytes does not fit into a region of {region.size}")
        self._region = region
        self._length = length
        self._pool = pool
        self._depth = max(1, depth)
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._begun = 0
        self._reads: deque[_Read] = deque()
        self._closed = False

    @property
    def length(self) -> int:
        return self._length

    async def next(self) -> StagedChunk | None:
        """The next chunk, None after the last. Raises what the region's `read` of this chunk raised, and
        Declined(NO_BUFFER); then nothing is on its way any more and the source is dead. When cancelled, it is not:
        `close` is still due."""
        if self._closed:
            raise RuntimeError("the source is closed")
        if not self._reads:
            if self._begun == self._length:
                return None
            await self._begin_first()
        self._read_ahead()
        read = self._reads[0]
        await asyncio.wait((read.task,))
        if self._closed:
            raise RuntimeError("the source was closed meanwhile")
        try:
            read.task.result()
        except BaseException:
            await self.close()
            raise
        self._reads.popleft()
        self._read_ahead()
        return StagedChunk(read.buffer, read.size, self._pool)

    async def close(self) -> None:
        """As the port says. When cancelled, it does its work all the same before it raises CancelledError."""
        self._closed = True
        for read in self._reads:
            read.task.cancel()
        try:
            await finished([read.task for read in self._reads])
        finally:
            while self._reads:
                self._pool.release(self._reads.popleft().buffer)

    async def _begin_first(self) -> None:
        try:
            buffer = await self._pool.acquire(self._peer)
        except Declined:
            self._closed = True
            raise
        if self._closed:
            self._pool.release(buffer)
            raise RuntimeError("the source was closed meanwhile")
        self._begin(buffer)

    def _read_ahead(self) -> None:
        while len(self._reads) < self._depth and self._begun < self._length:
            buffer = self._pool.try_acquire(self._peer)
            if buffer is None:
                return
            self._begin(buffer)

    def _begin(self, buffer: StagingBuffer) -> None:
        count = min(CHUNK, self._length - self._begun)
        task = self._loop.create_task(self._region.read(self._begun, buffer, count))
        self._reads.append(_Read(task, buffer, count))
        self._begun += count
