"""The loopback fabric is a witness: it must see what it is there for, and fail only where it is told to."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK, Fabric, RemoteRegion
from s3verbs.rdma.loopback import Fault, LoopbackFabric, LoopbackFaults, LoopbackMemory, LoopbackMisuse
from s3verbs.rdma.staging import StagingArena, StagingBuffer, StagingPool
from s3verbs.rdma.token import Token, Transport, parse

DATA = bytes(range(256)) * 4


class Bench:
    def __init__(self, **options: object) -> None:
        self.arena = StagingArena(2 * CHUNK)
        self.pool = StagingPool(self.arena, patience=0)
        self.memory = LoopbackMemory()
        self.faults = LoopbackFaults()
        self.fabric = LoopbackFabric(self.memory, faults=self.faults, arena=self.arena, **options)  # type: ignore[arg-type]

    def buffer(self) -> StagingBuffer:
        buffer = self.pool.try_acquire()
        assert buffer is not None
        return buffer


@pytest.mark.parametrize("transport", Transport)
async def test_bytes_move_both_ways(transport: Transport) -> None:
    bench = Bench(seed=1)
    theirs = bytearray(DATA)
    token = parse(str(bench.memory.expose(theirs, transport=transport)))
    fabric: Fabric = bench.fabric
    region: RemoteRegion = await fabric.open(token)
    assert (region.size, region.transport) == (len(DATA), transport)
    buffer = bench.buffer()
    await region.read(10, buffer, 1000)
    assert buffer.view[:1000] == DATA[10:1010]
    await region.write(20, buffer, 500, start=100)
    assert theirs == DATA[:20] + DATA[110:610] + DATA[520:]
    await region.close()
    await region.close()
    bench.fabric.check()
    await fabric.close()
    assert transport.value in fabric.describe()


async def test_a_token_may_name_a_part_of_what_is_exposed() -> None:
    bench = Bench()
    token = bench.memory.expose(bytearray(DATA))
    part = Token(token.address + 100, 50, token.rkey, token.lid, token.qp, token.gid, token.transport, token.secret)
    region = await bench.fabric.open(part)
    buffer = bench.buffer()
    await region.read(1, buffer, 49)
    assert buffer.view[:49] == DATA[101:150]
    await region.close()


async def test_who_is_not_there_and_who_is_not_spoken_to() -> None:
    bench = Bench(transports={Transport.RC, Transport.SAMEHOST})
    for transport, reason in ((Transport.DC, Decline.NO_TRANSPORT), (Transport.SAMEHOST, Decline.NO_SESSION)):
        token = bench.memory.expose(bytearray(1), transport=transport)
        if transport is Transport.SAMEHOST:
            bench.memory.revoke(token)
        with pytest.raises(Declined) as declined:
            await bench.fabric.open(token)
        assert declined.value.reason is reason
    token = bench.memory.expose(bytearray(1), secret=bytes(16))
    bench.memory.revoke(token)
    with pytest.raises(PeerUnreachable) as unreachable:
        await bench.fabric.open(token)
    assert unreachable.value.reason is Failure.REJECTED
    with pytest.raises(KeyError):
        bench.memory.revoke(token)
    bench.fabric.check()


@pytest.mark.parametrize("wrong", ["rkey", "address", "size", "revoked"])
async def test_what_is_not_exposed_is_a_remote_access_error(wrong: str) -> None:
    bench = Bench()
    memory = bytearray(DATA)
    bench.memory.expose(bytearray(1), secret=bytes(16))
    token = bench.memory.expose(memory, secret=bytes(16))
    aimed = Token(
        token.address - (wrong == "address"),
        token.size + (wrong == "size"),
        token.rkey ^ (wrong == "rkey"),
        qp=token.qp,
        gid=token.gid,
        transport=token.transport,
        secret=token.secret,
    )
    region = await bench.fabric.open(aimed)
    if wrong == "revoked":
        bench.memory.revoke(token)
    buffer = bench.buffer()
    with pytest.raises(RemoteAccess):
        await region.write(0, buffer, aimed.size)
    assert memory == DATA
    await region.close()
    bench.fabric.check()


@pytest.mark.parametrize("buffer", [b"read only", bytearray()])
def test_only_memory_that_can_be_written_is_exposed(buffer: bytearray) -> None:
    with pytest.raises(ValueError, match="writable"):
        LoopbackMemory().expose(buffer)


async def test_faults_strike_once_and_in_the_order_of_the_calls() -> None:
    bench = Bench(seed=3)
    token = bench.memory.expose(bytearray(DATA))
    bench.faults.add("open", 1, Fault(lambda: Declined(Decline.NO_ROUTE)))
    bench.faults.add("read", 1, Fault(RemoteAccess))
    bench.faults.add("write", 0, Fault(lambda: PeerUnreachable(Failure.TIMEOUT), delay=0.001))
    bench.faults.add("close", 0, Fault(delay=0.001))
    region = await bench.fabric.open(token)
    with pytest.raises(Declined):
        await bench.fabric.open(token)
    first, second = bench.buffer(), bench.buffer()
    results = await asyncio.gather(region.read(0, first, 10), region.read(0, second, 10), return_exceptions=True)
    assert results[0] is None
    assert isinstance(results[1], RemoteAccess)
    with pytest.raises(PeerUnreachable):
        await region.write(0, first, 10)
    await region.write(0, first, 10)
    await region.close()
    assert bench.faults.passed == ["open", "open", "read", "read", "write", "write", "close"]
    bench.fabric.check()
    with pytest.raises(ValueError, match="only be delayed"):
        bench.faults.add("close", 1, Fault(hang=True))


async def test_a_transfer_that_hangs_ends_by_cancellation_after_its_flush() -> None:
    bench = Bench()
    region = await bench.fabric.open(bench.memory.expose(bytearray(DATA)))
    bench.faults.add("write", 0, Fault(hang=True, flush=0.01))
    buffer = bench.buffer()
    writing = asyncio.create_task(region.write(0, buffer, 10))
    closing = asyncio.create_task(region.close())
    await asyncio.sleep(0.01)
    assert not writing.done()
    assert not closing.done(), "close waits for what is on its way"
    writing.cancel()
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(LoopbackMisuse, match="1 buffers in use"):
        bench.fabric.check()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await closing
    bench.fabric.check()


def _outside(bench: Bench) -> StagingBuffer:
    stranger = StagingPool(StagingArena(CHUNK), patience=0)
    buffer = stranger.try_acquire()
    assert buffer is not None
    return buffer


def _released(bench: Bench) -> StagingBuffer:
    buffer = bench.buffer()
    bench.pool.release(buffer)
    return buffer


Use = Callable[[Bench, RemoteRegion], Awaitable[object]]
MISUSES: dict[str, Use] = {
    "too long": lambda bench, region: region.read(0, bench.buffer(), CHUNK + 1),
    "past the buffer": lambda bench, region: region.write(0, bench.buffer(), 2, start=CHUNK - 1),
    "before the buffer": lambda bench, region: region.write(0, bench.buffer(), 2, start=-1),
    "nothing": lambda bench, region: region.write(0, bench.buffer(), 0),
    "past the region": lambda bench, region: region.write(1000, bench.buffer(), 1000),
    "before the region": lambda bench, region: region.read(-1, bench.buffer(), 2),
    "outside of the arena": lambda bench, region: region.read(0, _outside(bench), 1),
    "released": lambda bench, region: region.write(0, _released(bench), 1),
}


@pytest.mark.parametrize("use", MISUSES.values(), ids=MISUSES.keys())
async def test_misuse_is_seen(use: Use) -> None:
    bench = Bench()
    region = await bench.fabric.open(bench.memory.expose(bytearray(DATA)))
    with pytest.raises(LoopbackMisuse):
        await use(bench, region)
    await region.close()
    with pytest.raises(LoopbackMisuse):
        bench.fabric.check()


@pytest.mark.parametrize("again", [False, True])
async def test_a_buffer_that_changes_hands_during_a_transfer_is_seen(again: bool) -> None:
    bench = Bench()
    region = await bench.fabric.open(bench.memory.expose(bytearray(DATA)))
    buffer = bench.buffer()
    reading = asyncio.create_task(region.read(0, buffer, 10))
    await asyncio.sleep(0)
    bench.pool.release(buffer)
    if again:
        assert bench.buffer() is buffer
    with pytest.raises(LoopbackMisuse, match="given back"):
        await reading


@pytest.mark.parametrize(
    ("first", "second", "allowed"), [("read", "read", 0), ("read", "write", 0), ("write", "write", 1)]
)
async def test_two_transfers_with_one_buffer(first: str, second: str, allowed: bool) -> None:
    bench = Bench()
    region = await bench.fabric.open(bench.memory.expose(bytearray(DATA)))
    buffer = bench.buffer()
    results = await asyncio.gather(
        *(getattr(region, name)(0, buffer, 10) for name in (first, second)), return_exceptions=True
    )
    assert isinstance(results[1], LoopbackMisuse) == (not allowed)
    assert results[0] is None


async def test_regions_and_fabric_are_closed_in_order() -> None:
    bench = Bench()
    region = await bench.fabric.open(bench.memory.expose(bytearray(DATA)))
    with pytest.raises(LoopbackMisuse, match="1 regions are open"):
        bench.fabric.check()
    with pytest.raises(LoopbackMisuse, match="open regions"):
        await bench.fabric.close()
    await region.close()
    with pytest.raises(LoopbackMisuse, match="after close"):
        await region.read(0, bench.buffer(), 1)
    await bench.fabric.close()
    with pytest.raises(LoopbackMisuse, match="after the fabric's close"):
        await bench.fabric.open(bench.memory.expose(bytearray(1)))
