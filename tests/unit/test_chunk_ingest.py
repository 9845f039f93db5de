"""The payload loop of sources with buffers of their own, over in-memory storage: what is kept, and that every chunk is
released, none before the last thread has left it."""

import asyncio
import hashlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.checksums import Digests
from s3verbs.gateway.chunk_ingest import ingest_chunks
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.storing import Storing
from s3verbs.rdma.errors import Failure as Reason
from s3verbs.rdma.errors import PeerUnreachable, RemoteAccess
from s3verbs.storage.errors import StorageFull
from s3verbs.storage.faults import Faults
from s3verbs.storage.memory import MemoryDisk, MemoryMetadataStore, MemoryPayloadStore
from s3verbs.storage.model import BLOCK_SIZE, INLINE_LIMIT, Durability, FilePayload, InlinePayload, Payload
from s3verbs.storage.objects import ObjectStore


class Piece:
    """A chunk whose bytes turn to dust when it is released."""

    def __init__(self, data: bytes, out: set["Piece"]) -> None:
        self._bytes = bytearray(data)
        self.view = memoryview(self._bytes)
        self._out = out
        out.add(self)

    def release(self) -> None:
        self._out.remove(self)
        self._bytes[:] = b"\xee" * len(self._bytes)


class Chunks:
    """A ChunkSource over bytes; `fail_at` raises in place of the chunk of that number."""

    def __init__(self, data: bytes, length: int | None = None) -> None:
        self.length = len(data) if length is None else length
        self.out: set[Piece] = set()
        self.closed = 0
        self.fail_at: dict[int, Exception] = {}
        self.stall: asyncio.Event | None = None
        self._data = data
        self._count = 0

    async def next(self) -> Piece | None:
        await asyncio.sleep(0)
        if self.stall is not None and self._count:
            await self.stall.wait()
        if self._count in self.fail_at:
            raise self.fail_at[self._count]
        start = self._count * BLOCK_SIZE
        self._count += 1
        return Piece(self._data[start : start + BLOCK_SIZE], self.out) if start < len(self._data) else None

    async def close(self) -> None:
        self.closed += 1


class Store:
    def __init__(self) -> None:
        self.faults = Faults()
        self.disk = MemoryDisk()
        ids = itertools.count(1)
        self.payloads = MemoryPayloadStore(self.disk, faults=self.faults, new_id=lambda: next(ids).to_bytes(16, "big"))
        self.objects = ObjectStore(
            MemoryMetadataStore(self.disk, faults=self.faults), self.payloads, clock=lambda: 1, new_id=lambda: b"i" * 16
        )
        self.digests = Digests(frozenset({"CRC64NVME"}), md5=True)
        self.verify = lambda digests, trailers: None

    async def ingest(self, source: Chunks, executor: ThreadPoolExecutor) -> Payload:
        storing = Storing(
            source.length, self.digests, lambda d, t: self.verify(d, t), self.objects, executor, Durability.STRICT
        )
        return await ingest_chunks(source, storing)

    def bytes_of(self, payload: Payload) -> bytes:
        if isinstance(payload, InlinePayload):
            assert payload.data is not None
            return payload.data
        reader = self.payloads.open(payload)
        whole = bytearray(payload.length)
        assert reader.read_into(0, memoryview(whole)) == payload.length
        reader.close()
        return bytes(whole)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def pattern(size: int) -> bytes:
    return hashlib.shake_128(size.to_bytes(8, "big")).digest(size)


SIZES = [1, INLINE_LIMIT, INLINE_LIMIT + 1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE + 5]


@pytest.mark.parametrize("size", SIZES)
async def test_the_bytes_arrive(size: int, executor: ThreadPoolExecutor) -> None:
    store, data = Store(), pattern(size)
    source = Chunks(data)
    payload = await store.ingest(source, executor)
    assert store.bytes_of(payload) == data
    assert isinstance(payload, InlinePayload if size <= INLINE_LIMIT else FilePayload)
    assert store.digests.md5() == hashlib.md5(data).digest()
    assert (source.out, source.closed) == (set(), 1)


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 4 * BLOCK_SIZE))
def test_any_size_arrives(size: int) -> None:
    async def go() -> None:
        store, data = Store(), pattern(size)
        source = Chunks(data)
        with ThreadPoolExecutor(2) as threads:
            assert store.bytes_of(await store.ingest(source, threads)) == data
        assert source.out == set()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("size", "announced"),
    [
        (1, 2),
        (INLINE_LIMIT, INLINE_LIMIT - 1),
        (BLOCK_SIZE, BLOCK_SIZE - 1),
        (BLOCK_SIZE, BLOCK_SIZE + 1),
        (3 * BLOCK_SIZE + 5, 3 * BLOCK_SIZE + 4),
        (3 * BLOCK_SIZE + 5, 3 * BLOCK_SIZE + 6),
        (1, 5 * BLOCK_SIZE),
    ],
)
async def test_chunks_that_do_not_make_the_length_are_refused(
    size: int, announced: int, executor: ThreadPoolExecutor
) -> None:
    store, source = Store(), Chunks(pattern(size), announced)
    with pytest.raises(S3Error) as caught:
        await store.ingest(source, executor)
    assert caught.value.code == "IncompleteBody"
    assert (source.out, source.closed, store.disk.files) == (set(), 1, {})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("error", [RemoteAccess(), PeerUnreachable(Reason.TIMEOUT)])
async def test_a_failed_transfer_leaves_nothing(size: int, error: Exception, executor: ThreadPoolExecutor) -> None:
    for number in range(-(-size // BLOCK_SIZE)):
        store, source = Store(), Chunks(pattern(size))
        source.fail_at[number] = error
        with pytest.raises(type(error)):
            await store.ingest(source, executor)
        assert (source.out, source.closed, store.disk.files) == (set(), 1, {})


@pytest.mark.parametrize("size", SIZES)
async def test_a_payload_that_is_not_what_was_claimed_leaves_nothing(size: int, executor: ThreadPoolExecutor) -> None:
    def verify(*_: object) -> None:
        raise S3Error("BadDigest")

    store, source = Store(), Chunks(pattern(size))
    store.verify = verify
    with pytest.raises(S3Error, match="did not match"):
        await store.ingest(source, executor)
    assert (source.out, source.closed, store.disk.files) == (set(), 1, {})


async def test_a_full_disk_leaves_nothing(executor: ThreadPoolExecutor) -> None:
    store, source = Store(), Chunks(pattern(3 * BLOCK_SIZE))
    store.faults.fail("payload.write", StorageFull("full"))
    with pytest.raises(StorageFull):
        await store.ingest(source, executor)
    assert (source.out, source.closed, store.disk.files) == (set(), 1, {})


@pytest.mark.parametrize("size", SIZES)
async def test_cancelled_while_a_thread_writes(size: int, executor: ThreadPoolExecutor) -> None:
    store, source = Store(), Chunks(pattern(size))
    entered, leave = threading.Event(), threading.Event()
    seen: list[bytes] = []

    class Slow(Digests):
        def update(self, chunk: memoryview) -> None:
            entered.set()
            leave.wait(10)
            seen.append(bytes(chunk[:16]))

    store.digests = Slow(frozenset({"CRC64NVME"}), md5=False)
    if size <= INLINE_LIMIT:
        return  # Digested on the loop itself: nothing to cancel meanwhile.
    task = asyncio.create_task(store.ingest(source, executor))
    while not entered.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.sleep(0.01)
    assert source.out, "released under the thread"
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen[0] == pattern(size)[:16]
    assert (source.out, source.closed, store.disk.files) == (set(), 1, {})


async def test_cancelled_while_it_waits_for_a_chunk(executor: ThreadPoolExecutor) -> None:
    store, source = Store(), Chunks(pattern(3 * BLOCK_SIZE))
    source.stall = asyncio.Event()
    task = asyncio.create_task(store.ingest(source, executor))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (source.out, source.closed, store.disk.files) == (set(), 1, {})
