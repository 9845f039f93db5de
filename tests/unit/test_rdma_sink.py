"""RDMA WRITE of memory and files: the right bytes at the right place, overlap, and when a descriptor is free again."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.errors import Decline, Declined, RemoteAccess
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.file_reads import FileReads
from s3verbs.rdma.loopback import Fault
from s3verbs.rdma.sink import StagedSink
from tests.rdma_fixtures import Lane, Run, noise, nothing_left, turns

DATA = noise(5 * CHUNK + 4096)


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        # All threads at once, so that no test sees one start.
        barrier = threading.Barrier(5)
        jobs = [made.submit(barrier.wait) for _ in range(4)]
        barrier.wait()
        for job in jobs:
            job.result()
        yield made


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "payload").write_bytes(DATA)
    descriptor = os.open(tmp_path / "payload", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileReads, "cached", lambda self, into, offset, begin, end: 0)


async def quiet(lane: Lane) -> None:
    """Until nothing more happens by itself."""
    before = -1
    while before != (before := len(lane.faults.passed)):
        await asyncio.sleep(0.05)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(0, 1 << 16),
    st.lists(st.tuples(st.booleans(), st.integers(0, len(DATA)), st.integers(0, 3 * CHUNK)), max_size=5),
    st.sampled_from(["cached", "uncached", "partly"]),
    st.randoms(use_true_random=False),
)
def test_everything_that_is_sent_lands_in_order(
    executor: ThreadPoolExecutor,
    fd: int,
    buffers: int,
    depth: int,
    seed: int,
    parts: list[tuple[bool, int, int]],
    cache: str,
    random: "st.DataObject",
) -> None:
    real = FileReads.cached

    def cached(self: FileReads, into: memoryview, offset: int, begin: int, end: int) -> int:
        if cache == "uncached":
            return 0
        return real(self, into, offset, begin, random.randint(begin, end) if cache == "partly" else end)

    async def run() -> None:
        lane = Lane(buffers, executor, seed=seed)
        sent: list[bytes | Run] = []
        expected = b""
        for is_file, offset, length in parts:
            length = min(length, len(DATA) - offset)
            expected += DATA[offset : offset + length]
            sent.append(Run(fd, offset, length) if is_file else DATA[offset : offset + length])
        memory = bytearray(len(expected) + 10)
        async with nothing_left(lane):
            sink = await lane.push(lane.memory.expose(memory), sent, depth=depth)
            assert sink.moved == len(expected) == lane.fabric.moved
            assert not sink.committed
            assert memory == expected + bytes(10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileReads, "cached", cached)
        asyncio.run(run())


async def test_what_does_not_fit_moves_nothing(executor: ThreadPoolExecutor, fd: int) -> None:
    lane = Lane(4, executor)
    memory = bytearray(100)
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(memory))
        sink = StagedSink(region, lane.pool, executor)
        with pytest.raises(RemoteAccess):
            await sink.send(bytes(101))
        with pytest.raises(RemoteAccess):
            await sink.send_file(fd, 0, 101)
        await sink.send(b"x" * 60)
        with pytest.raises(RemoteAccess):
            await sink.send_file(fd, 0, 41)
        await sink.send_file(fd, 0, 40)
        with pytest.raises(RemoteAccess):
            await sink.send(b"y")
        await sink.finish()
        assert memory == b"x" * 60 + DATA[:40]
        await sink.close()
        await region.close()


@pytest.mark.usefixtures("uncached")
@pytest.mark.parametrize("length", [1, CHUNK, len(DATA)])
async def test_a_file_that_is_too_short_is_told(executor: ThreadPoolExecutor, fd: int, length: int) -> None:
    lane = Lane(4, executor)
    async with nothing_left(lane):
        token = lane.memory.expose(bytearray(len(DATA) + CHUNK))
        with pytest.raises(EOFError):
            await lane.push(token, [Run(fd, len(DATA) + 1 - length, length)])


async def test_reads_and_writes_overlap(executor: ThreadPoolExecutor, fd: int, uncached: None) -> None:
    lane = Lane(8, executor)
    lane.faults.add("write", 0, Fault(hang=True))
    async with nothing_left(lane):
        pushing = asyncio.create_task(lane.push(lane.memory.expose(bytearray(len(DATA))), [Run(fd, 0, len(DATA))]))
        await quiet(lane)
        assert lane.faults.passed.count("write") == 6, "the others go on while one hangs"
        assert lane.pool.most_used == 4
        assert lane.pool.idle == 7
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing


async def test_as_many_pieces_as_depth_are_on_their_way(executor: ThreadPoolExecutor, fd: int) -> None:
    lane = Lane(8, executor)
    for number in range(6):
        lane.faults.add("write", number, Fault(hang=True))
    async with nothing_left(lane):
        pushing = asyncio.create_task(
            lane.push(lane.memory.expose(bytearray(len(DATA))), [Run(fd, 0, len(DATA))], depth=3)
        )
        await quiet(lane)
        assert lane.faults.passed.count("write") == lane.pool.total - lane.pool.idle == 3
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing


@pytest.mark.parametrize("cache", ["cached", "uncached"])
async def test_the_descriptor_is_free_when_send_file_returns(
    executor: ThreadPoolExecutor, tmp_path: Path, cache: str, request: pytest.FixtureRequest
) -> None:
    if cache == "uncached":
        request.getfixturevalue("uncached")
    lane = Lane(8, executor)
    length = 3 * CHUNK
    for number in range(3):
        lane.faults.add("write", number, Fault(delay=0.05))
    (tmp_path / "payload").write_bytes(DATA)
    memory = bytearray(length)
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(memory))
        sink = StagedSink(region, lane.pool, executor)
        descriptor = os.open(tmp_path / "payload", os.O_RDONLY)
        await sink.send_file(descriptor, 100, length)
        os.close(descriptor)
        (tmp_path / "payload").write_bytes(bytes(len(DATA)))
        assert sink.moved < length
        await sink.finish()
        assert sink.moved == length
        assert memory == DATA[100 : 100 + length]
        await sink.close()
        await region.close()


async def test_a_read_that_waits_for_a_thread_is_cancelled(fd: int, uncached: None) -> None:
    gate = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        lane = Lane(4, executor)
        blocked = executor.submit(gate.wait, 20)
        async with nothing_left(lane):
            pushing = asyncio.create_task(lane.push(lane.memory.expose(bytearray(len(DATA))), [Run(fd, 0, len(DATA))]))
            await turns(20)
            assert lane.pool.idle == 0
            pushing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pushing
            assert not blocked.done()
            assert lane.pool.idle == 4
        gate.set()


async def test_a_read_that_runs_is_waited_for(
    executor: ThreadPoolExecutor, fd: int, uncached: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun, real = threading.Event(), threading.Event(), FileReads.read

    def slow(*arguments: object) -> None:
        begun.set()
        gate.wait(20)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FileReads, "read", slow)
    lane = Lane(2, executor)
    async with nothing_left(lane):
        pushing = asyncio.create_task(lane.push(lane.memory.expose(bytearray(len(DATA))), [Run(fd, 0, len(DATA))]))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 20)
        await asyncio.get_running_loop().shutdown_default_executor()
        for _ in range(3):
            pushing.cancel()
            await turns(10)
        assert not pushing.done()
        assert lane.pool.idle == 0, "a thread still fills the buffers"
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await pushing


@pytest.mark.parametrize("pause", range(6))
async def test_a_buffer_is_back_when_close_returns_not_a_turn_later(executor: ThreadPoolExecutor, pause: int) -> None:
    lane = Lane(2, executor)
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(100)))
        sink = StagedSink(region, lane.pool, executor)
        await sink.send(b"x")
        await turns(pause)
        await sink.close()
        assert lane.pool.idle == 2
        assert sink.moved in (0, 1)
        await region.close()


@pytest.mark.parametrize("step", ["send", "send_file", "finish"])
async def test_after_an_error_everything_raises_it_and_nothing_runs(
    executor: ThreadPoolExecutor, fd: int, step: str
) -> None:
    lane = Lane(4, executor)
    lane.faults.add("write", 0, Fault(RemoteAccess))
    lane.faults.add("write", 1, Fault(hang=True, flush=0.01))
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(2 * len(DATA))))
        sink = StagedSink(region, lane.pool, executor)
        await sink.send(bytes(CHUNK))
        await sink.send(bytes(CHUNK))
        with pytest.raises(RemoteAccess):
            await {
                "send": lambda: sink.send(DATA),
                "send_file": lambda: sink.send_file(fd, 0, len(DATA)),
                "finish": sink.finish,
            }[step]()
        assert lane.pool.idle == 4
        for call in (lambda: sink.send(b""), lambda: sink.send_file(fd, 0, 0), sink.finish):
            with pytest.raises(RemoteAccess):
                await call()
        await sink.close()
        await region.close()


async def test_a_sink_that_was_cancelled_or_closed_takes_nothing_more(executor: ThreadPoolExecutor) -> None:
    lane = Lane(1, executor)
    async with nothing_left(lane):
        region = await lane.fabric.open(lane.memory.expose(bytearray(100)))
        held = await lane.pool.acquire()
        sink = StagedSink(region, lane.pool, executor)
        sending = asyncio.create_task(sink.send(b"x"))
        await turns(3)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        with pytest.raises(RuntimeError, match="stopped"):
            await sink.finish()
        closed = StagedSink(region, lane.pool, executor)
        sending = asyncio.create_task(closed.send(b"x"))
        await turns(3)
        await closed.close()
        lane.pool.release(held)
        with pytest.raises(RuntimeError, match="closed"):
            await sending
        await region.close()


async def test_a_lack_of_buffers_that_lasts_declines(executor: ThreadPoolExecutor, fd: int) -> None:
    lane = Lane(1, executor, patience=0.01)
    async with nothing_left(lane):
        held = await lane.pool.acquire()
        for part in (b"x", Run(fd, 0, 10)):
            with pytest.raises(Declined) as error:
                await lane.push(lane.memory.expose(bytearray(100)), [part])
            assert error.value.reason is Decline.NO_BUFFER
        lane.pool.release(held)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.booleans(), st.integers(1, 3 * CHUNK), st.integers(0, 5)), min_size=1, max_size=8),
    st.integers(0, 1 << 16),
)
def test_any_number_of_requests_shares_any_pool(
    executor: ThreadPoolExecutor, fd: int, buffers: int, requests: list[tuple[bool, int, int]], seed: int
) -> None:
    async def run() -> None:
        lane = Lane(buffers, executor, seed=seed)
        memories = [bytearray(length) for _, length, _ in requests]
        async with nothing_left(lane):
            await asyncio.gather(
                *(
                    lane.push(
                        lane.memory.expose(memory),
                        [Run(fd, depth, length) if is_file else DATA[depth : depth + length]],
                        depth=depth,
                        peer=depth,
                    )
                    for memory, (is_file, length, depth) in zip(memories, requests, strict=True)
                )
            )
        for memory, (_, length, depth) in zip(memories, requests, strict=True):
            assert memory == DATA[depth : depth + length]

    asyncio.run(run())
