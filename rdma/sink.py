"""GET: bytes of memory and of files to a client's memory, by RDMA WRITE."""

import asyncio
import concurrent.futures
from collections.abc import Hashable
from concurrent.futures import Executor

from s3verbs.rdma.errors import RemoteAccess
from s3verbs.rdma.fabric import CHUNK, RemoteRegion
from s3verbs.rdma.file_reads import ALIGNMENT, FileReads
from s3verbs.rdma.settle import finished
from s3verbs.rdma.staging import StagingBuffer, StagingPool


class _Piece:
    """A run of bytes on its way: `view[begin : begin + count]` of `buffer`, filled by `read` when that is not None."""

    __slots__ = ("begin", "buffer", "count", "job", "read", "task")

    def __init__(self, buffer: StagingBuffer, begin: int, count: int) -> None:
        self.buffer = buffer
        self.begin = begin
        self.count = count
        self.job: concurrent.futures.Future[None] | None = None
        self.read: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None

    def running(self) -> list["asyncio.Future[None]"]:
        """What still uses the buffer."""
        return [each for each in (self.read, self.task) if each is not None and not each.done()]

    def stop(self) -> None:
        """A read that a thread has begun goes on."""
        if self.job is not None:
            self.job.cancel()
        if self.task is not None:
            self.task.cancel()


class StagedSink:
    """A PayloadSink: what is sent lands in `region`, from its first byte on.

    Up to `depth` pieces, each in a buffer of its own, are read from a file or written to the client at a time; they
    land in any order. For the first the sink waits in the pool's queue; the others use buffers that nobody waits for.
    `peer` is the key that the pool shares buffers by.

    After an error, which is that of the piece that failed first, or a cancellation of `send`, `send_file` or `finish`,
    nothing is on its way, every buffer is back, and later calls raise. `close` is due in any case. The region stays
    the caller's. Loop thread only.
    """

    def __init__(
        self, region: RemoteRegion, pool: StagingPool, executor: Executor, *, depth: int = 4, peer: Hashable = None
    ) -> None:
        self.moved = 0
        """Bytes that are in the client's memory."""
        self._region = region
        self._pool = pool
        self._executor = executor
        self._depth = max(1, depth)
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._position = 0
        self._pieces: set[_Piece] = set()
        self._reading = 0
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def committed(self) -> bool:
        """Never: the client looks at its memory only when the response says so."""
        return False

    async def start(self, head: bytes) -> None:
        """The response head is made when everything has moved; this one is dropped."""

    async def send(self, data: bytes) -> None:
        """Returns when `data` is copied; it may still be on its way. Raises RemoteAccess when it does not fit into the
        region, what the region's `write` raises, Declined(NO_BUFFER)."""
        self._check_room(len(data))
        view = memoryview(data)
        try:
            for begin in range(0, len(view), CHUNK):
                part = view[begin : begin + CHUNK]
                piece = _Piece(await self._next_buffer(), 0, len(part))
                piece.buffer.view[: len(part)] = part
                self._write(piece)
        except BaseException as error:
            await self._stop(error)
            raise

    async def send_file(self, fd: int, offset: int, length: int) -> None:
        """Returns when `fd` is not used any more; the last bytes may still be on their way to the client. Raises what
        `send` raises, EOFError, OSError."""
        self._check_room(length)
        file = FileReads(fd)
        try:
            end = offset + length
            while offset < end:
                # Only the first piece begins off an aligned offset.
                skipped = offset % ALIGNMENT
                count = min(CHUNK - skipped, end - offset)
                self._send_piece(file, offset - skipped, _Piece(await self._next_buffer(), skipped, count))
                offset += count
                # The write begins before the next piece is read.
                await asyncio.sleep(0)
            while self._reading:
                await self._change()
            self._check_failure()
        except BaseException as error:
            await self._stop(error)
            raise
        finally:
            file.close()

    async def finish(self) -> None:
        """On return every byte is in the client's memory. Raises what `send` and `send_file` raise."""
        try:
            while self._pieces:
                await self._change()
            self._check_failure()
        except BaseException as error:
            await self._stop(error)
            raise

    async def close(self) -> None:
        """Stop what is on its way; on return nothing is, and every buffer is back. When cancelled, it does its work
        all the same before it raises CancelledError."""
        await self._stop(RuntimeError("the sink is closed"))

    def _check_room(self, length: int) -> None:
        self._check_failure()
        if length > self._region.size - self._position:
            raise RemoteAccess(f"{self._position + length} bytes do not fit into a region of {self._region.size}")

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _change(self) -> None:
        """Wait until a read or a write is over. Raises the first failure."""
        self._check_failure()
        self._changed.clear()
        await self._changed.wait()
        self._check_failure()

    async def _next_buffer(self) -> StagingBuffer:
        self._check_failure()
        while self._pieces:
            buffer = self._pool.try_acquire(self._peer) if len(self._pieces) < self._depth else None
            if buffer is not None:
                return buffer
            await self._change()
        buffer = await self._pool.acquire(self._peer)
        if self._failure is not None:
            self._pool.release(buffer)
            raise self._failure
        return buffer

    def _send_piece(self, file: FileReads, offset: int, piece: _Piece) -> None:
        """Fill the piece from the file, whose byte `offset` belongs at the beginning of the buffer, and write it."""
        view, end = piece.buffer.view, piece.begin + piece.count
        have = piece.begin + file.cached(view, offset, piece.begin, end)
        if have < end:
            file.prepare()
            try:
                piece.job = self._executor.submit(file.read, view, offset, have, end)
            except BaseException:
                self._pool.release(piece.buffer)
                raise
            piece.read = asyncio.wrap_future(piece.job, loop=self._loop)
            self._reading += 1
            piece.read.add_done_callback(lambda read: self._read_over(piece, read))
        self._write(piece)

    def _write(self, piece: _Piece) -> None:
        piece.task = self._loop.create_task(self._move(piece, self._position))
        piece.task.add_done_callback(lambda task: self._piece_over(piece, task))
        self._pieces.add(piece)
        self._position += piece.count

    async def _move(self, piece: _Piece, position: int) -> None:
        if piece.read is not None:
            # A thread cannot be cancelled; whoever stops the piece waits for it.
            await asyncio.shield(piece.read)
        await self._region.write(position, piece.buffer, piece.count, start=piece.begin)
        self.moved += piece.count

    def _read_over(self, piece: _Piece, read: "asyncio.Future[None]") -> None:
        self._reading -= 1
        self._piece_over(piece, read)

    def _piece_over(self, piece: _Piece, part: "asyncio.Future[None]") -> None:
        failure = asyncio.CancelledError() if part.cancelled() else part.exception()
        if self._failure is None:
            self._failure = failure
        self._release(piece)
        self._changed.set()

    def _release(self, piece: _Piece) -> None:
        if piece in self._pieces and not piece.running():
            self._pieces.discard(piece)
            self._pool.release(piece.buffer)

    async def _stop(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error if isinstance(error, Exception) else RuntimeError("the sink was stopped")
        for piece in self._pieces:
            piece.stop()
        try:
            await finished([each for piece in self._pieces for each in piece.running()])
        finally:
            # A callback may be due only in the loop's next turn.
            for piece in tuple(self._pieces):
                self._release(piece)
