"""The event loop's half of RC connections, against a fake completion queue and fake links."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3verbs.rdma.errors import Failure, RemoteAccess
from s3verbs.rdma.verbs import rc
from s3verbs.rdma.verbs.attributes import LocalSpan
from s3verbs.rdma.verbs.completion import failure_of
from s3verbs.rdma.verbs.constants import CompletionStatus
from s3verbs.rdma.verbs.errors import ConnectionLost, VerbsError
from s3verbs.rdma.verbs.opened_device import DEPTH
from s3verbs.rdma.verbs.rc import Connection
from tests.fake_rc import FakeDevice, FakeLink, Memory

FAR = 60.0


class Bench:
    """A device, and connections over it; what they end is noted."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.device = FakeDevice(self.loop)
        self.executor = ThreadPoolExecutor(2)
        self.local, self.remote = Memory(1), Memory(1)
        self.ended: list[Connection] = []
        self.connections: list[Connection] = []

    def connect(self, **options: bool) -> tuple[Connection, FakeLink]:
        assert self.device.take()
        link = FakeLink(self.device, **options)
        connection = Connection(link, self.device, self.executor, on_end=self.ended.append)
        self.connections.append(connection)
        return connection, link

    def span(self, length: int = 4096) -> LocalSpan:
        return LocalSpan(self.local.address, length, 7)

    def read(self, connection: Connection, timeout: float = FAR) -> "asyncio.Task[None]":
        deadline = self.loop.time() + timeout
        return asyncio.ensure_future(connection.read(self.span(), self.remote.address, 9, deadline))

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()
        assert self.device.room == 100
        assert self.device.completions.outstanding == 0
        self.device.close()
        self.executor.shutdown()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.close()


async def until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


@pytest.mark.parametrize("status", CompletionStatus)
def test_every_status_has_a_meaning(status: CompletionStatus) -> None:
    remote = {"REM_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_OP_ERR"}
    wanted = Failure.REMOTE_ACCESS if status.name in remote else Failure.CONNECTION_LOST
    assert failure_of(status) is wanted


async def test_reads_and_writes_move_bytes(bench: Bench) -> None:
    connection, link = bench.connect()
    bench.remote.bytes[:5] = b"there"
    await connection.read(bench.span(5), bench.remote.address, 9, bench.loop.time() + FAR)
    assert bench.local.bytes[:5] == b"there"
    bench.local.bytes[:5] = b"hello"
    await connection.write(bench.span(5), bench.remote.address + 100, 9, bench.loop.time() + FAR)
    assert bench.remote.bytes[100:105] == b"hello"
    assert [request[0] for request in link.moved] == [True, False]
    assert all(request[3] == 9 for request in link.moved)


async def test_the_send_queue_is_never_overrun(bench: Bench) -> None:
    connection, link = bench.connect(automatic=False)
    reads = [bench.read(connection) for _ in range(DEPTH + 5)]
    await until(lambda: len(link.posted) == DEPTH)
    await asyncio.sleep(0.01)
    assert len(link.posted) == DEPTH
    for _ in range(DEPTH + 5):
        await until(lambda: link.posted)
        link.complete()
    await asyncio.gather(*reads)


async def test_waiting_for_a_place_has_a_deadline(bench: Bench) -> None:
    connection, link = bench.connect(automatic=False)
    reads = [bench.read(connection) for _ in range(DEPTH)]
    with pytest.raises(ConnectionLost) as lost:
        await bench.read(connection, timeout=0.05)
    assert lost.value.reason is Failure.TIMEOUT
    assert connection.usable
    while link.posted:
        link.complete()
    await asyncio.gather(*reads)


async def test_a_refused_access_ends_the_connection_and_names_the_culprit(bench: Bench) -> None:
    connection, link = bench.connect(automatic=False)
    culprit, other = bench.read(connection), bench.read(connection)
    await until(lambda: len(link.posted) == 2)
    link.complete(CompletionStatus.REM_ACCESS_ERR)
    results = await asyncio.gather(culprit, other, return_exceptions=True)
    assert isinstance(results[0], RemoteAccess)
    assert isinstance(results[1], ConnectionLost)
    assert not connection.usable
    assert bench.ended == [connection]
    await connection.close()
    assert link.closed


@pytest.mark.parametrize("status", [CompletionStatus.RETRY_EXC_ERR, CompletionStatus.RNR_RETRY_EXC_ERR])
async def test_a_silent_peer_is_a_lost_connection(bench: Bench, status: CompletionStatus) -> None:
    connection, link = bench.connect()
    link.status = status
    with pytest.raises(ConnectionLost) as lost:
        await bench.read(connection)
    assert lost.value.reason is Failure.CONNECTION_LOST
    with pytest.raises(ConnectionLost):
        await bench.read(connection)


async def test_a_peer_that_hangs_up_flushes_what_is_in_progress(bench: Bench) -> None:
    connection, link = bench.connect(automatic=False)
    read = bench.read(connection)
    await until(lambda: link.posted)
    link.hang_up()
    with pytest.raises(ConnectionLost):
        await read
    assert link.aborted
    assert bench.ended == [connection]


async def test_a_failed_post_leaves_no_future(bench: Bench) -> None:
    connection, link = bench.connect()
    link.refuse = VerbsError("no memory", 12)
    with pytest.raises(ConnectionLost):
        await bench.read(connection)
    assert bench.device.completions.outstanding == 0
    assert not connection.usable


async def test_a_timeout_ends_with_the_flush(bench: Bench) -> None:
    connection, link = bench.connect(automatic=False)
    with pytest.raises(ConnectionLost) as lost:
        await bench.read(connection, timeout=0.05)
    assert lost.value.reason is Failure.TIMEOUT
    assert link.aborted
    assert not link.posted


async def test_without_a_flush_the_queue_pair_is_destroyed_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rc, "FLUSH", 0.05)
    connection, link = bench.connect(automatic=False, deaf=True)
    link.closing_takes = 0.05
    with pytest.raises(ConnectionLost):
        await bench.read(connection, timeout=0.05)
    assert link.closed


async def test_a_buffer_is_never_given_back_while_the_device_has_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rc, "FLUSH", 0.01)
    connection, link = bench.connect(automatic=False, deaf=True)
    link.refuse_close = VerbsError("cannot", 16)
    read = bench.read(connection, timeout=0.01)
    await until(lambda: link.posted)
    await connection.close()
    await asyncio.sleep(0.05)
    assert not read.done()
    # As if the device had let go of it in the end.
    link.deaf = False
    link.abort()
    with pytest.raises(ConnectionLost):
        await read
    link.refuse_close = None
    link.close()
    bench.device.give()


async def test_a_cancelled_read_that_completes_keeps_the_connection(bench: Bench) -> None:
    connection, link = bench.connect(automatic=False)
    read = bench.read(connection)
    await until(lambda: link.posted)
    read.cancel()
    await asyncio.sleep(0.01)
    assert not read.done()
    link.complete()
    with pytest.raises(asyncio.CancelledError):
        await read
    assert connection.usable


async def test_a_cancelled_read_that_hangs_costs_the_connection(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rc, "GRACE", 0.05)
    connection, link = bench.connect(automatic=False)
    read = bench.read(connection)
    await until(lambda: link.posted)
    for _ in range(3):
        read.cancel()
        await asyncio.sleep(0.005)
        assert not read.done()
    with pytest.raises(asyncio.CancelledError):
        await read
    assert link.aborted
    assert not link.posted


async def test_cancelled_while_waiting_for_a_place(bench: Bench) -> None:
    connection, link = bench.connect(automatic=False)
    reads = [bench.read(connection) for _ in range(DEPTH)]
    waiting = bench.read(connection)
    await until(lambda: len(link.posted) == DEPTH)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for _ in range(DEPTH):
        link.complete()
    await asyncio.gather(*reads)
    assert connection.usable


async def test_completions_between_event_and_poll_are_not_missed(bench: Bench) -> None:
    # One completion per event would hang if a late one raised none: 200 in bursts, each burst behind the last arm.
    connection, link = bench.connect(automatic=False)
    for burst in (1, 3, DEPTH, 2, DEPTH, 1):
        reads = [bench.read(connection) for _ in range(burst)]
        await until(lambda: len(link.posted) == burst)  # noqa: B023
        link.complete()
        await asyncio.sleep(0)
        while link.posted:
            link.complete()
        await asyncio.gather(*reads)


async def test_a_flood_of_completions_is_taken_in_turns(bench: Bench) -> None:
    futures = [bench.device.completions.begin() for _ in range(3000)]
    for work, _ in futures:
        bench.device.queue.push(work)
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while not futures[-1][1].done():
            turns += 1
            await asyncio.sleep(0)

    await asyncio.wait_for(other_work(), 10)
    assert turns > 2
    assert all(future.done() for _, future in futures)


async def test_a_broken_completion_queue_stops_quietly(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    connection, link = bench.connect(automatic=False)
    read = bench.read(connection, timeout=0.1)
    await until(lambda: link.posted)
    bench.device.queue.broken = True
    link.complete()
    with pytest.raises(ConnectionLost):
        await read
    assert link.closed
    assert "completion queue failed" in caplog.text
