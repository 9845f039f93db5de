"""One payload on its way into storage: the steps that every ingest loop takes on an executor thread."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TypeVar

from s3verbs.gateway.checksums import Digests
from s3verbs.rdma.settle import outlast
from s3verbs.storage.model import Durability, FilePayload
from s3verbs.storage.objects import ObjectStore
from s3verbs.storage.payload import PayloadWriter

T = TypeVar("T")

Verify = Callable[[Digests, Mapping[str, str]], None]
"""(digests, trailers): raises S3Error when the payload is not what the request said."""


class Storing:
    """Digest, write, verify, seal. `create`, `consume` and `store` block; the rest belongs to the loop thread."""

    def __init__(
        self,
        length: int,
        digests: Digests,
        verify: Verify,
        objects: ObjectStore,
        executor: Executor,
        durability: Durability,
    ) -> None:
        self.length = length
        self.digests = digests
        self.verify = verify
        self.objects = objects
        self.executor = executor
        self.loop = asyncio.get_running_loop()
        self._durable = durability is Durability.STRICT

    def create(self) -> PayloadWriter:
        """Raises StorageError."""
        return self.objects.create_payload(self.length, durable=self._durable)

    def consume(self, writer: PayloadWriter, chunk: memoryview) -> None:
        """Digest and append; the chunk is free again on return. Raises StorageError."""
        self.digests.update(chunk)
        writer.write(chunk)

    def store(self, chunk: memoryview, trailers: Callable[[], Mapping[str, str]]) -> FilePayload:
        """A payload of one chunk, in one turn. Raises StorageError and what `verify` raises; nothing is kept then."""
        writer = self.create()
        try:
            self.consume(writer, chunk)
            self.verify(self.digests, trailers())
            return writer.seal(durable=self._durable)
        except BaseException:
            writer.discard()
            raise

    async def seal(self, writer: PayloadWriter) -> FilePayload:
        """Raises StorageError; nothing is kept then."""
        return await self.settle_sealed(
            self.loop.run_in_executor(self.executor, lambda: writer.seal(durable=self._durable))
        )

    async def settle_sealed(self, sealing: "asyncio.Future[FilePayload]") -> FilePayload:
        """Await a future of `store` or of a seal. What was sealed for nobody, because of a cancellation, is taken
        away again."""
        try:
            return await settle(sealing)
        except asyncio.CancelledError:
            if not sealing.cancelled() and sealing.exception() is None:
                await self.objects.reclaim([sealing.result()])
            raise

    async def drop(
        self, creating: "asyncio.Future[PayloadWriter] | None", writing: "asyncio.Future[None] | None"
    ) -> None:
        """After an error: wait for what runs on the executor, then discard the writer."""
        if writing is not None:
            await outlast(writing)
        if creating is not None:
            await outlast(creating)
            if not creating.cancelled() and creating.exception() is None:
                creating.result().discard()


async def settle(future: "asyncio.Future[T]") -> T:
    """Await executor work. When cancelled meanwhile, wait for it all the same before the cancellation goes on: the
    thread still uses the caller's buffers and descriptors."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await outlast(future)
        raise
