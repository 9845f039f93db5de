"""The payload loops: `ingest` (source -> storage) and `deliver` (storage -> sink), and what they take.

A source that brings buffers of its own has a loop in `chunk_ingest`. Digests of payloads are computed only in these
loops, in one pass, on an executor thread while the next buffer fills.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from s3verbs.gateway.buffers import Buffer, BufferPool
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.storing import Storing, settle
from s3verbs.storage.model import BLOCK_SIZE, INLINE_LIMIT, Durability, Payload
from s3verbs.storage.objects import ObjectReader
from s3verbs.storage.payload import PayloadWriter

FIRST_BYTES = 4096
"""What may come of a payload before it gets a buffer."""


class PayloadSource(Protocol):
    """Where a payload comes from: an HTTP body, an RDMA READ, another object.

    `length` is the number of payload bytes that will come (decoded, for aws-chunked). `trailers` is complete once
    `receive` has returned 0: lower-case names.
    """

    length: int

    @property
    def trailers(self) -> Mapping[str, str]: ...

    async def receive(self, into: memoryview) -> int:
        """Fill some of `into`; the count of bytes, 0 at the end. Raises S3Error on a malformed, short or
        wrongly signed stream; after that the source is dead."""


class Chunk(Protocol):
    """`view` is the caller's until `release`; no thread may use it after that."""

    @property
    def view(self) -> memoryview: ...

    def release(self) -> None: ...


class ChunkSource(Protocol):
    """A payload that comes in buffers of its own, several of them on their way at a time: RDMA READ.

    `length` as in PayloadSource. Every chunk but the last has BLOCK_SIZE bytes.
    """

    @property
    def length(self) -> int: ...

    async def next(self) -> Chunk | None:
        """The next chunk in order, None after the last. Raises RdmaError; after that the source is dead."""

    async def close(self) -> None:
        """Stop what is on its way. On return nothing is, and every chunk that was not handed out is released."""


class PayloadSink(Protocol):
    """Where an object's bytes go. `committed` is set once the client may have seen a byte: an error after that cannot
    become an S3 error any more."""

    @property
    def committed(self) -> bool: ...

    async def start(self, head: bytes) -> None:
        """Take the response head; it may be sent together with the first bytes."""

    async def send(self, data: bytes) -> None:
        """Send bytes; waits while the client is slow."""

    async def send_file(self, fd: int, offset: int, length: int) -> None:
        """Send [offset, offset + length) of a file; `fd` stays the caller's and is not used after the return, however
        this ends. Raises EOFError when the file is shorter."""

    async def finish(self) -> None:
        """Everything is handed over."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """A payload that is in storage but not yet published: the caller owns it and must publish or reclaim it.

    `md5` is the raw MD5 of the bytes, or None where it was not asked for; `digests` maps S3 algorithm names to raw
    digests (big-endian for CRCs) and holds all that were asked for, CRC64NVME always.
    """

    length: int
    payload: Payload
    md5: bytes | None
    digests: Mapping[str, bytes]
    trailers: Mapping[str, str]


class Ingest(Protocol):
    """Read the request's payload into storage. Bound to a request by `datapath`."""

    async def __call__(
        self,
        *,
        algorithms: frozenset[str] = frozenset(),
        md5: bool = True,
        durability: Durability = Durability.STRICT,
        source: PayloadSource | None = None,
        limit: int = 5 << 30,
    ) -> Ingested:
        """`source` replaces the request's own body (CopyObject, UploadPartCopy).

        Verified before it returns, for the request's own body: the length, Content-MD5, x-amz-checksum-* by header and
        by trailer, x-amz-content-sha256. Raises S3Error (BadDigest, EntityTooLarge, IncompleteBody, InvalidDigest,
        MissingContentLength, XAmzContentSHA256Mismatch, InsufficientStorage, ...); nothing is kept then.
        """


async def ingest(source: PayloadSource, storing: Storing, *, pool: BufferPool) -> Payload:
    """Read `source` to its end, digest it, verify it, and put it into storage: inline up to INLINE_LIMIT bytes.

    At most two pool buffers are held. For a FilePayload of a STRICT bucket the bytes are on stable storage on return.
    On any error, cancellation included, nothing is left behind.
    """
    if source.length <= INLINE_LIMIT:
        return await _ingest_inline(source, storing)
    return await _FileIngest(source, storing, pool).run()


async def _ingest_inline(source: PayloadSource, storing: Storing) -> Payload:
    # One byte more than announced, so that a longer stream is noticed and the end is seen.
    whole = memoryview(bytearray(source.length + 1))
    filled = 0
    while filled <= source.length and (count := await source.receive(whole[filled:])):
        filled += count
    if filled != source.length:
        raise S3Error("IncompleteBody")
    data = bytes(whole[:filled])
    storing.digests.update(memoryview(data))
    storing.verify(storing.digests, source.trailers)
    return storing.objects.inline_payload(data)


class _FileIngest:
    """One payload on its way into a file. While a buffer is digested and written on an executor thread, the next one
    fills; with no second buffer free the two steps alternate."""

    def __init__(self, source: PayloadSource, storing: Storing, pool: BufferPool) -> None:
        self._source = source
        self._storing = storing
        self._pool = pool
        self._buffers: list[Buffer] = []

    async def run(self) -> Payload:
        if self._source.length <= BLOCK_SIZE:
            return await self._run_at_once()
        storing = self._storing
        writing: asyncio.Future[None] | None = None
        creating: asyncio.Future[PayloadWriter] | None = None
        writer: PayloadWriter | None = None
        try:
            buffer, filled = await self._first_buffer()
            self._buffers.append(buffer)
            creating = storing.loop.run_in_executor(storing.executor, storing.create)
            left = self._source.length
            turn = 0
            while left:
                buffer = self._buffers[turn]
                count = await self._fill(buffer.view, min(left, BLOCK_SIZE), filled)
                filled = 0
                left -= count
                if writer is None:
                    writer = await settle(creating)
                if writing is not None:
                    await settle(writing)
                writing = storing.loop.run_in_executor(storing.executor, storing.consume, writer, buffer.view[:count])
                turn = await self._next_buffer(turn, left, writing)
            await self._expect_end()
            if writing is not None:
                await settle(writing)
            assert writer is not None
            storing.verify(storing.digests, self._source.trailers)
            return await storing.seal(writer)
        except BaseException:
            await storing.drop(creating, writing)
            raise
        finally:
            for buffer in self._buffers:
                self._pool.release(buffer)

    async def _run_at_once(self) -> Payload:
        """A payload of one buffer has nothing to overlap: when it is there, one turn on the executor does it all."""
        buffer, filled = await self._first_buffer()
        storing = self._storing
        try:
            length = self._source.length
            await self._fill(buffer.view, length, filled)
            await self._expect_end()
            return await storing.settle_sealed(
                storing.loop.run_in_executor(
                    storing.executor, storing.store, buffer.view[:length], lambda: self._source.trailers
                )
            )
        finally:
            self._pool.release(buffer)

    async def _first_buffer(self) -> tuple[Buffer, int]:
        """A buffer of the pool, and how many bytes of the payload are in it: a client that has announced a payload and
        sends nothing holds none."""
        begun = memoryview(bytearray(FIRST_BYTES))
        count = await self._source.receive(begun)
        if not count:
            raise S3Error("IncompleteBody")
        buffer = await self._pool.acquire()
        buffer.view[:count] = begun[:count]
        return buffer, count

    async def _fill(self, view: memoryview, size: int, filled: int) -> int:
        receive = self._source.receive
        while filled < size:
            count = await receive(view[filled:size])
            if not count:
                raise S3Error("IncompleteBody")
            filled += count
        return filled

    async def _next_buffer(self, turn: int, left: int, writing: asyncio.Future[None]) -> int:
        if len(self._buffers) == 1:
            second = self._pool.try_acquire() if left else None
            if second is None:
                await settle(writing)
                return 0
            self._buffers.append(second)
        return 1 - turn

    async def _expect_end(self) -> None:
        if await self._source.receive(memoryview(bytearray(1))):
            raise S3Error("IncompleteBody", "The request body is longer than its declared length.")


async def deliver(reader: ObjectReader, offset: int, length: int, head: bytes, sink: PayloadSink) -> None:
    """Send `head` and then [offset, offset + length) of the object. The reader stays open.

    Raises StorageError or OSError; whether that can still become an S3 error is told by `sink.committed`.
    """
    await sink.start(head)
    for segment in reader.segments(offset, length):
        if segment.data is not None:
            await sink.send(segment.data)
        else:
            await sink.send_file(segment.fd, segment.offset, segment.length)
    await sink.finish()
