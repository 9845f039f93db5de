"""The arena and its pool: alignment, untouched pages, order, patience, and that no buffer is lost or lent twice."""

import asyncio
import ctypes
import io
import mmap
from collections.abc import Hashable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.rdma import staging
from s3verbs.rdma.errors import Decline, Declined
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.staging import HUGE_PAGE, StagingArena, StagingBuffer, StagingPool

PATIENT = 60.0
IMPATIENT = 0.01


def pool_of(count: int, patience: float = PATIENT) -> StagingPool:
    return StagingPool(StagingArena(count * CHUNK), patience=patience)


def resident(arena: StagingArena) -> int:
    """Pages of the arena that have memory."""
    pages = arena.size // mmap.PAGESIZE
    vector = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(arena.address), ctypes.c_size_t(arena.size), vector) == 0
    return sum(each & 1 for each in vector)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("size", "buffers"), [(1, 1), (CHUNK, 1), (CHUNK + 1, 2), (3 * CHUNK, 3), (64 * CHUNK - 1, 64)]
)
def test_an_arena_is_whole_buffers_at_a_huge_page(size: int, buffers: int) -> None:
    arena = StagingArena(size)
    assert arena.size == len(arena.view) == buffers * CHUNK
    assert arena.address % HUGE_PAGE == 0
    assert arena.address == ctypes.addressof(ctypes.c_char.from_buffer(arena.view))
    assert arena.backing in ("hugetlb", "transparent", "pages")
    arena.view[0] = arena.view[-1] = 7
    pool = StagingPool(arena, patience=0)
    assert (pool.total, pool.idle, pool.waiting, pool.most_used) == (buffers, buffers, 0, 0)


def test_an_arena_needs_a_size() -> None:
    with pytest.raises(ValueError, match="room for one buffer"):
        StagingArena(0)


def test_no_page_is_touched_before_a_buffer_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_hugetlb", lambda size: None)
    arena = StagingArena(64 * CHUNK)
    pool = StagingPool(arena, patience=0)
    assert resident(arena) == 0
    buffer = pool.try_acquire()
    assert buffer is not None
    assert buffer.address == arena.address
    assert resident(arena) == 0
    buffer.view[:] = bytes(CHUNK)
    assert CHUNK <= resident(arena) * mmap.PAGESIZE <= HUGE_PAGE
    pool.release(buffer)
    again = pool.try_acquire()
    assert again is buffer, "memory that is there is used before more is touched"


def test_a_kernel_without_huge_pages_gives_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_hugetlb", lambda size: None)
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -1)
    arena = StagingArena(2 * CHUNK)
    assert arena.backing == "pages"
    arena.view[:] = b"x" * arena.size


@pytest.mark.parametrize("granted", [HUGE_PAGE, 4096, None])
def test_hugetlb_pages_are_used_only_when_they_can_be_touched(
    granted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping of ordinary pages stands for the kernel's pool, which may be empty here."""

    class Zeros(io.BytesIO):
        def readinto(self, into: memoryview) -> int:  # type: ignore[override]
            if granted is None:
                raise OSError("Bad address")
            return min(granted, len(into))

    monkeypatch.setattr(staging, "_MAP_HUGETLB", 0)
    monkeypatch.setattr(staging, "_MAP_HUGE_2MB", 0)
    monkeypatch.setattr(staging, "open", lambda *options, **more: Zeros(), raising=False)
    arena = StagingArena(CHUNK)
    assert arena.backing == ("hugetlb" if granted == HUGE_PAGE else "transparent")
    assert arena.address % mmap.PAGESIZE == 0
    arena.view[:] = b"x" * arena.size


def test_a_child_process_has_no_copy_of_the_arena() -> None:
    arena = StagingArena(CHUNK)
    arena.view[:4] = b"data"
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and ":" not in words[0]:
            begin, end = (int(each, 16) for each in words[0].split("-"))
            inside = begin <= arena.address < end
        elif words[0] == "VmFlags:" and inside:
            assert "dc" in words
            return
    raise AssertionError("the arena is not mapped")


async def test_buffers_are_apart_and_aligned() -> None:
    pool = pool_of(5)
    buffers = [await pool.acquire() for _ in range(5)]
    assert pool.idle == 0
    assert pool.most_used == 5
    assert len({buffer.address for buffer in buffers}) == 5
    for number, buffer in enumerate(buffers):
        assert buffer.address % mmap.PAGESIZE == 0
        assert len(buffer.view) == CHUNK
        assert buffer.address == ctypes.addressof(ctypes.c_char.from_buffer(buffer.view))
        buffer.view[:] = bytes([number]) * CHUNK
    for number, buffer in enumerate(buffers):
        assert bytes(buffer.view) == bytes([number]) * CHUNK
        pool.release(buffer)
    assert pool.idle == 5


async def test_a_buffer_is_released_once() -> None:
    pool = pool_of(2)
    buffer = await pool.acquire()
    pool.release(buffer)
    with pytest.raises(RuntimeError, match="twice"):
        pool.release(buffer)
    assert pool.idle == 2


async def test_waiters_are_served_in_order_and_nobody_passes_them() -> None:
    pool = pool_of(1)
    first = await pool.acquire()
    served: list[int] = []

    async def want(number: int) -> None:
        buffer = await pool.acquire()
        served.append(number)
        await turns(3)
        pool.release(buffer)

    tasks = [asyncio.create_task(want(number)) for number in range(4)]
    await turns()
    assert pool.waiting == 4
    pool.release(first)
    assert pool.try_acquire() is None, "the buffer belongs to the first waiter"
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3]
    assert (pool.idle, pool.waiting, pool.most_used) == (1, 0, 1)


async def test_a_lack_that_lasts_is_a_decline() -> None:
    pool = pool_of(1, IMPATIENT)
    buffer = await pool.acquire()
    for _ in range(2):
        with pytest.raises(Declined) as error:
            await pool.acquire()
        assert error.value.reason is Decline.NO_BUFFER
        assert pool.waiting == 0
    pool.release(buffer)
    assert (await pool.acquire()) is buffer


async def test_a_lack_that_passes_is_none() -> None:
    pool = pool_of(1)
    buffer = await pool.acquire()
    asyncio.get_running_loop().call_later(0.01, pool.release, buffer)
    assert await pool.acquire() is buffer


@pytest.mark.parametrize("given_back", [False, True])
async def test_a_waiter_that_is_cancelled_takes_nothing_with_it(given_back: bool) -> None:
    pool = pool_of(1)
    buffer = await pool.acquire()
    waiter = asyncio.create_task(pool.acquire())
    later = asyncio.create_task(pool.acquire())
    await turns()
    if given_back:
        pool.release(buffer)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    if not given_back:
        pool.release(buffer)
    pool.release(await later)
    assert (pool.idle, pool.waiting) == (1, 0)


async def test_a_peer_leaves_room_for_others() -> None:
    pool = pool_of(4, IMPATIENT)
    mine = [await pool.acquire("a") for _ in range(2)]
    assert pool.try_acquire("a") is None
    with pytest.raises(Declined):
        await pool.acquire("a")
    other = await pool.acquire("b")
    assert pool.try_acquire("b") is None
    waiting = asyncio.create_task(pool.acquire("a"))
    await turns()
    assert pool.waiting == 1
    newcomer = pool.try_acquire("c")
    assert newcomer is not None, "a peer at its share does not hold up others"
    for buffer in (*mine, other, newcomer):
        pool.release(buffer)
    pool.release(await waiting)
    assert pool.idle == 4


async def test_one_release_may_be_the_turn_of_two() -> None:
    pool = pool_of(3)
    ours, theirs = await pool.acquire("a"), await pool.acquire("b")
    waiting = [asyncio.create_task(pool.acquire(peer)) for peer in "ab"]
    await turns()
    assert (pool.idle, pool.waiting) == (1, 2)
    pool.release(theirs)
    assert (pool.idle, pool.waiting) == (0, 0)
    for buffer in (ours, await waiting[0], await waiting[1]):
        pool.release(buffer)
    assert pool.idle == 3


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30), st.sampled_from("abc")), max_size=25)
)
def test_whoever_is_cancelled_when_no_buffer_is_lost_or_lent_twice(
    count: int, users: list[tuple[int, int, str]]
) -> None:
    async def run() -> None:
        pool = pool_of(count)
        lent: set[StagingBuffer] = set()

        async def use(peer: Hashable, hold: int) -> None:
            buffer = await pool.acquire(peer)
            assert buffer not in lent
            lent.add(buffer)
            try:
                await turns(hold)
            finally:
                lent.remove(buffer)
                pool.release(buffer)

        async def cancel(task: "asyncio.Task[None]", after: int) -> None:
            await turns(after)
            task.cancel()

        tasks = [asyncio.create_task(use(peer, hold)) for hold, _, peer in users]
        cancels = [
            asyncio.create_task(cancel(task, after))
            for task, (_, after, _) in zip(tasks, users, strict=True)
            if after < 20
        ]
        await asyncio.gather(*tasks, *cancels, return_exceptions=True)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        assert (pool.idle, pool.waiting, lent) == (count, 0, set())

    asyncio.run(run())
