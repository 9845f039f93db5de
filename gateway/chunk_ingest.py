"""The payload loop of sources that bring buffers of their own: RDMA READ, and the same host.

The source has several chunks on their way. While one is digested and written on an executor thread, the next ones
arrive.
"""

import asyncio
from collections.abc import Mapping

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.storing import Storing, settle
from s3verbs.gateway.transfer import Chunk, ChunkSource
from s3verbs.storage.model import BLOCK_SIZE, INLINE_LIMIT, Payload
from s3verbs.storage.payload import PayloadWriter

_NO_TRAILERS: Mapping[str, str] = {}


async def ingest_chunks(source: ChunkSource, storing: Storing) -> Payload:
    """Take `source` to its end, digest it, verify it, and put it into storage: inline up to INLINE_LIMIT bytes.

    Durability as for `transfer.ingest`. On any error, cancellation included, nothing is left behind; the source is
    closed in any case.
    """
    try:
        if source.length <= INLINE_LIMIT:
            return await _inline(source, storing)
        if source.length <= BLOCK_SIZE:
            return await _at_once(source, storing)
        return await _by_chunks(source, storing)
    finally:
        await source.close()


async def _only_chunk(source: ChunkSource) -> Chunk:
    chunk = await source.next()
    if chunk is None or len(chunk.view) != source.length:
        if chunk is not None:
            chunk.release()
        raise S3Error("IncompleteBody")
    return chunk


async def _inline(source: ChunkSource, storing: Storing) -> Payload:
    chunk = await _only_chunk(source)
    data = bytes(chunk.view)
    chunk.release()
    storing.digests.update(memoryview(data))
    storing.verify(storing.digests, _NO_TRAILERS)
    return storing.objects.inline_payload(data)


async def _at_once(source: ChunkSource, storing: Storing) -> Payload:
    chunk = await _only_chunk(source)
    try:
        return await storing.settle_sealed(
            storing.loop.run_in_executor(storing.executor, storing.store, chunk.view, lambda: _NO_TRAILERS)
        )
    finally:
        chunk.release()


async def _by_chunks(source: ChunkSource, storing: Storing) -> Payload:
    creating: asyncio.Future[PayloadWriter] = storing.loop.run_in_executor(storing.executor, storing.create)
    writing: asyncio.Future[None] | None = None
    left = source.length
    try:
        while left:
            chunk = await source.next()
            if chunk is None:
                raise S3Error("IncompleteBody")
            try:
                left -= len(chunk.view)
                if left < 0:
                    raise S3Error("IncompleteBody", "More bytes came than the token announced.")
                if writing is not None:
                    await settle(writing)
                writer = await settle(creating)
            except BaseException:
                chunk.release()
                raise
            writing = storing.loop.create_task(_write(storing, writer, chunk))
        if writing is not None:
            await settle(writing)
        storing.verify(storing.digests, _NO_TRAILERS)
        return await storing.seal(await settle(creating))
    except BaseException:
        await storing.drop(creating, writing)
        raise


async def _write(storing: Storing, writer: PayloadWriter, chunk: Chunk) -> None:
    """Write a chunk and release it at once: the next one may be waiting for this very buffer. Never cancelled."""
    try:
        await storing.loop.run_in_executor(storing.executor, storing.consume, writer, chunk.view)
    finally:
        chunk.release()
