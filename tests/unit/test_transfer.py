"""The payload loops over in-memory storage: what is kept, what is refused, and that nothing leaks."""

import asyncio
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.buffers import BufferPool
from s3verbs.gateway.checksums import Digests
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.storing import Storing
from s3verbs.gateway.transfer import deliver, ingest
from s3verbs.storage.errors import StorageFull
from s3verbs.storage.faults import Faults
from s3verbs.storage.memory import MemoryDisk, MemoryMetadataStore, MemoryPayloadStore
from s3verbs.storage.model import BLOCK_SIZE, INLINE_LIMIT, Attributes, Durability, FilePayload, InlinePayload, Payload
from s3verbs.storage.objects import ObjectStore

POOL = 3


class Pieces:
    """A PayloadSource that gives the bytes in pieces of the given sizes, over and over."""

    def __init__(self, data: bytes, sizes: list[int], length: int | None = None) -> None:
        self.length = len(data) if length is None else length
        self._data = data
        self._sizes = itertools.cycle(sizes)
        self.stall: asyncio.Event | None = None

    @property
    def trailers(self) -> Mapping[str, str]:
        return MappingProxyType({"x-end": "yes"})

    async def receive(self, into: memoryview) -> int:
        if self.stall is not None and len(self._data) < self.length // 2:
            await self.stall.wait()
        count = min(next(self._sizes), len(into), len(self._data))
        into[:count] = self._data[:count]
        self._data = self._data[count:]
        await asyncio.sleep(0)
        return count


class Store:
    def __init__(self) -> None:
        self.faults = Faults()
        self.disk = MemoryDisk()
        ids = itertools.count(1)
        self.payloads = MemoryPayloadStore(self.disk, faults=self.faults, new_id=lambda: next(ids).to_bytes(16, "big"))
        self.objects = ObjectStore(
            MemoryMetadataStore(self.disk, faults=self.faults),
            self.payloads,
            clock=lambda: 1,
            new_id=lambda: next(ids).to_bytes(16, "big"),
        )
        self.pool = BufferPool(POOL, patience=0.05)
        self.digests = Digests(frozenset({"CRC64NVME"}), md5=True)

    async def ingest(self, source: Pieces, executor: ThreadPoolExecutor, **options: object) -> Payload:
        verify = options.get("verify", lambda digests, trailers: None)
        storing = Storing(
            source.length,
            self.digests,
            verify,  # type: ignore[arg-type]
            self.objects,
            executor,
            Durability.RELAXED,
        )
        return await ingest(source, storing, pool=self.pool)

    def bytes_of(self, payload: Payload) -> bytes:
        if isinstance(payload, InlinePayload):
            assert payload.data is not None
            return payload.data
        reader = self.payloads.open(payload)
        try:
            whole = bytearray(payload.length)
            assert reader.read_into(0, memoryview(whole)) == payload.length
            return bytes(whole)
        finally:
            reader.close()

    def nothing_left(self) -> bool:
        return not self.disk.files and self.pool.idle == POOL


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


SIZES = [
    0,
    1,
    INLINE_LIMIT,
    INLINE_LIMIT + 1,
    BLOCK_SIZE - 1,
    BLOCK_SIZE,
    BLOCK_SIZE + 1,
    2 * BLOCK_SIZE,
    3 * BLOCK_SIZE + 17,
]


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_sent_is_stored_and_digested(size: int, executor: ThreadPoolExecutor) -> None:
    store = Store()
    data = hashlib.shake_128(str(size).encode()).digest(size)
    payload = await store.ingest(Pieces(data, [700_000, 65_536, 1]), executor)
    assert store.bytes_of(payload) == data
    assert isinstance(payload, InlinePayload if size <= INLINE_LIMIT else FilePayload)
    assert store.digests.md5() == hashlib.md5(data).digest()
    assert store.pool.idle == POOL


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 3 * BLOCK_SIZE),
    st.lists(st.one_of(st.integers(1, 100_000), st.integers(1, 3 * BLOCK_SIZE)), min_size=1, max_size=5),
)
def test_any_pieces_make_the_same_payload(size: int, pieces: list[int]) -> None:
    if size > 2000 and sum(pieces) < 100 * len(pieces):
        pieces = [*pieces, 50_000]
    data = hashlib.shake_128(b"pieces").digest(size)

    async def run() -> None:
        store = Store()
        with ThreadPoolExecutor(2) as threads:
            payload = await store.ingest(Pieces(data, pieces), threads)
        assert store.bytes_of(payload) == data
        assert store.digests.md5() == hashlib.md5(data).digest()

    asyncio.run(run())


@pytest.mark.parametrize("size", [100, INLINE_LIMIT + 1, 2 * BLOCK_SIZE + 5])
@pytest.mark.parametrize("difference", [-1, 1])
async def test_another_length_than_announced_is_refused(
    size: int, difference: int, executor: ThreadPoolExecutor
) -> None:
    store = Store()
    with pytest.raises(S3Error) as caught:
        await store.ingest(Pieces(b"x" * size, [100_000], size - difference), executor)
    assert caught.value.code == "IncompleteBody"
    assert store.nothing_left()


@pytest.mark.parametrize("size", [100, INLINE_LIMIT + 1, 2 * BLOCK_SIZE + 5])
async def test_a_payload_that_fails_verification_is_dropped(size: int, executor: ThreadPoolExecutor) -> None:
    store = Store()

    def verify(digests: Digests, trailers: Mapping[str, str]) -> None:
        assert trailers == {"x-end": "yes"}
        assert digests.md5() == hashlib.md5(b"x" * size).digest()
        raise S3Error("BadDigest")

    with pytest.raises(S3Error) as caught:
        await store.ingest(Pieces(b"x" * size, [100_000]), executor, verify=verify)
    assert caught.value.code == "BadDigest"
    assert store.nothing_left()


@pytest.mark.parametrize("size", [INLINE_LIMIT + 1, 3 * BLOCK_SIZE])
@pytest.mark.parametrize("step", ["payload.create", "payload.write", "payload.seal"])
async def test_a_full_disk_leaves_nothing(size: int, step: str, executor: ThreadPoolExecutor) -> None:
    store = Store()
    store.faults.fail(step, StorageFull("full"))
    with pytest.raises(StorageFull):
        await store.ingest(Pieces(b"x" * size, [300_000]), executor)
    assert store.nothing_left()


@pytest.mark.parametrize("size", [INLINE_LIMIT + 1, 4 * BLOCK_SIZE])
async def test_a_cancelled_ingest_gives_everything_back(size: int, executor: ThreadPoolExecutor) -> None:
    store = Store()
    source = Pieces(b"x" * size, [400_000 if size > BLOCK_SIZE else 1000])
    source.stall = asyncio.Event()
    task = asyncio.create_task(store.ingest(source, executor))
    await asyncio.sleep(0.05)
    assert store.pool.idle < POOL
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.nothing_left()


async def test_no_buffer_in_time_is_slow_down(executor: ThreadPoolExecutor) -> None:
    store = Store()
    held = [await store.pool.acquire() for _ in range(POOL)]
    with pytest.raises(S3Error) as caught:
        await store.ingest(Pieces(b"x" * BLOCK_SIZE, [100_000]), executor)
    assert caught.value.code == "SlowDown"
    for buffer in held:
        store.pool.release(buffer)
    assert store.nothing_left()


async def test_one_buffer_is_enough_for_a_large_payload(executor: ThreadPoolExecutor) -> None:
    store = Store()
    held = [await store.pool.acquire() for _ in range(POOL - 1)]
    data = hashlib.shake_128(b"one").digest(3 * BLOCK_SIZE + 1)
    assert store.bytes_of(await store.ingest(Pieces(data, [100_000]), executor)) == data
    assert len(held) == POOL - 1


async def test_buffers_go_to_waiters_in_order() -> None:
    pool = BufferPool(1)
    first = await pool.acquire()
    order: list[int] = []

    async def wait(number: int) -> None:
        buffer = await pool.acquire()
        order.append(number)
        pool.release(buffer)

    tasks = [asyncio.create_task(wait(number)) for number in range(4)]
    await asyncio.sleep(0)
    assert pool.try_acquire() is None
    tasks[1].cancel()
    await asyncio.sleep(0)
    pool.release(first)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 2, 3]
    assert pool.idle == 1


async def test_a_waiter_cancelled_as_its_buffer_arrives_gives_it_back() -> None:
    pool = BufferPool(1)
    held = await pool.acquire()
    task = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    pool.release(held)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.idle == 1


class Collected:
    """A PayloadSink that keeps what it gets."""

    committed = False

    def __init__(self) -> None:
        self.events: list[object] = []

    async def start(self, head: bytes) -> None:
        self.events.append(head)

    async def send(self, data: bytes) -> None:
        self.events.append(data)

    async def send_file(self, fd: int, offset: int, length: int) -> None:
        self.events.append((fd, offset, length))

    async def finish(self) -> None:
        self.events.append("end")


async def test_deliver_sends_the_head_and_then_the_range(executor: ThreadPoolExecutor) -> None:
    store = Store()
    await store.objects.create_bucket("bucket", owner="o")
    payload = store.objects.inline_payload(b"0123456789")
    await store.objects.publish("bucket", "k", payload=payload, etag="e", attributes=Attributes(), checksum=None)
    reader = await store.objects.open("bucket", "k", store.objects.lookup("bucket", "k"))
    sink = Collected()
    await deliver(reader, 2, 5, b"head", sink)
    reader.close()
    assert sink.events == [b"head", b"23456", "end"]
