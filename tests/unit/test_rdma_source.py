"""RDMA READ of a payload: order, chunks ahead, progress with one buffer, and where an error shows."""

import asyncio
import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.loopback import Fault
from s3verbs.rdma.source import RdmaSource
from tests.rdma_fixtures import Lane, noise, nothing_left, turns

DATA = noise(6 * CHUNK + 1234)


@pytest.mark.parametrize("length", [1, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 5 * CHUNK + 7])
@pytest.mark.parametrize("buffers", [1, 2, 8])
async def test_chunks_come_in_order_and_whole(length: int, buffers: int) -> None:
    lane = Lane(buffers, seed=length)
    async with nothing_left(lane):
        assert await lane.pull(lane.memory.expose(bytearray(DATA[:length]))) == DATA[:length]
        assert lane.faults.passed.count("read") == -(-length // CHUNK)


async def test_every_chunk_but_the_last_is_full() -> None:
    lane = Lane(8)
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(DATA)))
        source = RdmaSource(region, len(DATA), lane.pool)
        assert source.length == len(DATA)
        sizes = []
        while (chunk := await source.next()) is not None:
            sizes.append(len(chunk.view))
            chunk.release()
            chunk.release()
        assert sizes == [CHUNK] * 6 + [1234]
        assert await source.next() is None
        await source.close()
        await region.close()


async def test_less_than_the_region_may_be_read_but_not_more() -> None:
    lane = Lane(2)
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(DATA[:100])))
        for length in (101, -1):
            with pytest.raises(ValueError, match="does not fit"):
                RdmaSource(region, length, lane.pool)
        for length in (0, 99):
            source = RdmaSource(region, length, lane.pool)
            chunk = await source.next()
            assert (chunk is None) == (length == 0)
            if chunk is not None:
                assert chunk.view == DATA[:99]
                chunk.release()
            assert await source.next() is None
        await region.close()


@pytest.mark.parametrize(("depth", "buffers", "ahead"), [(4, 8, 4), (1, 8, 1), (4, 3, 3), (0, 8, 1), (9, 8, 7)])
async def test_so_many_chunks_are_on_their_way(depth: int, buffers: int, ahead: int) -> None:
    lane = Lane(buffers)
    for number in range(7):
        lane.faults.add("read", number, Fault(hang=True))
    async with nothing_left(lane):
        pulling = asyncio.create_task(lane.pull(lane.memory.expose(bytearray(DATA)), depth=depth))
        await turns(20)
        assert lane.faults.passed.count("read") == lane.pool.total - lane.pool.idle == ahead
        pulling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pulling


async def test_chunks_are_read_while_the_caller_is_busy_with_one() -> None:
    lane = Lane(8)
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(DATA)))
        source = RdmaSource(region, len(DATA), lane.pool, depth=2)
        chunk = await source.next()
        await turns(10)
        assert lane.fabric.moved == 3 * CHUNK
        assert chunk is not None
        chunk.release()
        await source.close()
        await region.close()


async def test_further_buffers_are_not_waited_for_nor_taken_from_those_who_wait() -> None:
    lane = Lane(2)
    async with nothing_left(lane):
        held = await lane.pool.acquire()
        pulling = asyncio.create_task(lane.pull(lane.memory.expose(bytearray(DATA)), pause=3))
        await turns(1)
        waiting = asyncio.create_task(lane.pool.acquire())
        other = await waiting
        lane.pool.release(other)
        lane.pool.release(held)
        assert await pulling == DATA


@pytest.mark.parametrize("number", [0, 1, 3, 6])
async def test_an_error_shows_when_its_chunk_is_reached(number: int) -> None:
    lane = Lane(8, seed=number)
    lane.faults.add("read", number, Fault(RemoteAccess))
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(DATA)))
        source = RdmaSource(region, len(DATA), lane.pool)
        got = b""
        for _ in range(number):
            chunk = await source.next()
            assert chunk is not None
            got += chunk.view
            chunk.release()
        with pytest.raises(RemoteAccess):
            await source.next()
        assert got == DATA[: number * CHUNK]
        assert lane.pool.idle == lane.pool.total
        with pytest.raises(RuntimeError, match="closed"):
            await source.next()
        await region.close()


async def test_the_first_error_in_order_counts_not_the_first_in_time() -> None:
    lane = Lane(8)
    lane.faults.add("read", 1, Fault(lambda: PeerUnreachable(Failure.CONNECTION_LOST), delay=0.01))
    lane.faults.add("read", 2, Fault(RemoteAccess))
    async with nothing_left(lane):
        with pytest.raises(PeerUnreachable):
            await lane.pull(lane.memory.expose(bytearray(DATA)))


async def test_a_lack_of_buffers_that_lasts_declines() -> None:
    lane = Lane(1, patience=0.01)
    async with nothing_left(lane):
        held = await lane.pool.acquire()
        region = await lane.fabric.open(lane.memory.expose(bytearray(DATA)))
        source = RdmaSource(region, len(DATA), lane.pool)
        with pytest.raises(Declined) as error:
            await source.next()
        assert error.value.reason is Decline.NO_BUFFER
        with pytest.raises(RuntimeError):
            await source.next()
        lane.pool.release(held)
        await region.close()


async def test_a_chunk_that_was_handed_out_outlives_the_source() -> None:
    lane = Lane(4)
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(DATA)))
        source = RdmaSource(region, len(DATA), lane.pool)
        chunk = await source.next()
        await source.close()
        await region.close()
        assert lane.pool.idle == 3
        assert chunk is not None
        assert chunk.view == DATA[:CHUNK]
        chunk.release()


@pytest.mark.parametrize("buffers", [1, 4])
async def test_a_source_may_be_closed_while_its_next_chunk_is_waited_for(buffers: int) -> None:
    lane = Lane(buffers)
    lane.faults.add("read", 0, Fault(hang=True, flush=0.005))
    async with nothing_left(lane):
        held = await lane.pool.acquire() if buffers == 1 else None
        region = await lane.fabric.open(lane.memory.expose(bytearray(DATA)))
        source = RdmaSource(region, len(DATA), lane.pool)
        waiting = asyncio.create_task(source.next())
        await turns(5)
        closing = [asyncio.create_task(source.close()) for _ in range(2)]
        for each in closing:
            await each
            assert lane.pool.idle == (0 if held else lane.pool.total)
        if held is not None:
            lane.pool.release(held)
        with pytest.raises(RuntimeError, match="closed"):
            await waiting
        await region.close()


async def test_a_close_that_is_cancelled_is_a_close_all_the_same() -> None:
    lane = Lane(4)
    lane.faults.add("read", 0, Fault(hang=True, flush=0.01))
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(DATA)))
        source = RdmaSource(region, len(DATA), lane.pool)
        waiting = asyncio.create_task(source.next())
        await turns(5)
        waiting.cancel()
        await asyncio.wait({waiting})
        closing = asyncio.create_task(source.close())
        for _ in range(3):
            await turns(2)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert lane.pool.idle == lane.pool.total
        await region.close()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 4 * CHUNK), st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=8),
    st.integers(0, 1 << 16),
)
def test_any_number_of_payloads_passes_through_any_pool(
    buffers: int, payloads: list[tuple[int, int, int]], seed: int
) -> None:
    async def run() -> None:
        lane = Lane(buffers, seed=seed)
        async with nothing_left(lane):
            pulls = []
            for number, (length, depth, pause) in enumerate(payloads):
                token = lane.memory.expose(bytearray(DATA[number : number + length]))
                pulls.append(lane.pull(token, depth=depth, pause=pause, peer=number % 3))
            got = await asyncio.gather(*pulls)
            assert got == [DATA[at : at + length] for at, (length, _, _) in enumerate(payloads)]

    asyncio.run(run())


async def test_an_error_that_nobody_came_to_is_not_told_to_the_loop() -> None:
    lane = Lane(4)
    lane.faults.add("read", 1, Fault(RemoteAccess))
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(DATA)))
        source = RdmaSource(region, len(DATA), lane.pool)
        chunk = await source.next()
        await turns(10)
        assert chunk is not None
        chunk.release()
        await source.close()
        await region.close()
        del source
        gc.collect()
